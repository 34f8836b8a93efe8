/**
 * `<notification-inbox>`: the newest notifications of a client, unread ones first to the eye, in a list.
 *
 * Set its property `client`. With the keyboard: arrow keys, Home and End move between messages, Enter opens one. Opening a message marks it
 * as read and fires `notification-open` (the message; cancelable: `preventDefault()` keeps the browser from following its link).
 */

import { contentOf, make } from "./content.js";
import { showGrowing } from "./growing.js";
import { modelOf } from "./inbox_model.js";
import { outcomeOf, questionOf } from "./question.js";
import { snoozeChoice } from "./snooze.js";
import { dress } from "./style.js";
import { fromNow, languageOf, wording, wordsFor } from "./wording.js";

const TIME_STEP_MS = 30_000;
const PAUSE_MS = 100; // between two drawings
const CONFLICT = 409; // a question has another answer

// In Node.js, where a page is rendered before it is sent, there are no elements; the module can be imported there all the same.
const Base = /** @type {typeof HTMLElement} */ (globalThis.HTMLElement ?? class {});

export class NotificationInbox extends Base {
  /** @type {import("./inbox_model.js").InboxModel | null} */ #model = null;
  /** @type {AbortController | null} */ #listening = null;
  /** @type {Set<string>} */ #drawn = new Set();
  #clock = 0;
  #timer = 0; // of the next drawing; 0: it shows what there is
  #drawnMs = -Infinity;
  /** @type {string | null} the message for which a time is being chosen */ #choosing = null;
  /** @type {Map<string, string>} what is being typed, by id of the question */ #typed = new Map();
  #composing = false; // with an input method: a field that is drawn anew would lose it
  /** @type {Record<string, any>} */ #parts;

