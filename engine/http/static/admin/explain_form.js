/** What would become of a message to the user now, and why. It changes nothing. */

import { make } from "../dom.js";
import { moment } from "./format.js";
import { card, chip } from "./table.js";
import { attempt, noteElement, whileChosen } from "./view.js";

const KINDS = /** @type {Record<string, any>} */ ({ deliver: "good", suppress: "bad", conflict: "bad", defer: "warn", digest: "warn", merge: "warn" });

export class ExplainForm {
  /** @type {[string, string]} */ #of = ["", ""];

  /** @param {import("./admin_api.js").AdminApi} api */
  constructor(api) {
    this.api = api;
    const field = { maxLength: 128, autocomplete: "off", spellcheck: false };
    this.type = make("input", { ...field, id: "explain-type", value: "post.liked", required: true });
    this.category = make("input", { ...field, id: "explain-category", placeholder: "none" });
    this.priority = make("select", { id: "explain-priority" }, ...["normal", "high", "low"].map((name) => make("option", {}, name)));
    this.delay = make("input", { id: "explain-delay", type: "number", min: "0", step: "any", placeholder: "none", inputMode: "decimal" });
    const button = make("button", { type: "submit", className: "secondary" }, "Explain");
    const labelled = (/** @type {string} */ text, /** @type {any} */ control) => make("div", {}, make("label", { htmlFor: control.id }, text), control);
    const form = make(
      "form",
      { className: "fields" },
      labelled("Type", this.type),
      labelled("Category", this.category),
      labelled("Priority", this.priority),
      labelled("Delay in seconds", this.delay),
      button,
    );
    this.note = noteElement();
    this.answer = make("div", { className: "answer" });
    this.answer.setAttribute("aria-live", "polite");
    const { card: made, body } = card("user-explain", "Explain a message");
    body.append(form, this.answer, this.note);
    this.element = made;
    form.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.answer.replaceChildren();
      attempt(this.note, button, () => this.#ask());
    });
  }

  /** @param {string} tenant @param {string} user */
  of(tenant, user) {
    this.#of = [tenant, user];
    this.answer.replaceChildren();
    this.note.textContent = `For ${user}, as if it were published now. Nothing is sent.`;
  }

  async #ask() {
    const delay = this.delay.value.trim();
    const [tenant, user] = this.#of;
    const answer = this.api.explain(tenant, {
      user,
      type: this.type.value.trim(),
      priority: this.priority.value,
      ...(this.category.value.trim() && { category: this.category.value.trim() }),
      ...(delay && { delay: Number(delay) }),
    });
    const { decision, reasons, until, seq } = await whileChosen(() => this.#of, answer);
    const when = until ? ` until ${moment(until)}` : seq ? `, number ${seq}` : "";
    this.answer.replaceChildren(
      make("p", {}, chip(KINDS[decision] ?? "plain", decision), when),
      make("ul", { className: "plain" }, ...reasons.map((/** @type {any} */ { code, detail }) => make("li", {}, make("code", {}, code), make("span", {}, detail)))),
    );
  }
}
