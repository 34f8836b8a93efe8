/**
 * `<notification-preferences>`: what the user wants to get, by category, and by each channel of its steps; and quiet hours, of all categories
 * or of one; and a digest by mail, where a category tells by mail.
 *
 * Set its property `client`. It reads the preferences when it is shown, and shows what the engine answers to each change: what the engine
 * does not allow is said, and nothing else is shown.
 */

import { make } from "./content.js";
import { dress } from "./style.js";
import { languageOf, wordsFor } from "./wording.js";

/** @typedef {import("ray-notification-client").Preferences} Preferences */
/** @typedef {import("ray-notification-client").PreferencesChange} PreferencesChange */

const MORNING = "08:00";
const DAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const MONDAY = Date.UTC(2024, 0, 1);
const DAY_MS = 86_400_000;
const NEVER = "never";
const DAILY = "daily";
/** The choices of each channel; mail alone has a digest. */
const BY_CHANNEL = /** @type {Record<string, string[]>} */ ({ email: ["on", "digest", "off"] });

const Base = /** @type {typeof HTMLElement} */ (globalThis.HTMLElement ?? class {}); // in Node.js it can be imported all the same

function zoneHere() {
  return Intl.DateTimeFormat().resolvedOptions().timeZone;
}

export class NotificationPreferences extends Base {
  /** @type {import("../notify_client.js").NotifyClient | null} */ #client = null;
  /** @type {Preferences | null} */ #preferences = null;
  /** @type {AbortController | null} */ #listening = null;
  /** @type {HTMLElement | null} kept: somebody fills it while answers arrive */ #form = null;
  #problem = "";
  #users = 0; // of the client: what an earlier one chose, or was answered, is not the next one's
  /** One request after another: the answer to an earlier one shows less. @type {Promise<void>} */ #answered = Promise.resolve();

