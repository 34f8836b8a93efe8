/** The charts of the last hour, from `GET /v1/load`: the engine keeps the points, so they are there after a reload and after a restart. */

import { make } from "../dom.js";
import { bytes, count, short, span } from "./format.js";
import { LineChart } from "./line_chart.js";
import { card } from "./table.js";

/** So many a second. @param {string} name */
const rate = (name) => (/** @type {any} */ point) => ((point[name] ?? 0) * 1000) / point.over_ms;
/** @param {string} name */
const value = (name) => (/** @type {any} */ point) => point[name] ?? 0;
/** @param {string} name */
const known = (name) => (/** @type {any} */ point) => point[name];

const perSecond = (/** @type {any} */ figure) => (figure === null ? "–" : `${short(figure)} /s`);
const percent = (/** @type {any} */ figure) => (figure === null ? "–" : `${short(figure)} %`);

export class Charts {
  #loadedMs = -Infinity;
  #everyMs = 10_000;

  /** @param {import("./admin_api.js").AdminApi} api */
  constructor(api) {
    this.api = api;
    this.note = make("p", { className: "hint", role: "status" });
    this.charts = [
      new LineChart("chart-messages", "Messages", [
        { name: "Published", of: rate("published") },
        { name: "Delivered", of: rate("delivered") },
        { name: "Acknowledged", of: rate("acknowledged") },
      ], perSecond),
      new LineChart("chart-latency", "Latency, p95", [
        { name: "To first send", of: known("send_p95_ms") },
        { name: "Send to ACK", of: known("ack_p95_ms") },
      ], span),
      new LineChart("chart-connections", "Connections", [{ name: "Connections", of: value("connections") }, { name: "Users in memory", of: value("users") }], count),
      new LineChart("chart-waiting", "What waits", [{ name: "Pending messages", of: value("pending") }, { name: "Timers", of: value("timers") }], count),
      new LineChart("chart-trouble", "Not as it should be", [
        { name: "Retried", of: rate("retried") },
        { name: "Expired", of: rate("expired") },
        { name: "Dead letters", of: rate("dead_lettered") },
        { name: "Refused for load", of: rate("shed") },
      ], perSecond),
      new LineChart("chart-cpu", "CPU, of a core", [
        { name: "Edges", of: value("edge_cpu_pct") },
        { name: "Shards", of: value("shard_cpu_pct") },
        { name: "Schedulers", of: value("scheduler_cpu_pct") },
      ], percent),
      new LineChart("chart-redis", "Memory of Redis", [{ name: "Used", of: value("redis_bytes") }], bytes),
      new LineChart("chart-timers", "Timers fired", [{ name: "Fired", of: rate("fired") }], perSecond),
    ];
    const { card: made, body } = card("charts", "The last hour");
    body.append(make("div", { className: "charts" }, ...this.charts.map(({ element }) => element)), this.note);
    this.element = made;
  }

  /** Load the points, when there may be new ones. */
  async look() {
    if (performance.now() - this.#loadedMs < this.#everyMs / 2) return;
    this.#loadedMs = performance.now();
    try {
      const { every_ms: everyMs, points } = await this.api.load();
      this.#everyMs = everyMs;
      for (const chart of this.charts) chart.show(points, everyMs);
      this.note.textContent = points.length ? "" : `The first point comes within ${span(2 * everyMs)}.`;
    } catch (error) {
      this.note.textContent = `Not available: ${/** @type {any} */ (error).message}`;
    }
  }
}
