/** The live counters, from `GET /v1/status` every two seconds while the page is visible. */

import { byId } from "./dom.js";

const EVERY_MS = 2000;
const POINTS = 40;
const NEEDED = "Live counters need a token with the scope operator.";
const count = new Intl.NumberFormat("en");
const number = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const rate = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** Polyline points of a series in a box of 60 x 20, the newest at the right edge. @param {number[]} values */
export function sparkline(values) {
  const high = Math.max(...values, 1e-9);
  const begin = POINTS - values.length;
  return values.map((value, at) => `${((begin + at) / (POINTS - 1)) * 60},${19 - (value / high) * 18}`).join(" ");
}

export class Counters {
  /** @type {Record<string, number[]>} */ #series = { connections: [], published: [], acknowledged: [], p95: [] };
  /** @type {any} */ #before = null;
  #beforeMs = 0;

  /** @param {import("./api.js").Api} api */
  constructor(api) {
    this.api = api;
    this.#run();
  }

  async #run() {
    for (;;) {
      if (document.visibilityState === "visible" && !(await this.#look())) return;
      await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
    }
  }

  /** False when asking again is of no use. */
  async #look() {
    const note = byId("stats-note");
    try {
      const { totals } = await this.api.status();
      if (!totals) {
        // An admin's token: figures of its tenant only.
        note.hidden = false;
        note.textContent = NEEDED;
        return false;
      }
      this.#show(totals);
      note.hidden = true;
    } catch (error) {
      note.hidden = false;
      if (/** @type {any} */ (error).status === 403) {
        note.textContent = NEEDED;
        return false;
      }
      note.textContent = `No counters at the moment: ${/** @type {any} */ (error).message}.`;
    }
    return true;
  }

  /** @param {any} totals */
  #show(totals) {
    const now = performance.now();
    const seconds = (now - this.#beforeMs) / 1000;
    for (const name of ["published", "acknowledged"]) {
      const perSecond = this.#before ? Math.max(0, totals[name] - this.#before[name]) / seconds : 0;
      byId(`stat-${name}`).textContent = count.format(totals[name]);
      const still = name === "published" ? "since the start" : `${count.format(totals.pending)} pending`;
      byId(`sub-${name}`).textContent = perSecond >= 0.05 ? `${rate.format(perSecond)} a second` : still;
      this.#draw(name, perSecond);
    }
    byId("stat-connections").textContent = count.format(totals.connections);
    this.#draw("connections", totals.connections);
    const ms = (/** @type {number | null} */ value) => (value === null || value === undefined ? "–" : `${number.format(value)} ms`);
    byId("stat-p95").textContent = ms(totals.send_p95_ms);
    byId("sub-p95").textContent = `publish to send; send to ACK ${ms(totals.ack_p95_ms)}`;
    this.#draw("p95", totals.send_p95_ms ?? 0);
    this.#before = totals;
    this.#beforeMs = now;
  }

  /** @param {string} name @param {number} value */
  #draw(name, value) {
    const series = this.#series[name];
    series.push(value);
    if (series.length > POINTS) series.shift();
    byId(`spark-${name}`).setAttribute("points", series.length > 1 ? sparkline(series) : "");
  }
}
