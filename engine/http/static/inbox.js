/**
 * The inbox: what arrived, newest first, and what became of it. Kept in the tab's session storage so that a reload shows it
 * again; the engine does not, because what was acknowledged is gone from its queues.
 *
 * Events: `change` when the number of unread messages may have changed; `read` `[message]` when the user read some.
 */

import { byId, fromNow, icon, make } from "./dom.js";

const KEPT = 50;
const STORAGE_KEY = "engine.inbox";

/** @typedef {import("./client.js").Message} Message */
/** @typedef {{message: Message, unread: boolean, resumed: boolean, settled: "no" | "yes" | "elsewhere"}} Entry */

/** What to show of a message whose data may be anything. @param {Message} message @returns {[string, string]} title and text */
export function wording({ type, data, text }) {
  if (text) return [String(data?.title ?? data?.subject ?? type), text];
  if (data === null || typeof data !== "object") return [type, data === undefined || data === null ? "" : String(data)];
  const title = data.title ?? data.subject ?? type;
  const known = data.body ?? data.text ?? data.message;
  const rest = data.title === undefined && Object.keys(data).length ? JSON.stringify(data).slice(0, 280) : "";
  return [String(title), known === undefined ? rest : String(known)];
}

/** The actor's name, to be shown. @param {any} actor */
function nameOf(actor) {
  if (actor === null || actor === undefined) return "";
  return String(typeof actor === "object" ? (actor.name ?? actor.login ?? actor.id ?? "") : actor);
}

/** Where a message leads; empty when a browser would not open a page there. @param {Message} message */
export function linkOf({ url }) {
  const base = location.href;
  if (typeof url !== "string" || !URL.canParse(url, base)) return "";
  const { protocol, href } = new URL(url, base);
  return protocol === "http:" || protocol === "https:" ? href : "";
}

export class Inbox extends EventTarget {
  /** @type {Map<string, Entry & {element: any}>} by id, oldest first */ #entries = new Map();
  #list = byId("messages");

