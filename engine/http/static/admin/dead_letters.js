/** The dead letters of a tenant: look at the messages, choose some, redrive or drop them. */

import { fromNow, make } from "../dom.js";
import { count } from "./format.js";
import { card, table } from "./table.js";
import { attempt, noteElement, userAddress, View, whileChosen } from "./view.js";

const PAGE = 50;

/**
 * What `act` gives for pieces that one request may hold.
 * @template T
 * @param {string[]} letters
 * @param {(piece: string[]) => Promise<T>} act
 */
async function inPieces(letters, act) {
  /** @type {T[]} */
  const given = [];
  for (let first = 0; first < letters.length; first += PAGE) given.push(await act(letters.slice(first, first + PAGE)));
  return given;
}

export class DeadLetterView extends View {
  /** @type {any[]} */ #letters = [];
  /** @type {Map<string, any>} */ #boxes = new Map();
  #after = "";
  #tenant = ""; // of the letters that are shown
  #loads = 0; // the last one counts

  /** @param {import("./admin_api.js").AdminApi} api @param {string} tenant */
  constructor(api, tenant) {
    super("dead-letters", "Dead letters", "Messages that clients refused, and actions that were given up. A redrive publishes them again, each once.");
    this.api = api;
    this.tenant = make("input", { id: "dead-tenant", value: tenant, maxLength: 64, required: true, autocomplete: "off", spellcheck: false });
    this.user = make("input", { id: "dead-user", maxLength: 128, autocomplete: "off", spellcheck: false, placeholder: "all" });
    this.form = make(
      "form",
      { className: "query" },
      make("div", {}, make("label", { htmlFor: "dead-tenant" }, "Tenant"), this.tenant),
      make("div", {}, make("label", { htmlFor: "dead-user" }, "User"), this.user),
      make("button", { type: "submit", className: "secondary" }, "Show"),
    );
    this.note = noteElement();
    this.redriveButton = make("button", { type: "button", className: "primary small", disabled: true }, "Redrive chosen");
    this.dropButton = make("button", { type: "button", className: "secondary small", disabled: true }, "Drop chosen");
    this.moreButton = make("button", { type: "button", className: "quiet", hidden: true }, "Older ones");
    this.list = card("dead-letters", "Letters");
    this.list.card.append(this.note, make("div", { className: "actions" }, this.redriveButton, this.dropButton, this.moreButton));
    this.element.append(make("div", { className: "card" }, this.form), this.list.card);
    this.form.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.open();
    });
    this.moreButton.addEventListener("click", () => this.#load(this.#tenant, this.#after));
    this.redriveButton.addEventListener("click", () => this.#settle(this.redriveButton, (tenant, letters) => this.#redrive(tenant, letters)));
    this.dropButton.addEventListener("click", () => this.#settle(this.dropButton, (tenant, letters) => this.#drop(tenant, letters)));
  }

  open() {
    return this.#load(this.tenant.value.trim());
  }

  /** @param {string} tenant @param {string} [after] @param {string} [news] Shown once they are loaded. */
  #load(tenant, after = "", news) {
    return attempt(this.note, after ? this.moreButton : null, async () => {
      this.#loads++;
      const query = { user: this.user.value.trim(), after, limit: PAGE };
      const { total, dead_letters: found, after: more } = await whileChosen(() => this.#loads, this.api.deadLetters(tenant, query));
      this.#tenant = tenant;
      this.#letters = after ? [...this.#letters, ...found] : found;
      this.#after = more ?? "";
      this.moreButton.hidden = !more;
      this.#render();
      return news ?? `${count(this.#letters.length)} of ${count(total)} shown`;
    });
  }

  #render() {
    this.#boxes.clear();
    const all = make("input", { type: "checkbox", ariaLabel: "Choose all" });
    all.addEventListener("change", () => {
      for (const box of this.#boxes.values()) box.checked = all.checked;
      this.#chosenChanged();
    });
    const shown = table(
      "Dead letters",
      [
        { title: "", cell: (letter) => this.#box(letter) },
        { title: "When", cell: ({ at }) => make("time", { dateTime: new Date(at).toISOString(), title: new Date(at).toLocaleString() }, fromNow(at - Date.now())) },
        { title: "User", cell: ({ user }) => make("a", { href: userAddress(this.#tenant, user) }, user), head: true },
        { title: "Type", cell: ({ type, action }) => (action ? `${type}, action ${action}` : type) },
        { title: "Reason", cell: ({ reason }) => make("span", { className: "reason" }, reason || "none given") },
        { title: "Sent", cell: ({ attempts }) => `${attempts} times`, figure: true },
        { title: "Message", cell: (letter) => this.#message(letter) },
      ],
      this.#letters,
    );
    shown.querySelector("th")?.append(all);
    this.list.body.replaceChildren(this.#letters.length ? shown : make("p", { className: "calm" }, "None."));
    this.#chosenChanged();
  }

  /** @param {any} letter */
  #box(letter) {
    const box = make("input", { type: "checkbox", ariaLabel: `Choose ${letter.type} for ${letter.user}` });
    box.addEventListener("change", () => this.#chosenChanged());
    this.#boxes.set(letter.letter, box);
    return box;
  }

  #chosenChanged() {
    this.redriveButton.disabled = this.dropButton.disabled = !this.#chosen.length;
  }

  get #chosen() {
    return [...this.#boxes].filter(([, box]) => box.checked).map(([letter]) => letter);
  }

  /** @param {any} letter */
  #message(letter) {
    const text = make("pre", { tabIndex: 0, ariaLabel: `Message ${letter.id}` });
    const shown = make("details", {}, make("summary", {}, "Show"), text);
    shown.addEventListener("toggle", async () => {
      if (!shown.open || text.textContent) return;
      const found = await this.api.deadLetter(this.#tenant, letter.letter).catch((/** @type {Error} */ error) => ({ notification: error.message }));
      text.textContent = JSON.stringify(found.notification, null, 2);
    });
    return shown;
  }

  /** @param {any} button @param {(tenant: string, letters: string[]) => Promise<string>} act */
  #settle(button, act) {
    return attempt(this.note, button, async () => {
      const news = await act(this.#tenant, this.#chosen);
      await this.#load(this.#tenant, "", news);
      return this.note.textContent;
    }).then(() => this.#chosenChanged());
  }

  /** @param {string} tenant @param {string[]} letters */
  async #redrive(tenant, letters) {
    const results = (await inPieces(letters, (piece) => this.api.redrive(tenant, piece))).flat();
    /** @type {Record<string, number>} */
    const outcomes = {};
    for (const { status, reason } of results) {
      const outcome = reason && status === "suppressed" ? `suppressed (${reason})` : status;
      outcomes[outcome] = (outcomes[outcome] ?? 0) + 1;
    }
    return `Redriven: ${Object.entries(outcomes).map(([outcome, number]) => `${number} ${outcome}`).join(", ")}.`;
  }

  /** @param {string} tenant @param {string[]} letters */
  async #drop(tenant, letters) {
    if (!confirm(`Delete ${letters.length} dead ${letters.length === 1 ? "letter" : "letters"} for good?`)) return "Nothing was deleted.";
    const dropped = await inPieces(letters, (piece) => this.api.drop(tenant, piece));
    return `Dropped ${count(dropped.reduce((sum, more) => sum + more, 0))}.`;
  }
}