  constructor() {
    super();
    const root = this.attachShadow({ mode: "open" });
    dress(root, "preferences");
    root.addEventListener("change", (event) => this.#chosen(/** @type {HTMLSelectElement} */ (event.target)));
    root.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#setHours(/** @type {any} */ (event.target));
    });
  }

  get client() {
    return this.#client;
  }

  set client(client) {
    if (client === this.#client) return;
    this.#client = client;
    if (this.isConnected) this.connectedCallback();
  }

  connectedCallback() {
    this.disconnectedCallback();
    this.#listening = new AbortController();
    const another = () => {
      this.#users++;
      this.connectedCallback();
    };
    this.#client?.addEventListener("user", another, { signal: this.#listening.signal });
    this.#draw();
    this.#ask((client) => client.preferences());
  }

  disconnectedCallback() {
    this.#listening?.abort();
    this.#preferences = this.#form = null;
  }

  /** @param {HTMLSelectElement} select */
  #chosen({ dataset: { kind, name }, value }) {
    if (kind === "digest") this.#setDigest();
    else if (kind === "channels" && value === "digest" && !this.#preferences?.mail_digest) {
      this.#change({ zone: zoneHere(), channels: { [String(name)]: value }, mail_digest: { at: MORNING } }); // without times there is none
    } else if (kind && name) this.#change({ [kind]: { [name]: value } });
  }

  /** As the fields of the digest say. */
  #setDigest() {
    const value = (/** @type {string} */ id) => /** @type {HTMLInputElement} */ (this.shadowRoot?.getElementById(id)).value;
    const every = value("digest-every");
    const at = value("digest-at") || MORNING;
    const days = /** @type {import("ray-notification-client").MailDigest["days"]} */ (every.split(" "));
    this.#change({ zone: zoneHere(), mail_digest: every === NEVER ? null : { at, ...(every !== DAILY && { days }) } });
  }

  /** Of all categories, or of the one that is chosen. @param {{elements: Record<string, HTMLInputElement>, dataset: DOMStringMap}} form */
  #setHours({ elements: { category, from, to } }) {
    const hours = from.value && to.value ? [{ from: from.value, to: to.value }] : null;
    const zone = zoneHere();
    this.#change(category.value ? { zone, quiet_categories: { [category.value]: hours } } : { zone, quiet: hours });
  }

  /** @param {PreferencesChange} changes */
  #change(changes) {
    this.#ask((client) => client.setPreferences(changes));
  }

  /** @param {(client: import("../notify_client.js").NotifyClient) => Promise<Preferences>} request */
  #ask(request) {
    const [client, user] = [this.#client, this.#users];
    if (client) this.#answered = this.#answered.then(() => (user === this.#users ? this.#show(client, request(client)) : undefined));
  }

  /** @param {import("../notify_client.js").NotifyClient} client @param {Promise<Preferences>} answer */
  async #show(client, answer) {
    const user = this.#users;
    const stale = () => client !== this.#client || user !== this.#users;
    try {
      const preferences = await answer;
      if (stale()) return;
      this.#preferences = preferences;
      this.#problem = "";
    } catch (error) {
      if (stale()) return;
      const { failed } = wordsFor(this);
      this.#problem = /** @type {any} */ (error).detail ?? /** @type {any} */ (error).message ?? failed;
    }
    this.#draw();
  }

  #draw() {
    const root = /** @type {ShadowRoot} */ (this.shadowRoot);
    const focused = /** @type {HTMLElement | null} */ (root.activeElement)?.id;
    const words = wordsFor(this);
    const problem = make("p", { className: "problem", role: "alert", hidden: !this.#problem }, this.#problem);
    root.replaceChildren(make("h2", {}, words.preferences), ...(this.#preferences ? this.#rows(this.#preferences) : []), problem);
    if (focused) root.getElementById(focused)?.focus();
  }

  /** @param {Preferences} preferences */
  #rows({ available, quiet, quiet_categories, mail_digest, zone }) {
    const words = wordsFor(this);
    const rows = Object.entries(available).map(([name, { title = name, may, choice, channels = {} }]) =>
      make(
        "fieldset",
        {},
        make("legend", {}, title),
        this.#select("categories", name, words.inApp, title, may, choice),
        ...Object.entries(channels).map(([channel, holds]) =>
          this.#select("channels", `${name}/${channel}`, /** @type {any} */ (words.channels)[channel] ?? channel, title, BY_CHANNEL[channel] ?? ["on", "off"], holds),
        ),
      ),
    );
    const said = (/** @type {import("ray-notification-client").QuietHours[]} */ hours) =>
      hours.map(({ from, to }) => `${from}–${to}`).join(", ") || words.none;
    const titleOf = (/** @type {string} */ name) => available[name]?.title ?? name;
    const hours = Object.entries(quiet_categories).map(([name, own]) => make("li", {}, `${titleOf(name)}: ${said(own)}`));
    this.#form ??= this.#hoursForm(Object.keys(available).map((name) => [name, titleOf(name)]));
    const list = make("ul", {}, make("li", {}, `${words.everything}: ${said(quiet)} (${zone})`), ...hours);
    const byMail = mail_digest || Object.values(available).some(({ channels }) => channels?.email);
    if (byMail) rows.push(this.#digest(mail_digest));
    return [...rows, make("fieldset", {}, make("legend", {}, words.quiet), list, this.#form)];
  }

  /** On which days there is a digest, and when. @param {import("ray-notification-client").MailDigest | null} wanted */
  #digest(wanted) {
    const words = wordsFor(this);
    const days = wanted?.days ?? DAYS;
    const every = !wanted ? NEVER : days.length === DAYS.length ? DAILY : days.join(" ");
    const choices = [...new Set([NEVER, DAILY, ...DAYS, every])]; // some days, which the application set, stay a choice
    const select = this.#select("digest", "every", words.channels.email, words.digest, choices, every);
    const value = wanted?.at ?? MORNING;
    const time = make("input", { type: "time", id: "digest-at", value, disabled: !wanted, required: true, ariaLabel: `${words.digest}, ${words.at}` });
    const typed = () => time.isConnected && value !== /** @type {any} */ (time).value && this.#setDigest();
    time.addEventListener("blur", typed); // not with each digit: the answer draws the field anew
    return make("fieldset", {}, make("legend", {}, words.digest), select, make("label", { htmlFor: "digest-at" }, words.at, time));
  }

  /** Days of the week in the language of the element. @param {string} days */
  #daysNamed(days) {
    const named = new Intl.DateTimeFormat(languageOf(this), { weekday: "long", timeZone: "UTC" });
    return days.split(" ").map((day) => named.format(MONDAY + DAYS.indexOf(day) * DAY_MS)).join(", ");
  }

  /** @param {[string, string][]} categories names and titles */
  #hoursForm(categories) {
    const words = wordsFor(this);
    const options = [["", words.everything], ...categories].map(([value, title]) => make("option", { value }, title));
    const category = make("select", { id: "category", name: "category", ariaLabel: words.quietFor }, ...options);
    const time = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ value) =>
      make("label", { htmlFor: name }, label, make("input", { type: "time", id: name, name, value }));
    return make(
      "form",
      {},
      make("label", { htmlFor: "category" }, words.quietFor, category),
      time("from", words.from, "22:00"),
      time("to", words.to, "07:00"),
      make("button", { id: "set", title: words.quietEmpty }, words.set),
    );
  }

  /** @param {string} kind @param {string} name @param {string} label @param {string} title @param {string[]} may @param {string} choice */
  #select(kind, name, label, title, may, choice) {
    const words = /** @type {any} */ (wordsFor(this)).choices[kind];
    const options = may.map((one) => make("option", { value: one, selected: one === choice }, words[one] ?? (kind === "digest" ? this.#daysNamed(one) : one)));
    const id = `${kind}-${name}`;
    const select = make("select", { id, disabled: may.length < 2, ariaLabel: `${title}, ${label}` }, ...options);
    Object.assign(select.dataset, { kind, name });
    return make("label", { htmlFor: id }, label, select);
  }
}