  constructor() {
    super();
    for (const entry of JSON.parse(sessionStorage.getItem(STORAGE_KEY) ?? "[]")) this.#insert(entry);
    this.#changed();
    setInterval(() => this.#tellTime(), 5000);
  }

  get unread() {
    return [...this.#entries.values()].filter((entry) => entry.unread).length;
  }

  /** Messages shown and not acknowledged yet. */
  get unsettled() {
    return [...this.#entries.values()].filter((entry) => entry.settled === "no").map((entry) => entry.message);
  }

  /** @param {Message} message @param {{resumed: boolean, settled: boolean}} how */
  add(message, { resumed, settled }) {
    this.#entries.get(message.id)?.element.remove(); // known from before a reload
    this.#entries.delete(message.id);
    const entry = { message, unread: true, resumed, settled: settled ? "yes" : "no" };
    const replaced = this.#entries.get(message.replaces ?? "");
    if (replaced?.unread) this.#replace(replaced, entry);
    else this.#insert(entry, true);
    if (this.#entries.size > KEPT) {
      const [oldest, entry] = /** @type {[string, any]} */ (this.#entries.entries().next().value);
      entry.element.remove();
      this.#entries.delete(oldest);
    }
    this.#changed();
  }

  /** It came again: show which attempt it is. @param {Message} message */
  again({ id, attempt }) {
    const entry = this.#entries.get(id);
    if (!entry) return;
    entry.message.attempt = attempt;
    this.#redraw(entry);
  }

  /** Mark as read. @param {string[]} ids */
  read(ids) {
    const read = [];
    for (const id of ids) {
      const entry = this.#entries.get(id);
      if (!entry?.unread) continue;
      read.push(entry.message);
      entry.unread = false;
      if (entry.settled === "no") entry.settled = "yes";
      this.#redraw(entry);
    }
    this.dispatchEvent(new CustomEvent("read", { detail: read }));
    this.#changed();
  }

  readAll() {
    this.read([...this.#entries.keys()]);
  }

  /** They are acknowledged now. @param {string[]} ids @param {"yes" | "elsewhere"} how */
  settle(ids, how) {
    for (const id of ids) {
      const entry = this.#entries.get(id);
      if (!entry || (how === "elsewhere" && entry.settled === "yes")) continue;
      entry.settled = how;
      if (how === "elsewhere") entry.unread = false;
      this.#redraw(entry);
    }
    this.#changed();
  }

  clear() {
    for (const { element } of this.#entries.values()) element.remove();
    this.#entries.clear();
    this.#changed();
  }

  /** @param {Entry} entry */
  #insert(entry, fresh = false) {
    const element = this.#draw(entry);
    if (fresh) element.classList.add("fresh");
    this.#list.prepend(element);
    this.#entries.set(entry.message.id, { ...entry, element });
  }

  /** One card takes the place of another. @param {Entry & {element: any}} old @param {Entry} entry */
  #replace(old, entry) {
    const next = { ...old, ...entry };
    this.#entries = new Map([...this.#entries.values()].map((kept) => (kept === old ? next : kept)).map((kept) => [kept.message.id, kept]));
    this.#redraw(next);
    next.element.classList.add("fresh");
  }

  /** @param {Entry & {element: any}} entry */
  #redraw(entry) {
    const hadFocus = entry.element.contains(document.activeElement);
    const element = this.#draw(entry);
    entry.element.replaceWith(element);
    entry.element = element;
    if (hadFocus) (element.querySelector("button") ?? byId("inbox")).focus();
  }

  /** @param {Entry} entry */
  #draw({ message, unread, resumed, settled }) {
    const [title, text] = wording(message);
    const actor = nameOf(message.actor);
    const link = linkOf(message);
    const at = new Date(message.ts);
    const initial = [...(actor || message.type)][0]?.toUpperCase() ?? "";
    const tone = [...(actor || message.type)].reduce((sum, letter) => sum + (letter.codePointAt(0) ?? 0), 0) % 6;
    const acked = { no: "not acknowledged yet", yes: "acknowledged", elsewhere: "handled on another device" }[settled];
    const button = make("button", { type: "button", className: "quiet", ariaLabel: `Mark as read: ${title}` }, "Mark as read");
    button.addEventListener("click", () => this.read([message.id]));
    return make(
      "li",
      { className: unread ? "message unread" : "message", data: { id: message.id } },
      make("span", { className: "avatar", ariaHidden: "true", data: { tone } }, initial),
      make(
        "div",
        {},
        make(
          "div",
          { className: "message-head" },
          make(
            "p",
            { className: "message-title" },
            unread && make("span", { className: "unseen" }, "Unread: "),
            link ? make("a", { href: link, target: "_blank", rel: "noopener noreferrer" }, title) : title,
          ),
          make("time", { dateTime: at.toISOString(), title: at.toLocaleString() }, fromNow(message.ts - Date.now())),
        ),
        text && make("p", { className: "message-body" }, text),
        make(
          "div",
          { className: "message-foot" },
          make("code", {}, message.type),
          message.priority !== "normal" && make("span", { className: "chip", data: { kind: message.priority } }, message.priority),
          actor && make("span", {}, `by ${actor}`),
          make("span", {}, `#${message.seq}`),
          message.count && make("span", { className: "chip" }, `${message.count} in one`),
          message.attempt > 1 && make("span", { className: "chip", data: { kind: "again" } }, `attempt ${message.attempt}`),
          resumed && make("span", { className: "chip", data: { kind: "resumed" } }, "caught up"),
          make("span", { className: settled === "no" ? "ack" : "ack done" }, settled !== "no" && icon("check"), acked),
          unread && button,
        ),
      ),
    );
  }

  #tellTime() {
    for (const { message, element } of this.#entries.values()) {
      element.querySelector("time").textContent = fromNow(message.ts - Date.now());
    }
  }

  #changed() {
    byId("empty").hidden = this.#entries.size > 0;
    const entries = [...this.#entries.values()].map(({ element, ...entry }) => entry);
    sessionStorage.setItem(STORAGE_KEY, JSON.stringify(entries));
    this.dispatchEvent(new Event("change"));
  }
}
