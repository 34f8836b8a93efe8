/** The first view: what needs attention, the load, who runs where. */

import { make } from "../dom.js";
import { attention } from "./attention.js";
import { Charts } from "./charts.js";
import { LoadCards } from "./load_cards.js";
import { card, chip } from "./table.js";
import { scalingFacts, topology } from "./topology.js";
import { View } from "./view.js";

export class Overview extends View {
  /** @param {import("./admin_api.js").AdminApi} api */
  constructor(api) {
    super("overview", "Overview", "Who runs where, and under which load. Figures are at most a second old.");
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
    const found = attention(status);
    this.alerts.body.replaceChildren(
      found.length
        ? make("ul", { className: "plain" }, ...found.map(({ kind, what, why }) => make("li", {}, chip(kind, what), make("span", {}, why))))
        : make("p", { className: "calm" }, "Nothing: every part answers, and none is degraded."),
    );
    const at = this.parts.body.firstElementChild?.scrollLeft ?? 0;
    this.parts.body.replaceChildren(topology(status));
    this.parts.body.firstElementChild.scrollLeft = at;
    this.scaling.body.replaceChildren(scalingFacts(status.scaling ?? {}));
  }
}
