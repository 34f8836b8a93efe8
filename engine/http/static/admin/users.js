/** One user's world: where it is, what waits for it, what was decided about it, and what would become of a message. */

import { make } from "../dom.js";
import { ExplainForm } from "./explain_form.js";
import { History } from "./history.js";
import { userCards } from "./user_cards.js";
import { attempt, noteElement, userAddress, View, whileChosen } from "./view.js";

export class Users extends View {
  #tenant = "";
  #user = "";

  /** @param {import("./admin_api.js").AdminApi} api @param {string} tenant */
  constructor(api, tenant) {
    super("users", "Users", "Where a user is, what waits, and what became of each message.");
    this.api = api;
    const field = { maxLength: 128, required: true, autocomplete: "off", spellcheck: false };
    this.tenant = make("input", { ...field, id: "user-tenant", value: tenant });
    this.user = make("input", { ...field, id: "user-name", placeholder: "alice" });
    this.button = make("button", { type: "submit", className: "primary" }, "Look");
    this.note = noteElement();
    const form = make(
      "form",
      { className: "query" },
      make("div", {}, make("label", { htmlFor: "user-tenant" }, "Tenant"), this.tenant),
      make("div", {}, make("label", { htmlFor: "user-name" }, "User"), this.user),
      this.button,
    );
    this.cards = make("div", { className: "world" });
    this.history = new History(api);
    this.explain = new ExplainForm(api);
    this.around = make("div", { className: "grid two", hidden: true }, this.history.element, this.explain.element);
    this.element.append(make("div", { className: "card" }, form, this.note), this.cards, this.around);
    form.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      const address = userAddress(this.tenant.value.trim(), this.user.value.trim());
      if (location.hash === address) this.open([this.#tenant, this.#user]);
      else location.hash = address;
    });
  }

  /** @param {any} status */
  show({ archivists = [] }) {
    this.history.kept = archivists.length > 0;
  }

  /** @param {string[]} words */
  open([tenant, ...rest]) {
    const user = rest.join("/");
    if (!tenant || !user) return;
    if (tenant !== this.#tenant || user !== this.#user) {
      this.cards.replaceChildren();
      this.around.hidden = true;
    }
    [this.#tenant, this.#user] = [tenant, user];
    [this.tenant.value, this.user.value] = [tenant, user];
    attempt(this.note, this.button, async () => {
      const report = await whileChosen(() => userAddress(this.#tenant, this.#user), this.api.user(tenant, user));
      this.cards.replaceChildren(...userCards(report, (id) => this.history.look(tenant, user, id)));
      this.around.hidden = false;
      this.explain.of(tenant, user);
      await this.history.of(tenant, user);
    });
  }
}