  constructor() {
    super();
    const root = this.attachShadow({ mode: "open" });
    dress(root, "inbox");
    const title = make("h2", { id: "title" });
    const readAll = make("button", { type: "button" });
    const growing = make("ul", { hidden: true });
    const list = make("ul");
    const empty = make("p", { className: "empty" });
    const problem = make("p", { className: "problem", hidden: true });
    const more = make("button", { type: "button", className: "more" });
    list.setAttribute("aria-labelledby", "title");
    problem.setAttribute("role", "alert");
    this.#parts = { title, readAll, growing, list, empty, problem, more };
    root.append(make("div", { className: "head" }, title, readAll), growing, list, empty, more, problem);
    readAll.addEventListener("click", () => this.#attempt(this.#model?.readAll()));
    more.addEventListener("click", () => this.#attempt(this.#model?.more()));
    root.addEventListener("keydown", (event) => this.#pressed(/** @type {KeyboardEvent} */ (event)));
    root.addEventListener("compositionstart", () => (this.#composing = true));
    root.addEventListener("compositionend", () => {
      this.#composing = false;
      this.#draw();
    });
  }

  /** @returns {import("../notify_client.js").NotifyClient | null} */
  get client() {
    return this.#model?.client ?? null;
  }

  set client(client) {
    this.#model = client ? modelOf(client) : null;
    if (this.isConnected) this.connectedCallback();
  }

  connectedCallback() {
    this.disconnectedCallback();
    this.#listening = new AbortController();
    this.#model?.addEventListener("change", () => this.#changed(), { signal: this.#listening.signal });
    this.#model?.show();
    this.#parts.growing.replaceChildren();
    if (this.client) showGrowing(this.client, this.#parts.growing, this.#listening.signal);
    this.#clock = window.setInterval(() => this.#tellTime(), TIME_STEP_MS);
    this.#draw();
  }

  disconnectedCallback() {
    this.#composing = false;
    this.#listening?.abort();
    clearInterval(this.#clock);
  }

  /** Moves the keyboard to the newest message, or to the title. */
  focus() {
    const first = this.#parts.list.querySelector("li");
    if (first) return first.focus();
    this.#parts.title.tabIndex = -1;
    this.#parts.title.focus();
  }

  /** Drawn with each message of a burst, a list of hundreds would leave the page no time for anything else. */
  #changed() {
    this.#parts.problem.hidden = true;
    this.#timer ||= window.setTimeout(() => {
      this.#timer = 0;
      this.#draw();
      this.#drawnMs = performance.now();
    }, this.#drawnMs + PAUSE_MS - performance.now());
  }

  #draw() {
    if (this.#composing) return;
    const words = wordsFor(this);
    const { title, readAll, list, empty, more } = this.#parts;
    const root = /** @type {ShadowRoot} */ (this.shadowRoot);
    const held = /** @type {any} */ (root.activeElement);
    const entries = this.#model?.entries ?? [];
    const focused = list.querySelector("li:focus-within")?.dataset.id;
    const focusedAction = this.#focusedAction();
    const { selectionStart, selectionEnd } = held ?? {};
    title.textContent = words.title;
    readAll.textContent = words.readAll;
    readAll.disabled = !this.#model?.unread;
    more.textContent = words.more;
    more.hidden = !this.#model?.hasMore;
    empty.textContent = words.empty;
    empty.hidden = entries.length > 0;
    list.hidden = entries.length === 0;
    list.replaceChildren(...entries.map((entry, at) => this.#item(entry, at === 0, words)));
    this.#drawn = new Set(entries.map(({ message }) => message.id));
    if (focused !== undefined) {
      const again = [...list.children].find((item) => item.dataset.id === focused) ?? list.firstElementChild;
      const one = focusedAction ? (again?.querySelector(focusedAction) ?? again) : again;
      one?.focus();
      if (one?.matches("input")) one.setSelectionRange(selectionStart, selectionEnd);
    }
    const lost = held && (held.disabled || held.hidden || !held.isConnected);
    if (lost && [null, held].includes(root.activeElement)) this.focus(); // Escape closes a bell from within only
  }

  /** The selector of the button, or the field, of a message that has the keyboard; "" for none. */
  #focusedAction() {
    const { className, dataset } = /** @type {HTMLElement} */ (this.shadowRoot?.activeElement ?? this);
    if (dataset.answer !== undefined) return `[data-answer="${CSS.escape(dataset.answer)}"]`;
    return className && className.trim() && `.${className.split(" ")[0]}`;
  }

  /** @param {import("./inbox_model.js").Entry} entry @param {boolean} first @param {ReturnType<typeof wordsFor>} words */
  #item({ message, read }, first, words) {
    const [title] = wording(message);
    const at = new Date(message.due ?? message.ts);
    const time = make("time", { dateTime: at.toISOString(), title: at.toLocaleString(languageOf(this)) });
    time.textContent = fromNow(at.getTime() - Date.now(), languageOf(this));
    const action = (/** @type {string} */ name, /** @type {string} */ label, /** @type {() => Promise<void> | undefined} */ run) => {
      const button = make("button", { type: "button", className: name, ariaLabel: `${label}: ${title}` }, label);
      button.addEventListener("click", () => this.#attempt(run()));
      return button;
    };
    const markRead = !read && action("read", words.read, () => this.#model?.read([message.id]));
    const archive = Boolean(this.#model?.canArchive) && action("archive", words.archive, () => this.#model?.archive(message.id));
    const choose = (/** @type {boolean} */ open) => {
      if (open) this.#choosing = message.id;
      else if (this.#choosing === message.id) this.#choosing = null;
    };
    const snooze = (/** @type {Date} */ until) => this.#attempt(this.#model?.snooze(message.id, until));
    const later = Boolean(this.#model?.canArchive) && snoozeChoice(title, words, this.#choosing === message.id, choose, snooze);
    const answer = (/** @type {string | null} */ which, /** @type {string} */ text) => this.#attempt(this.#answer(message, which, text));
    const item = make(
      "li",
      { className: `${read ? "" : "unread"} ${this.#drawn.has(message.id) || !this.#drawn.size ? "" : "fresh"}`.trim(), tabIndex: first ? 0 : -1 },
      contentOf(message, time, { before: !read && make("span", { className: "unseen" }, `${words.unread}: `), tabIndex: -1 }),
      outcomeOf(message, words),
      questionOf(message, title, words, this.#typed, answer),
      (markRead || archive) && make("div", { className: "actions" }, markRead, archive, later),
    );
    item.part.add("item");
    item.dataset.id = message.id;
    item.addEventListener("click", (event) => this.#opened(event, message));
    return item;
  }

  /** @param {import("./inbox_model.js").Message} message @param {string | null} answer @param {string} text */
  async #answer(message, answer, text) {
    await this.#model?.answer(message, answer, text);
    this.#typed.delete(message.id);
  }

  /** A message was clicked, but not one of its buttons. @param {Event} event @param {import("./inbox_model.js").Message} message */
  #opened(event, message) {
    const onLink = /** @type {Element} */ (event.target).closest("a") !== null;
    if (/** @type {Element} */ (event.target).closest("button, details, .question")) return;
    const init = { detail: message, bubbles: true, composed: true, cancelable: true };
    if (!this.dispatchEvent(new CustomEvent("notification-open", init)) && onLink) event.preventDefault();
    this.#attempt(this.#model?.read([message.id]));
  }

  /** @param {KeyboardEvent} event */
  #pressed(event) {
    const items = /** @type {HTMLElement[]} */ ([...this.#parts.list.children]);
    const at = items.findIndex((item) => item.matches(":focus-within"));
    const last = items.length - 1;
    const to = { ArrowDown: at + 1, ArrowUp: at < 0 ? last : at - 1, Home: 0, End: last }[event.key];
    if (event.key === "Enter" && items[at] && event.target === items[at]) {
      (items[at].querySelector("a") ?? items[at]).click();
    } else if (to !== undefined && items[to]) {
      for (const item of items) item.tabIndex = -1;
      items[to].tabIndex = 0;
      items[to].focus();
    } else return;
    event.preventDefault();
  }

  #tellTime() {
    for (const time of this.#parts.list.querySelectorAll("time")) {
      time.textContent = fromNow(new Date(time.dateTime).getTime() - Date.now(), languageOf(this));
    }
  }

  /** @param {Promise<void> | undefined} doing */
  async #attempt(doing) {
    try {
      await doing;
    } catch (error) {
      const { status, message } = /** @type {{status?: number, message: string}} */ (error);
      this.#parts.problem.textContent = status === CONFLICT ? wordsFor(this).late(message) : wordsFor(this).failed;
      this.#parts.problem.hidden = false;
    }
  }
}
