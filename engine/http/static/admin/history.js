/** What became of a user's messages: from the history where the engine keeps one, and of one message from what is still known. */

import { make } from "../dom.js";
import { moment, span } from "./format.js";
import { card } from "./table.js";
import { attempt, noteElement, whileChosen } from "./view.js";

const KINDS = /** @type {Record<string, string>} */ ({ acknowledged: "good", action_done: "good", dead_lettered: "bad", expired: "bad", action_failed: "bad", gap: "bad", suppressed: "warn", deferred: "warn" });
const NONE = "This engine keeps no history (history_url). An id shows what is still known of that message.";
const PLACES = ["device", "transport", "node", "rule", "scheduled_id"];

export class History {
  /** @type {[string, string]} */ #of = ["", ""];
  #before = "";
  kept = true; // by the engine, as far as is known

  /** @param {import("./admin_api.js").AdminApi} api */
  constructor(api) {
    this.api = api;
    this.message = make("input", { id: "history-message", maxLength: 128, autocomplete: "off", spellcheck: false, placeholder: "all messages" });
    const form = make(
      "form",
      { className: "query" },
      make("div", {}, make("label", { htmlFor: "history-message" }, "Id of a message"), this.message),
      make("button", { type: "submit", className: "secondary" }, "Show"),
    );
    this.list = make("ol", { className: "timeline", tabIndex: 0, ariaLabel: "Timeline" });
    this.note = noteElement();
    this.older = make("button", { type: "button", className: "quiet", hidden: true }, "Older ones");
    const { card: made, body } = card("user-history", "Timeline");
    body.append(form, this.note, this.list, this.older);
    this.element = made;
    form.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      const id = this.message.value.trim();
      if (id) this.look(...this.#of, id);
      else this.of(...this.#of);
    });
    this.older.addEventListener("click", () => this.#load());
  }

  /** Show the history of a user. @param {string} tenant @param {string} user */
  of(tenant, user) {
    this.#of = [tenant, user];
    this.#before = "";
    this.message.value = "";
    this.list.replaceChildren();
    return this.#load();
  }

  /** Show what became of one message. @param {string} tenant @param {string} user @param {string} id */
  look(tenant, user, id) {
    this.#of = [tenant, user];
    this.message.value = id;
    this.older.hidden = true;
    this.list.replaceChildren();
    return attempt(this.note, null, async () => {
      const { state, timeline, history } = await whileChosen(() => this.#of, this.api.timeline(tenant, user, id));
      this.list.replaceChildren(...timeline.map(step));
      this.element.scrollIntoView({ block: "nearest" });
      return `State: ${state}${history ? "; the history does not answer, so this is what memory has" : ""}`;
    });
  }

  #load() {
    return attempt(this.note, this.older, async () => {
      if (!this.kept) return NONE;
      const answer = this.api.history(...this.#of, this.#before).catch((/** @type {any} */ error) => {
        if (error.status === 404) return { history: null }; // there is none, by the settings
        throw error;
      });
      const { history, before } = await whileChosen(() => this.#of, answer);
      this.#before = before ?? "";
      this.older.hidden = !before;
      if (history === null) return NONE;
      this.list.append(...history.map(step));
      return history.length || this.list.children.length ? "" : "Nothing is recorded.";
    });
  }
}

/** @param {any} row Of a timeline, or of the history. */
function step(row) {
  const places = PLACES.filter((name) => row[name]).map((name) => row[name]);
  const times = [
    ...(row.attempt > 1 ? [`attempt ${row.attempt}`] : []),
    ...(row.rtt_ms === undefined ? [] : [`round trip ${span(row.rtt_ms)}`]),
    ...(row.read_ms === undefined ? [] : [`read after ${span(row.read_ms)}`]),
    ...(row.skew_ms ? [`client’s clock off by ${span(Math.abs(row.skew_ms))}`] : []),
    ...(row.until ? [`until ${moment(row.until)}`] : []),
  ];
  const what = make("span", { className: "state", data: { kind: KINDS[row.event] ?? "plain" } }, row.event.replaceAll("_", " "));
  const which = row.id ? make("code", {}, row.id) : null;
  const detail = [row.type, row.reason, ...places, ...times].filter(Boolean).join(" · ");
  return make("li", {}, make("span", { className: "at" }, moment(row.at)), make("div", {}, what, which, make("p", { className: "muted" }, detail)));
}
