/** The first view: what needs attention, the load, who runs where. */

import { make } from "../dom.js";
import { attention } from "./attention.js";
import { Charts } from "./charts.js";
import { LoadCards } from "./load_cards.js";
import { card, chip } from "./table.js";
import { scalingFacts, topology } from "./topology.js";
import { redraw, View } from "./view.js";

const EVERY_MS = 6000; // between two looks at what the status does not have

export class Overview extends View {
  /** @type {import("./attention.js").Waiting} */ #waiting = {};
  #lookedMs = -Infinity;

  /** @param {import("./admin_api.js").AdminApi} api @param {string} tenant */
  constructor(api, tenant) {
    super("overview", "Overview", "Who runs where, and under which load. Figures are at most a second old.");
    this.api = api;
    this.tenant = tenant;
    this.load = new LoadCards();
    this.alerts = card("attention", "Needs attention");
    this.parts = card("topology", "Topology");
    this.scaling = card("scaling", "Numbers of actors");
    this.charts = new Charts(api);
    const columns = make("div", { className: "grid two" }, this.alerts.card, this.scaling.card);
    this.element.append(this.load.element, columns, this.charts.element, this.parts.card);
  }

  /** @param {any} status */
  show(status) {
    this.load.show(status);
    this.charts.look();
    this.#look();
    const found = attention(status, this.#waiting);
    const line = (/** @type {import("./attention.js").Alert} */ { kind, what, why, at = "#topology" }) =>
      make("li", {}, make("a", { href: at }, chip(kind, what)), make("span", {}, why));
    redraw(
      this.alerts.body,
      found.length ? make("ul", { className: "plain" }, ...found.map(line)) : make("p", { className: "calm" }, "Nothing: every part answers, and none is degraded."),
    );
    redraw(this.parts.body, topology(status));
    this.scaling.body.replaceChildren(scalingFacts(status.scaling ?? {}));
  }

  /** Ask for what waits for an operator. What cannot be had now is asked for again. */
  async #look() {
    if (performance.now() - this.#lookedMs < EVERY_MS) return;
    this.#lookedMs = performance.now();
    const [letters, slow] = await Promise.allSettled([this.api.deadLetters(this.tenant, { limit: 1 }), this.api.slowClients()]);
    if (letters.status === "fulfilled") this.#waiting.letters = letters.value.total;
    if (slow.status === "fulfilled") this.#waiting.exhausted = slow.value.clients.filter((/** @type {any} */ { exhausted }) => exhausted).length;
  }
}
