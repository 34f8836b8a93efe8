/** The cards of one user: presence, connections, messages and timers that wait, profile, decisions. */

import { fromNow, make } from "../dom.js";
import { count, moment, span } from "./format.js";
import { card, chip, facts, table } from "./table.js";

const PRESENCE = /** @type {const} */ ({ connected: "good", suspect: "warn", offline: "plain" });

/** @param {any} report @param {(id: string) => void} look Shows what became of a message. @returns {any[]} */
export function userCards(report, look) {
  return [
    make("div", { className: "grid three" }, about(report), profile(report), decisions(report, look)),
    connections(report),
    make("div", { className: "grid two" }, messages(report, look), timers(report)),
  ];
}

/** A card with a table, or with a sentence where there is nothing. @param {string} id @param {string} title @param {any[]} rows @param {import("./table.js").Column[]} columns @param {string} none @param {string} [note] */
function listing(id, title, rows, columns, none, note) {
  const { card: made, body } = card(id, title, { note });
  body.append(rows.length ? table(title, columns, rows) : make("p", { className: "calm" }, none));
  return made;
}

/** @param {any} report */
function about(report) {
  const { card: made, body } = card("user-about", report.user);
  const kind = PRESENCE[/** @type {keyof PRESENCE} */ (report.presence)] ?? "plain";
  body.append(
    facts([
      ["Presence", chip(kind, report.presence)],
      ["Last active", report.active_at ? fromNow(report.active_at - Date.now()) : "–"],
      ["Newest number", count(report.head)],
      ["Settled up to", count(report.floor)],
      ["Pending", count(report.pending)],
      ["of them in memory", count(report.in_memory)],
      ["Topics", report.topics.length ? report.topics.join(", ") : "none"],
      ...report.windows.map((/** @type {any} */ one) => [`Window ${one.collapse}`, `${count(one.count)} messages, closes ${fromNow(one.closes_ms - Date.now())}`]),
      ...Object.entries(report.events).map(([event, at]) => [`Event ${event}`, fromNow(Number(at) - Date.now())]),
    ]),
  );
  return made;
}

/** @param {any} report */
function profile({ profile: wanted }) {
  const { card: made, body } = card("user-profile", "Profile");
  const quiet = wanted.quiet.map((/** @type {any} */ one) => `${one.from}–${one.to}${one.days ? ` ${one.days.join(" ")}` : ""}`);
  body.append(
    facts([
      ["Zone", wanted.zone],
      ["Locale", wanted.locale || "–"],
      ["Level", wanted.level || "–"],
      ["Quiet hours", quiet.join(", ") || "none"],
      ["Muted types", wanted.mute?.types?.join(", ") || "none"],
      ["Muted targets", wanted.mute?.targets?.join(", ") || "none"],
      ["Digest", wanted.digest?.types?.join(", ") || "none"],
    ]),
  );
  return made;
}

/** @param {any} report @param {(id: string) => void} look */
function decisions(report, look) {
  const { card: made, body } = card("user-decisions", "Decisions of the contact policy");
  const lines = report.decisions.map((/** @type {any} */ one) =>
    make("li", {}, chip("plain", one.event), lookButton(one.id, look), make("span", { className: "muted" }, `${moment(one.at)} ${one.reason}`)),
  );
  body.append(lines.length ? make("ul", { className: "plain scrolled", tabIndex: 0, ariaLabel: "Decisions" }, ...lines) : make("p", { className: "calm" }, "None is kept: nothing was suppressed, deferred or merged lately."));
  return made;
}

/** @param {any} report */
function connections(report) {
  return listing(
    "user-connections",
    "Connections",
    report.connections,
    [
      { title: "Connection", cell: ({ session }) => make("code", {}, session), head: true },
      { title: "Device", cell: ({ device }) => device || "–" },
      { title: "By", cell: ({ transport }) => transport },
      { title: "Edge", cell: ({ edge }) => edge },
      { title: "Since", cell: ({ since }) => moment(since) },
      { title: "Sent up to", cell: ({ sent }) => count(sent), figure: true },
      { title: "Unacknowledged", cell: ({ unacknowledged }) => count(unacknowledged), figure: true },
      { title: "Oldest", cell: ({ oldest }) => (oldest ? fromNow(oldest - Date.now()) : "–"), figure: true },
      { title: "Round trip", cell: ({ rtt_ms }) => (rtt_ms ? span(rtt_ms) : "–"), figure: true },
      { title: "State", cell: ({ exhausted }) => (exhausted ? chip("bad", `${count(exhausted)} exhausted`) : chip("good", "open")) },
    ],
    "None is open.",
  );
}

/** @param {any} report @param {(id: string) => void} look */
function messages(report, look) {
  const more = report.pending - report.messages.length;
  return listing(
    "user-messages",
    "Pending messages",
    report.messages,
    [
      { title: "Number", cell: ({ seq }) => count(seq), figure: true },
      { title: "Type", cell: ({ type }) => type, head: true },
      { title: "Id", cell: ({ id }) => lookButton(id, look) },
      { title: "Priority", cell: ({ priority }) => priority },
      { title: "Sent by its publisher", cell: ({ ts }) => (ts ? fromNow(ts - Date.now()) : "–") },
      { title: "Expires", cell: ({ expires }) => fromNow(expires - Date.now()) },
    ],
    report.pending ? "Those that wait are to a topic or to everyone, and in storage." : "None: everything is acknowledged.",
    more > 0 && report.messages.length ? `The newest; ${count(more)} more wait.` : undefined,
  );
}

/** @param {any} report */
function timers(report) {
  return listing(
    "user-timers",
    "Timers",
    report.timers,
    [
      { title: "Due", cell: ({ scheduled_at: at }) => make("time", { dateTime: new Date(at).toISOString(), title: new Date(at).toLocaleString() }, fromNow(at - Date.now())) },
      { title: "Type", cell: ({ notification }) => notification.type, head: true },
      { title: "Does", cell: ({ action }) => action ?? "delivers" },
      { title: "Scheduled id", cell: ({ scheduled_id: id }) => make("code", {}, id) },
    ],
    "None waits.",
  );
}

/** @param {string} id @param {(id: string) => void} look */
function lookButton(id, look) {
  const button = make("button", { type: "button", className: "name", ariaLabel: `What became of ${id}` }, id);
  button.addEventListener("click", () => look(id));
  return button;
}
