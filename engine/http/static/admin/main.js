/**
 * The admin page: signs in, chooses the view by the address (`#users/default/alice`), and asks for the status every two seconds. A
 * tenant's admin, who is no operator, sees the rules of the tenant only.
 *
 * What the engine knows of users and messages is shown as text only; the page has no other origin to talk to.
 */

import { readClaims } from "../client.js";
import { byId, make } from "../dom.js";
import { followAddress, leave, signIn, takeToken, wireCopyButtons } from "../sign_in.js";
import { AdminApi } from "./admin_api.js";
import { DeadLetterView } from "./dead_letters.js";
import { Overview } from "./overview.js";
import { Problems } from "./problems.js";
import { RulesView } from "./rules.js";
import { Tenants } from "./tenants.js";
import { Users } from "./users.js";

const EVERY_MS = 2000;
const NEEDED = "This token has neither the scope operator nor admin. Make one that has, in a terminal:";

class Admin {
  /** @param {string} token @param {boolean} operator */
  constructor(token, operator) {
    const claims = readClaims(token);
    const api = (this.api = new AdminApi(token));
    const tenant = String(claims.tenant ?? "default");
    this.views = operator
      ? [new Overview(api, tenant), new Users(api, tenant), new DeadLetterView(api, tenant), new Problems(api), new Tenants(api, tenant), new RulesView(api)]
      : [new RulesView(api, tenant)];
    this.view = this.views[0];
    byId("admin").hidden = byId("pill").hidden = byId("sign-out").hidden = false;
    byId("views").append(...this.views.map(({ element }) => element));
    byId("nav").append(...this.views.map(({ name, title }) => make("a", { href: `#${name}` }, title)));
    byId("sign-out").addEventListener("click", () => leave());
    window.addEventListener("hashchange", () => this.#open(true));
    this.#open(false);
    if (!operator) return this.#state("open", `Tenant ${tenant}`);
    document.addEventListener("visibilitychange", () => this.#look());
    this.#run();
  }

  /** Show the view that the address names. @param {boolean} moved The reader has chosen it just now. */
  #open(moved) {
    const [name, ...words] = location.hash.slice(1).split("/").map(decoded);
    const view = this.views.find((one) => one.name === name);
    if (!view && moved && name) return; // a link within the view
    this.view = view ?? this.views[0];
    for (const one of this.views) one.element.hidden = one !== this.view;
    for (const link of byId("nav").children) {
      if (link.getAttribute("href") === `#${this.view.name}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.title = `${this.view.title} · Engine admin`;
    this.view.open(words);
    if (this.status) this.view.show(this.status);
    if (moved && !this.view.element.contains(document.activeElement)) this.view.heading.focus();
  }

  async #run() {
    for (;;) {
      await this.#look();
      await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
    }
  }

  async #look() {
    if (document.visibilityState !== "visible") return;
    try {
      this.status = await this.api.status();
      this.#state(this.status.ready ? "open" : "reconnecting", this.status.ready ? `Ready, version ${this.status.version}` : "Not everything is ready");
      this.view.show(this.status);
    } catch (error) {
      const { status, message } = /** @type {any} */ (error);
      if (status === 401 && !this.views.some(({ unsaved }) => unsaved)) leave("The token has expired, or belongs to another engine. Make a new one in a terminal:");
      else if (status === 403) leave(NEEDED);
      else this.#state("offline", `No status: ${message}`);
    }
  }

  /** @param {string} state @param {string} text */
  #state(state, text) {
    byId("pill").dataset.state = state;
    if (byId("pill-text").textContent !== text) byId("pill-text").textContent = text;
  }
}

/** @param {string} word */
function decoded(word) {
  try {
    return decodeURIComponent(word);
  } catch {
    return word;
  }
}

wireCopyButtons();
followAddress();
const token = takeToken();
const scopes = token ? String(readClaims(token).scope ?? "").split(" ") : [];
if (!token) signIn();
else if (scopes.includes("operator") || scopes.includes("admin")) new Admin(token, scopes.includes("operator"));
else leave(NEEDED);
