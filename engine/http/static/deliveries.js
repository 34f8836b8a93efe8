/**
 * What arrived on this page, newest first, and what became of it: which attempt it was, whether it had been missed, who acknowledged it.
 * The bell has the user's inbox, which the engine keeps; this is what one device saw of it, since the page was loaded.
 *
 * Events: `change`, `acknowledge` `[message]` when the user acknowledges some, and `answer` `{message, answer, text}` when the user answers one.
 */

import { contentOf } from "./client/elements/content.js";
import { outcomeOf, questionOf } from "./client/elements/question.js";
import { dress } from "./client/elements/style.js";
import { fromNow, textOf, wording, wordsFor } from "./client/elements/wording.js";
import { byId, icon, make } from "./dom.js";

const KEPT = 50;
const RAW_CHARS = 280; // of data without a title
const SETTLED = { no: "not acknowledged yet", yes: "acknowledged", elsewhere: "acknowledged in the inbox, or on another device" };

/** @typedef {import("./client/notify_client.js").Message} Message */
/** @typedef {{message: Message, resumed: boolean, settled: keyof typeof SETTLED, element?: any}} Delivery */

/** The actor's name, to be shown. @param {any} actor */
function nameOf(actor) {
  if (actor === null || actor === undefined) return "";
  return textOf(typeof actor === "object" ? (actor.name ?? actor.login ?? actor.id ?? "") : actor);
}

/** Title and text; the data itself where it has neither. @param {Message} message @returns {[string, string]} */
function described(message) {
  const [title, text] = wording(message);
  const { data } = message;
  const raw = !text && title === message.type && data !== null && typeof data === "object" && Object.keys(data).length > 0;
  return [title, raw ? JSON.stringify(data).slice(0, RAW_CHARS) : text];
}

export class Deliveries extends EventTarget {
  /** @type {Map<string, Delivery>} by id, oldest first */ #known = new Map();
  /** @type {Map<string, string>} what is being typed, by id of the question */ #typed = new Map();
  #list = byId("messages");

  constructor() {
    super();
    dress(document, "content");
    setInterval(() => this.#tellTime(), 5000);
  }

  /** Whether this message has arrived here. @param {string} id */
  has(id) {
    return this.#known.has(id);
  }

  /** Messages that nobody has acknowledged yet. */
  get unsettled() {
    return [...this.#known.values()].filter(({ settled }) => settled === "no").map(({ message }) => message);
  }

  /** @param {Message} message @param {{resumed: boolean, settled: boolean}} how */
  add(message, { resumed, settled }) {
    const delivery = { message, resumed, settled: /** @type {const} */ (settled ? "yes" : "no"), element: null };
    const replaced = this.#known.get(message.replaces ?? "");
    delivery.element = this.#draw(delivery);
    delivery.element.classList.add("fresh");
    if (replaced?.settled === "no" || (replaced && message.answer)) {
      const hadFocus = replaced.element.contains(document.activeElement);
      replaced.element.replaceWith(delivery.element);
      if (hadFocus) byId("deliveries").focus();
      this.#known.delete(replaced.message.id);
      if (replaced.settled === "no") this.#acknowledge([replaced.message]);
    } else this.#list.prepend(delivery.element);
    this.#known.set(message.id, delivery);
    if (this.#known.size > KEPT) {
      const oldest = [...this.#known.values()].find(({ settled }) => settled !== "no"); // the others are still to be acknowledged
      oldest?.element.remove();
      this.#known.delete(oldest?.message.id ?? "");
    }
    this.#changed();
  }

  /** It came again: show which attempt it is. @param {Message} message */
  again({ id, attempt }) {
    const delivery = this.#known.get(id);
    if (!delivery) return;
    delivery.message.attempt = attempt;
    this.#redraw(delivery);
  }

  acknowledgeAll() {
    this.#acknowledge(this.unsettled);
  }

  /** They are acknowledged now. Returns how many were not before. @param {string[]} ids @param {"yes" | "elsewhere"} how */
  settle(ids, how) {
    let settled = 0;
    for (const id of ids) {
      const delivery = this.#known.get(id);
      if (delivery?.settled !== "no") continue;
      delivery.settled = how;
      settled++;
      this.#redraw(delivery);
    }
    this.#changed();
    return settled;
  }

  /** @param {Message[]} messages */
  #acknowledge(messages) {
    this.settle(messages.map(({ id }) => id), "yes");
    this.dispatchEvent(new CustomEvent("acknowledge", { detail: messages }));
  }

  /** What became of it. Its question stays as it is: somebody may be typing the answer. @param {Delivery} delivery */
  #redraw(delivery) {
    const { element, settled } = delivery;
    const foot = element.querySelector(".message-foot");
    const hadFocus = foot.contains(document.activeElement);
    element.classList.toggle("waiting", settled === "no");
    const again = this.#foot(delivery);
    foot.replaceWith(again);
    if (hadFocus) (again.querySelector("button") ?? byId("deliveries")).focus();
  }

  /** @param {Delivery} delivery */
  #draw(delivery) {
    const { message, settled } = delivery;
    const words = described(message);
    const actor = nameOf(message.actor);
    const at = new Date(message.due ?? message.ts);
    const time = make("time", { dateTime: at.toISOString(), title: at.toLocaleString() }, fromNow(at.getTime() - Date.now(), "en"));
    const initial = [...(actor || message.type)][0]?.toUpperCase() ?? "";
    const tone = [...(actor || message.type)].reduce((sum, letter) => sum + (letter.codePointAt(0) ?? 0), 0) % 6;
    return make(
      "li",
      { className: settled === "no" ? "message waiting" : "message", data: { id: message.id } },
      make("span", { className: "avatar", ariaHidden: "true", data: { tone } }, initial),
      make(
        "div",
        {},
        contentOf(message, time, { words }),
        outcomeOf(message, wordsFor(this.#list)),
        questionOf(message, words[0], wordsFor(this.#list), this.#typed, (answer, text) =>
          this.dispatchEvent(new CustomEvent("answer", { detail: { message, answer, text } })),
        ),
        this.#foot(delivery),
      ),
    );
  }

  /** @param {Delivery} delivery */
  #foot({ message, resumed, settled }) {
    const actor = nameOf(message.actor);
    const button = make("button", { type: "button", className: "quiet", ariaLabel: `Acknowledge: ${described(message)[0]}` }, "Acknowledge");
    button.addEventListener("click", () => this.#acknowledge([message]));
    return make(
      "div",
      { className: "message-foot" },
      make("code", {}, message.type),
      message.priority !== "normal" && make("span", { className: "chip", data: { kind: message.priority } }, message.priority),
      actor && make("span", {}, `by ${actor}`),
      make("span", {}, `#${message.seq}`),
      message.count && make("span", { className: "chip" }, `${message.count} in one`),
      message.attempt > 1 && make("span", { className: "chip", data: { kind: "again" } }, `attempt ${message.attempt}`),
      resumed && make("span", { className: "chip", data: { kind: "resumed" } }, "caught up"),
      make("span", { className: settled === "no" ? "ack" : "ack done" }, settled !== "no" && icon("check"), SETTLED[settled]),
      settled === "no" && button,
    );
  }

  #tellTime() {
    for (const { message, element } of this.#known.values()) {
      element.querySelector("time").textContent = fromNow((message.due ?? message.ts) - Date.now(), "en");
    }
  }

  #changed() {
    byId("empty").hidden = this.#known.size > 0;
    byId("acknowledge-all").disabled = this.unsettled.length === 0;
    this.dispatchEvent(new Event("change"));
  }
}
