/**
 * `<notification-bell>`: a button with the number of unread notifications, which opens a `<notification-inbox>`.
 *
 * Set its property `client`. Escape and a click elsewhere close it; the keyboard is back on the button then. While it is open, the arrow keys
 * move from the button into the inbox.
 */

import { modelOf } from "./inbox_model.js";
import { dress } from "./style.js";
import { wording, wordsFor } from "./wording.js";

const BADGE_MAX = 99;
const MARGIN_PX = 8; // between the panel and the edge of the window
const ICON =
  '<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M12 3a5.5 5.5 0 0 0-5.5 5.5v3.3L5 15.2a.8.8 0 0 0 .7 1.1h12.6a.8.8 0 0 0 .7-1.1l-1.5-3.4V8.5A5.5 5.5 0 0 0 12 3z"/>' +
  '<path d="M10 19.3a2.2 2.2 0 0 0 4 0"/></svg>';

const Base = /** @type {typeof HTMLElement} */ (globalThis.HTMLElement ?? class {}); // in Node.js it can be imported all the same

export class NotificationBell extends Base {
  /** @type {import("./inbox_model.js").InboxModel | null} */ #model = null;
  /** @type {AbortController | null} */ #listening = null;
  /** @type {Record<string, any>} */ #parts;

  constructor() {
    super();
    const root = this.attachShadow({ mode: "open" });
    dress(root, "bell");
    root.innerHTML = `<button type="button" class="bell" part="button" aria-haspopup="dialog" aria-expanded="false">${ICON}<span class="badge" part="badge"
      aria-hidden="true" hidden></span></button><div class="panel" part="panel" role="dialog" hidden></div><p class="unseen" role="status"></p>`;
    const find = (/** @type {string} */ selector) => root.querySelector(selector);
    this.#parts = { button: find(".bell"), badge: find(".badge"), panel: find(".panel"), status: find("[role=status]") };
    this.#parts.button.addEventListener("click", () => this.toggle());
    root.addEventListener("keydown", (event) => this.#pressed(/** @type {KeyboardEvent} */ (event)));
  }

  /** @returns {import("../notify_client.js").NotifyClient | null} */
  get client() {
    return this.#model?.client ?? null;
  }

  set client(client) {
    this.#model = client ? modelOf(client) : null;
    if (this.#parts.panel.firstChild) this.#parts.panel.firstChild.client = client;
    if (this.isConnected) this.connectedCallback();
  }

  /** Whether the inbox is shown. */
  get open() {
    return !this.#parts.panel.hidden;
  }

  set open(open) {
    if (open === this.open) return;
    const { button, panel } = this.#parts;
    if (open && !panel.firstChild) {
      panel.append(Object.assign(document.createElement("notification-inbox"), { client: this.client }));
    }
    panel.hidden = !open;
    if (open) this.#keepInside();
    button.setAttribute("aria-expanded", String(open));
    (open ? panel.firstChild : button).focus();
  }

  /** @param {KeyboardEvent} event */
  #pressed(event) {
    if (!this.open) return;
    const { button, panel } = this.#parts;
    if (event.key === "Escape") {
      event.stopPropagation();
      this.open = false;
    } else if (event.target === button && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      panel.firstChild.focus();
    }
  }

  /** The panel hangs from the end of the bell; near an edge of the window it is moved as far as it needs. */
  #keepInside() {
    const { panel } = this.#parts;
    panel.style.translate = "none";
    const { left, width } = panel.getBoundingClientRect();
    const most = document.documentElement.clientWidth - width - MARGIN_PX;
    panel.style.translate = `${Math.max(MARGIN_PX, Math.min(left, most)) - left}px`;
  }

  toggle() {
    this.open = !this.open;
  }

  connectedCallback() {
    this.disconnectedCallback();
    this.#listening = new AbortController();
    const { signal } = this.#listening;
    this.#model?.addEventListener("change", () => this.#draw(), { signal });
    this.#model?.addEventListener("arrived", (/** @type {any} */ event) => this.#ring(event.detail), { signal });
    if (!this.client?.options.counts) this.#model?.show(); // only the messages tell how many are unread
    const elsewhere = (/** @type {Event} */ event) => {
      if (this.open && !event.composedPath().includes(this)) this.open = false;
    };
    document.addEventListener("pointerdown", elsewhere, { signal });
    this.#draw();
  }

  disconnectedCallback() {
    this.#listening?.abort();
  }

  #draw() {
    const unread = this.#model?.unread ?? 0;
    const words = wordsFor(this);
    const { button, badge, panel } = this.#parts;
    badge.hidden = unread === 0;
    badge.textContent = unread > BADGE_MAX ? `${BADGE_MAX}+` : String(unread);
    button.ariaLabel = words.bell(unread);
    panel.ariaLabel = words.title;
  }

  /** @param {import("./inbox_model.js").Message} message */
  #ring(message) {
    const { button, status } = this.#parts;
    status.textContent = wordsFor(this).arrived(wording(message)[0]);
    button.classList.remove("ring");
    requestAnimationFrame(() => button.classList.add("ring"));
  }
}
