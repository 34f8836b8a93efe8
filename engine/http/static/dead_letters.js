/**
 * The newest dead letters, for tokens that may handle them: look at the message, redrive it, drop it. The admin page has the others.
 */

import { byId, fromNow, make } from "./dom.js";

const SHOWN = 2;
const count = new Intl.NumberFormat("en");

export class DeadLetters {
  /** @param {import("./api.js").Api} api @param {string} scope Of the token. */
  constructor(api, scope) {
    this.api = api;
    const scopes = scope.split(" ");
    const allowed = scopes.includes("admin") || scopes.includes("operator");
    this.operator = scopes.includes("operator");
    byId("dead-letters").hidden = !allowed;
    if (!allowed) return;
    byId("dead-refresh").addEventListener("click", () => this.#load());
    this.#load();
  }

  async #load() {
    byId("dead-refresh").disabled = true;
    try {
      const { total, dead_letters: letters } = await this.api.deadLetters(SHOWN);
      byId("dead-total").textContent = total ? count.format(total) : "";
      byId("dead-others").replaceChildren(...(total > SHOWN ? this.#others(total) : []));
      byId("dead-list").replaceChildren(...letters.map((/** @type {any} */ letter) => this.#line(letter)));
      this.#note(letters.length ? "" : "None. A message that a client refuses, because it cannot handle it, would be here.");
    } catch (error) {
      this.#note(`Not available: ${/** @type {any} */ (error).message}`);
    }
    byId("dead-refresh").disabled = false;
  }

  /** Where the others are: the admin page is for operators. @param {number} total */
  #others(total) {
    const all = `All ${count.format(total)}`;
    if (!this.operator) return [`${all}: `, make("code", {}, "engine dead-letters list")];
    return [make("a", { href: "/admin#dead-letters" }, `${all} on the admin page`)];
  }

  /** @param {any} letter */
  #line(letter) {
    const message = make("pre", { tabIndex: 0, ariaLabel: `Message of ${letter.type}` });
    const shown = make("details", {}, make("summary", {}, "Message"), message);
    const button = (/** @type {string} */ word) =>
      make("button", { type: "button", className: "quiet", ariaLabel: `${word} ${letter.type} for ${letter.user}` }, word);
    const [redrive, drop] = [button("Redrive"), button("Drop")];
    const line = make(
      "li",
      { className: "dead" },
      make("p", {}, make("strong", {}, letter.type), ` for ${letter.user}, ${fromNow(letter.at - Date.now())}`),
      make("p", { className: "dead-reason" }, letter.reason || "no reason given"),
      shown,
      make("p", { className: "dead-actions" }, redrive, drop),
    );
    shown.addEventListener("toggle", async () => {
      if (!shown.open || message.textContent) return;
      const found = await this.api.deadLetter(letter.letter).catch((/** @type {Error} */ error) => ({ notification: error.message }));
      message.textContent = JSON.stringify(found.notification, null, 2);
    });
    redrive.addEventListener("click", () => this.#settle(line, () => this.api.redrive(letter.letter)));
    drop.addEventListener("click", () => this.#settle(line, () => this.api.drop(letter.letter)));
    return line;
  }

  /** Redrive or drop one. @param {any} line @param {() => Promise<{status: string, reason?: string}>} act */
  async #settle(line, act) {
    const buttons = [...line.querySelectorAll("button")];
    for (const button of buttons) button.disabled = true;
    try {
      const { status, reason } = await act();
      if (status === "suppressed" || status === "unreadable") throw new Error(`${status}: ${reason}`);
      await this.#load();
      this.#note({ gone: "Somebody else has handled it.", dropped: "Dropped." }[status] ?? `Published again: ${status}.`);
      byId("dead-refresh").focus();
    } catch (error) {
      for (const button of buttons) button.disabled = false;
      this.#note(/** @type {any} */ (error).message);
    }
  }

  /** @param {string} text */
  #note(text) {
    byId("dead-note").textContent = text;
  }
}
