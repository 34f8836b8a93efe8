/** The cards of one user: presence, connections, messages and timers that wait, profile, decisions. */

import { fromNow, make } from "../dom.js";
import { count, counted, moment, span } from "./format.js";
import { card, chip, facts, table } from "./table.js";

const TEN = 10; // rows of a list at once
const ID_CHARS = 12; // of an id; longer ones are shortened in the middle
const COPIED_MS = 1500;

const PRESENCE = /** @type {const} */ ({ connected: "good", suspect: "warn", offline: "plain" });

/** @param {any} report @param {(id: string) => void} look Shows what became of a message. @returns {any[]} */
export function userCards(report, look) {
  return [
    make("div", { className: "grid two" }, about(report), profile(report)),
    connections(report),
    make("div", { className: "grid two" }, messages(report, look), make("div", { className: "world" }, timers(report), decisions(report, look))),
  ];
}

/** A card with a table, or with a sentence where there is nothing. @param {string} id @param {string} title @param {any[]} rows @param {import("./table.js").Column[]} columns @param {string} none @param {string} [note] */
function listing(id, title, rows, columns, none, note) {
  const { card: made, body } = card(id, title, { note });
  if (rows.length) inTens(body, rows, (some) => table(title, columns, some));
  else body.append(make("p", { className: "calm" }, none));
  return made;
}

/**
 * The first ten rows, and a button that shows ten more.
 * @param {any} body @param {any[]} rows @param {(rows: any[]) => any} draw
 */
function inTens(body, rows, draw) {
  let shown = TEN;
  const more = make("button", { type: "button", className: "quiet" });
  const show = () => {
    const at = body.firstElementChild?.scrollLeft ?? 0;
    more.textContent = `${Math.min(rows.length - shown, TEN)} more of ${count(rows.length)}`;
    more.hidden = shown >= rows.length;
    body.replaceChildren(draw(rows.slice(0, shown)), more);
    body.firstElementChild.scrollLeft = at;
  };
  more.addEventListener("click", () => {
    shown += TEN;
    show();
    (more.hidden ? body.firstElementChild : more).focus();
  });
  show();
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
      ["Topics", topics(report.topics)],
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
  const line = (/** @type {any} */ one) =>
    make("li", {}, chip("plain", one.event), lookButton(one.id, look), make("span", { className: "muted" }, `${moment(one.at)} ${one.reason}`));
  if (report.decisions.length) inTens(body, report.decisions, (some) => make("ul", { className: "plain", tabIndex: -1 }, ...some.map(line)));
  else body.append(make("p", { className: "calm" }, "None is kept: nothing was suppressed, deferred or merged lately."));
  return made;
}

/** @param {any} report */
function connections(report) {
  return listing(
    "user-connections",
    "Connections",
    report.connections,
    [
      { title: "Connection", cell: ({ session }) => idButton(session), head: true },
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
      { title: "Scheduled id", cell: ({ scheduled_id: id }) => idButton(id) },
    ],
    "None waits.",
  );
}

/** @param {string[]} names */
function topics(names) {
  if (!names.length) return "none";
  const first = names.slice(0, TEN).join(", ");
  if (names.length <= TEN) return first;
  return make("details", {}, make("summary", {}, counted(names.length, "topic")), names.join(", "));
}

/** An id as a button that shows what became of its message, and one that copies it. @param {string} id @param {(id: string) => void} look */
function lookButton(id, look) {
  const button = make("button", { type: "button", className: "name", title: id, ariaLabel: `What became of ${id}` }, shortened(id));
  button.addEventListener("click", () => look(id));
  return make("span", { className: "looks" }, button, idButton(id, "Copy"));
}

/** A button that copies an id; it shows the shortened id, or a word. @param {string} id @param {string} [word] */
function idButton(id, word = shortened(id)) {
  const button = make("button", { type: "button", className: "id", title: `Copy ${id}`, ariaLabel: `Copy ${id}` }, word);
  button.addEventListener("click", async () => {
    const copied = await navigator.clipboard?.writeText(id).then(() => true, () => false); // absent on plain http from elsewhere
    button.textContent = copied ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = word), COPIED_MS);
  });
  return button;
}

/** Its beginning and its end: what differs between two ids is at the end. @param {string} id */
function shortened(id) {
  return id.length <= ID_CHARS ? id : `${id.slice(0, 4)}…${id.slice(5 - ID_CHARS)}`;
}
