/** A text of rules to write, try and store: a form adds the usual rule to it, and a dry run says what it would change. */

import { make } from "../dom.js";
import { card } from "./table.js";
import { attempt, noteElement } from "./view.js";

/** TOML has JSON's strings. @param {string} text */
const quoted = (text) => JSON.stringify(text);

/** @typedef {{dryRun: (text: string) => Promise<void>, store: (text: string, share: number) => Promise<string>}} Acts */

export class RulesEditor {
  #stored = ""; // or shown

  /** @param {Acts} acts */
  constructor(acts) {
    const { card: made, body } = card("rules-editor", "Write", { note: "A version is a whole text: what it does not have is not in force." });
    this.element = made;
    this.text = make("textarea", { id: "rules-text", rows: 14, spellcheck: false, autocapitalize: "off", className: "code" });
    const field = (/** @type {string} */ name, /** @type {string} */ label, /** @type {object} */ more = {}) => {
      const input = make("input", { id: `rule-${name}`, name, autocomplete: "off", spellcheck: false, maxLength: 200, ...more });
      return make("div", {}, make("label", { htmlFor: input.id }, label), input);
    };
    const add = make("button", { type: "submit", className: "secondary" }, "Add to the text");
    this.form = make(
      "form",
      { className: "fields" },
      field("name", "Name of the rule", { required: true, pattern: "[a-z0-9][a-z0-9._\\-]*", placeholder: "order-paid" }),
      field("event", "Event", { required: true, placeholder: "order.paid" }),
      field("recipients", "Recipients, a path", { required: true, defaultValue: "user" }),
      field("title", "Title", { required: true, placeholder: "Order {data.number} is paid" }),
      field("body", "Text"),
      field("category", "Category"),
      field("delay", "Delay", { placeholder: "none, or 15m" }),
      add,
    );
    this.note = noteElement();
    this.share = make("select", { id: "rules-share" }, ...[["1", "everyone"], ["0.1", "10 % of the users"], ["0", "nobody yet"]].map(([value, word]) => make("option", { value }, word)));
    const tryIt = make("button", { type: "button", className: "secondary" }, "Dry run of the text");
    const store = make("button", { type: "button", className: "primary" }, "Store");
    body.append(
      make("label", { htmlFor: "rules-text" }, "Rules in TOML"),
      this.text,
      make("div", { className: "actions" }, tryIt, make("label", { htmlFor: "rules-share" }, "In force for"), this.share, store),
      this.note,
      make("h3", {}, "The usual rule"),
      this.form,
    );
    this.form.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.#add();
    });
    tryIt.addEventListener("click", () => attempt(this.note, tryIt, () => acts.dryRun(this.text.value)));
    store.addEventListener("click", () => attempt(this.note, store, () => this.#store(acts)));
  }

  get unsaved() {
    return this.text.value !== this.#stored;
  }

  /** @param {Acts} acts */
  async #store(acts) {
    const text = this.text.value;
    const news = await acts.store(text, Number(this.share.value));
    this.#stored = text;
    return news;
  }

  /** @param {string} text */
  show(text) {
    this.text.value = text;
    this.#stored = this.text.value; // with its own ends of lines
    this.note.textContent = "";
  }

  /** The rule of the form, at the end of the text. */
  #add() {
    const given = Object.fromEntries([...new FormData(this.form)].map(([name, value]) => [name, String(value).trim()]));
    const lines = [
      `name = ${quoted(given.name)}`,
      `event = ${quoted(given.event)}`,
      `recipients = [${quoted(given.recipients)}]`,
      `type = ${quoted(given.event)}`,
      `title = ${quoted(given.title)}`,
      ...["body", "category", "delay"].filter((name) => given[name]).map((name) => `${name} = ${quoted(given[name])}`),
    ];
    const before = this.text.value.trimEnd();
    this.text.value = `${before}${before && "\n\n"}[[rule]]\n${lines.join("\n")}\n`;
    this.form.reset();
    this.text.focus();
  }
}
