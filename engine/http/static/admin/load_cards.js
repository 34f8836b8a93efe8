/** The load now, in cards: totals of the status, and rates out of two of them. */

import { make } from "../dom.js";
import { count, counted, short, span } from "./format.js";

/** @typedef {{title: string, figure: string, sub: string}} Card */

export class LoadCards {
  /** @type {Map<string, {figure: any, sub: any}>} */ #cards = new Map();
  /** @type {any} */ #before = null;
  #beforeMs = 0;

  constructor() {
    this.element = make("section", { className: "stats", ariaLabel: "Load now" });
  }

  /** @param {any} status */
  show({ totals, schedulers = [], edges = [] }) {
    if (totals === this.#before) return; // the view was opened again: no time has passed
    const now = performance.now();
    const seconds = (now - this.#beforeMs) / 1000;
    const perSecond = (/** @type {string} */ name) => (this.#before ? Math.max(0, totals[name] - this.#before[name]) / seconds : null);
    const sum = (/** @type {any[]} */ rows, /** @type {string} */ name) => rows.reduce((all, row) => all + (row[name] ?? 0), 0);
    const shed = edges.reduce((/** @type {number} */ all, /** @type {any} */ row) => all + Object.values(row.shed ?? {}).reduce((one, more) => one + Number(more), 0), 0);
    this.#put("Connections", count(totals.connections), `${counted(totals.users, "user")} in memory`);
    this.#put("Published", `${short(perSecond("published"))} /s`, `${count(totals.published)} since the start`);
    this.#put("Acknowledged", `${short(perSecond("acknowledged"))} /s`, `${count(totals.pending)} pending`);
    this.#put("To first send, p95", span(totals.send_p95_ms), `p50 ${span(totals.send_p50_ms)}, p99 ${span(totals.send_p99_ms)}`);
    this.#put("Send to ACK, p95", span(totals.ack_p95_ms), `p50 ${span(totals.ack_p50_ms)}, p99 ${span(totals.ack_p99_ms)}`);
    this.#put("Timers", count(sum(schedulers, "armed")), `${count(sum(schedulers, "fired"))} fired`);
    this.#put("Retried", `${short(perSecond("retried"))} /s`, `${count(totals.dead_lettered)} dead letters, ${count(totals.expired)} expired`);
    this.#put("Refused for load", count(shed), "requests since the start");
    this.#before = totals;
    this.#beforeMs = now;
  }

  /** @param {string} title @param {string} figure @param {string} sub */
  #put(title, figure, sub) {
    let card = this.#cards.get(title);
    if (!card) {
      card = { figure: make("p", { className: "figure" }), sub: make("p", { className: "sub" }) };
      this.#cards.set(title, card);
      this.element.append(make("div", { className: "card stat" }, make("h2", {}, title), card.figure, card.sub));
    }
    card.figure.textContent = figure;
    card.sub.textContent = sub;
  }
}
