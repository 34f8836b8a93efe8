/** What each tenant has in storage beside its quotas, and the topics of one of them. */

import { make } from "../dom.js";
import { bytes, count } from "./format.js";
import { card, chip, table } from "./table.js";
import { attempt, noteElement, View, whileChosen } from "./view.js";

/** Figures, with the settings that limit them. */
const FIGURES = [
  { name: "users", title: "Users", quota: "tenant_users_max", format: count },
  { name: "stored_bytes", title: "Stored", quota: "tenant_stored_bytes_max", format: bytes },
  { name: "topics", title: "Topics", quota: "tenant_topics_max", format: count },
  { name: "signal_names", title: "Signal names", quota: "tenant_signal_names_max", format: count },
];
const NEARLY = 0.9;

export class Tenants extends View {
  #after = "";
  #chosen = ""; // the tenant whose topics are shown
  #loads = 0; // the last one counts
  /** @type {any[]} */ #topics = [];

  /** @param {import("./admin_api.js").AdminApi} api @param {string} tenant */
  constructor(api, tenant) {
    super("tenants", "Tenants", "What the largest tenants have in storage, beside their quotas, and the topics of one of them.");
    this.api = api;
    this.list = card("tenant-list", "Quotas");
    this.note = noteElement();
    this.list.card.append(this.note);
    this.tenant = make("input", { id: "topic-tenant", value: tenant, maxLength: 64, required: true, autocomplete: "off", spellcheck: false });
    const form = make(
      "form",
      { className: "query" },
      make("div", {}, make("label", { htmlFor: "topic-tenant" }, "Tenant"), this.tenant),
      make("button", { type: "submit", className: "secondary" }, "Show"),
    );
    this.topics = card("topics", "Topics");
    this.topicNote = noteElement();
    this.more = make("button", { type: "button", className: "quiet", hidden: true }, "More");
    this.topics.card.insertBefore(form, this.topics.body);
    this.topics.card.append(this.topicNote, make("div", { className: "actions" }, this.more));
    this.element.append(this.list.card, this.topics.card);
    form.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.#load(this.tenant.value.trim());
    });
    this.more.addEventListener("click", () => this.#load(this.#chosen, this.#after));
  }

  open() {
    attempt(this.note, null, () => this.#showTenants());
    this.#load(this.tenant.value.trim());
  }

  async #showTenants() {
    const { tenants, quotas } = await this.api.tenants();
    const cell = (/** @type {any} */ row, /** @type {typeof FIGURES[0]} */ { name, quota, format }) => {
      const limit = quotas[quota];
      const text = limit ? `${format(row[name])} of ${format(limit)}` : format(row[name]);
      return limit && row[name] >= limit * NEARLY ? chip(row[name] >= limit ? "bad" : "warn", text) : text;
    };
    const columns = [
      { title: "Tenant", cell: (/** @type {any} */ { tenant }) => this.#choose(tenant), head: true },
      ...FIGURES.map((figure) => ({ title: figure.title, cell: (/** @type {any} */ row) => cell(row, figure), figure: true })),
    ];
    this.list.body.replaceChildren(tenants.length ? table("Tenants", columns, tenants) : make("p", { className: "calm" }, "No tenant has anything in storage."));
    const rate = quotas.tenant_requests_per_s;
    return `${rate ? `${count(rate)} requests a second for each tenant at each edge. ` : ""}${Object.keys(quotas).length ? "" : "No quotas are set."}`;
  }

  /** A button that shows the topics of a tenant. @param {string} tenant */
  #choose(tenant) {
    const button = make("button", { type: "button", className: "name", ariaLabel: `Topics of ${tenant}` }, tenant);
    button.addEventListener("click", () => {
      this.tenant.value = tenant;
      this.#load(tenant);
    });
    return button;
  }

  /** @param {string} tenant @param {string} [after] */
  #load(tenant, after = "") {
    if (tenant !== this.#chosen) {
      this.topics.body.replaceChildren();
      this.more.hidden = true;
    }
    this.#chosen = tenant;
    this.#loads++;
    return attempt(this.topicNote, this.more, async () => {
      const { topics, total, after: next } = await whileChosen(() => this.#loads, this.api.topics(tenant, after));
      this.#topics = after ? [...this.#topics, ...topics] : topics;
      this.#after = next ?? "";
      this.more.hidden = !next;
      const shown = table(
        "Topics",
        [
          { title: "Topic", cell: ({ topic }) => topic, head: true },
          { title: "Subscribers", cell: ({ subscribers }) => count(subscribers), figure: true },
        ],
        this.#topics,
      );
      this.topics.body.replaceChildren(this.#topics.length ? shown : make("p", { className: "calm" }, "No topic has subscribers."));
      return total ? `${count(this.#topics.length)} of about ${count(total)} shown` : "";
    });
  }
}
