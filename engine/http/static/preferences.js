/** What the user wants to get: per category of the rules, each channel of its steps, and per type, and when not. `GET` and `PATCH /v1/preferences`. */

import { byId, make } from "./dom.js";
import { SAMPLES } from "./samples.js";

const CHOICES = { on: "at once", inbox: "in the inbox only", digest: "in a digest", off: "not at all" };
const CHANNELS = /** @type {Record<string, string>} */ ({ email: "by mail", push: "by push", apprise: "by chat" });
const MORNING = "08:00";

function zoneHere() {
  return Intl.DateTimeFormat().resolvedOptions().timeZone;
}

export class Preferences {
  #list = byId("choices");
  #note = byId("preferences-note");
  #quiet = byId("quiet-hours");
  #timed = false; // a digest by mail has times
  #answered = Promise.resolve(); // all requests until now

  /** @param {import("./api.js").Api} api */
  constructor(api) {
    this.api = api;
    this.#list.addEventListener("change", (/** @type {any} */ event) => {
      const { kind, name } = event.target.dataset;
      const times = kind === "channels" && event.target.value === "digest" && !this.#timed && { zone: zoneHere(), mail_digest: { at: MORNING } };
      this.#change({ [kind]: { [name]: event.target.value }, ...times });
    });
    this.#quiet.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      const { from, to } = this.#quiet.elements;
      this.#change({ zone: zoneHere(), quiet: [{ from: from.value, to: to.value }] });
    });
    byId("quiet-none").addEventListener("click", () => this.#change({ quiet: null }));
    this.#ask(() => this.api.preferences());
  }

  /** @param {object} patch */
  #change(patch) {
    this.#ask(() => this.api.changePreferences(patch));
  }

  /** Show what the engine answers, one request after the other: of two at once the first might be carried out last. @param {() => Promise<any>} request */
  #ask(request) {
    this.#answered = this.#answered.then(() => this.#shown(request));
  }

  /** @param {() => Promise<any>} request */
  async #shown(request) {
    try {
      this.#show(await request());
      this.#note.textContent = "";
    } catch (error) {
      this.#note.textContent = `Not possible: ${/** @type {any} */ (error).message}`;
    }
  }

  /** @param {{types: Record<string, string>, available: Record<string, any>, quiet: {from: string, to: string}[], zone: string, mail_digest: object | null}} preferences */
  #show({ types, available, quiet, zone, mail_digest: digest }) {
    this.#timed = Boolean(digest);
    const categories = Object.entries(available).flatMap(([name, { title = name, may, choice, channels = {} }]) => [
      this.#row("categories", name, title, may, choice),
      ...Object.entries(channels).map(([channel, holds]) =>
        this.#row("channels", `${name}/${channel}`, `${title}, ${CHANNELS[channel] ?? channel}`, channel === "email" ? ["on", "digest", "off"] : ["on", "off"], holds),
      ),
    ]);
    const ofTypes = SAMPLES.map(({ type }) => this.#row("types", type, type, Object.keys(CHOICES), types[type] ?? "on"));
    const focused = /** @type {any} */ (document.activeElement)?.id;
    this.#list.replaceChildren(...categories, ...ofTypes);
    if (focused) byId(focused)?.focus();
    const [hours] = quiet;
    byId("quiet-now").textContent = hours ? `Quiet from ${hours.from} to ${hours.to}, ${zone}.` : "No quiet hours.";
    byId("quiet-none").disabled = !hours;
  }

  /** @param {string} kind @param {string} name @param {string} label @param {string[]} may @param {string} choice */
  #row(kind, name, label, may, choice) {
    const id = `choice-${kind}-${name}`;
    const options = may.map((one) => make("option", { value: one, selected: one === choice }, /** @type {any} */ (CHOICES)[one]));
    const select = make("select", { id, disabled: may.length < 2, data: { kind, name } }, ...options);
    return make("li", {}, make("label", { htmlFor: id }, label), select);
  }
}
