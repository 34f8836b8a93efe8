/**
 * A line chart of an hour in SVG. It can be read without seeing it: the picture has a summary, a slider over it names the figures of each
 * point (with the arrow keys, by touch, or under the pointer), and a table lists them.
 */

import { make } from "../dom.js";
import { table } from "./table.js";

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, TOP] = [600, 120, 8];
const GAP_FACTOR = 2.5; // points farther apart than so many periods are not joined
const TABLE_ROWS = 12;

/** @typedef {{name: string, of: (point: any) => number | null | undefined}} Series */

/** @param {string} tag @param {Record<string, string | number>} attributes */
function shape(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  return element;
}

/** The next number of 1, 2, 5, 10, 20 ... that is not below. @param {number} value */
export function niceCeiling(value) {
  const size = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return [1, 2, 5, 10].map((step) => step * size).find((step) => step >= value * 0.9999) ?? 10 * size;
}

export class LineChart {
  #chosen = -1; // -1: the newest
  /** @type {any[]} */ #points = [];
  #everyMs = 1;

  /** @param {string} id @param {string} title @param {Series[]} series @param {(value: number | null | undefined) => string} format */
  constructor(id, title, series, format) {
    Object.assign(this, { title });
    this.series = series;
    this.format = format;
    this.picture = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", class: "plot" });
    this.slider = make("input", { type: "range", min: "0", className: "scrub", ariaLabel: `${title}: moment` });
    this.most = make("span", { className: "most" });
    this.legend = make("dl", { className: "legend" });
    this.when = make("p", { className: "when" });
    this.rows = make("div", {});
    this.details = make("details", { className: "as-table" }, make("summary", {}, "As a table"), this.rows);
    const heading = make("h3", { id: `${id}-title` }, title);
    this.element = make(
      "section",
      { className: "chart" },
      make("div", { className: "chart-head" }, heading, this.when),
      this.legend,
      make("div", { className: "canvas" }, this.picture, this.most, this.slider),
      this.details,
    );
    this.element.setAttribute("aria-labelledby", heading.id);
    this.slider.addEventListener("input", () => this.#choose(this.slider.valueAsNumber));
    this.slider.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
      const { left, width } = this.slider.getBoundingClientRect();
      this.#choose(this.#nearest((event.clientX - left) / width));
    });
    this.slider.addEventListener("pointerleave", () => this.#choose(-1));
    this.slider.addEventListener("blur", () => this.#choose(-1));
    this.details.addEventListener("toggle", () => this.#list());
  }

  /** @param {any[]} points The oldest first; `at` is when each ended. @param {number} everyMs Between two of them. */
  show(points, everyMs) {
    const at = this.#chosen < 0 ? -1 : this.#points[this.#chosen]?.at;
    this.#points = points;
    this.#everyMs = everyMs;
    this.#chosen = at === -1 ? -1 : points.findIndex((point) => point.at === at);
    this.slider.max = String(Math.max(points.length - 1, 0));
    this.slider.disabled = points.length === 0;
    this.#draw();
    this.#list();
  }

  #draw() {
    const values = this.series.flatMap(({ of }) => this.#points.map(of)).filter((value) => value !== null && value !== undefined);
    const high = niceCeiling(Math.max(...values, 0) || 1);
    this.high = high;
    const grid = [0, 0.5, 1].map((part) => shape("line", { x1: 0, x2: WIDTH, y1: this.#y(part * high), y2: this.#y(part * high), class: "rule" }));
    const lines = this.series.map(({ of }, number) => shape("path", { d: this.#path(of), class: `series series-${number}` }));
    this.cursor = shape("line", { x1: 0, x2: 0, y1: TOP, y2: HEIGHT, class: "cursor" });
    this.picture.replaceChildren(...grid, ...lines, this.cursor);
    this.most.textContent = this.format(high);
    this.picture.setAttribute("aria-label", this.#summary());
    this.#point();
  }

  /** @param {Series["of"]} of */
  #path(of) {
    let path = "";
    let beforeMs = 0;
    for (const point of this.#points) {
      const value = of(point);
      if (value === null || value === undefined) {
        beforeMs = 0;
        continue;
      }
      const joined = beforeMs && point.at - beforeMs < GAP_FACTOR * this.#everyMs;
      const [x, y] = [this.#x(point).toFixed(1), this.#y(value).toFixed(1)];
      path += joined ? `L${x},${y}` : `M${x},${y}h0.01`; // the short line makes a single point visible
      beforeMs = point.at;
    }
    return path;
  }

  /** An hour ends at the newest point, at the right edge. @param {any} point */
  #x(point) {
    return WIDTH * (1 - ((this.#points.at(-1)?.at ?? 0) - point.at) / this.#spanMs);
  }

  get #spanMs() {
    const first = this.#points[0]?.at ?? 0;
    return Math.max((this.#points.at(-1)?.at ?? 0) - first, 60 * this.#everyMs);
  }

  /** @param {number} value */
  #y(value) {
    return HEIGHT - 1 - (value / /** @type {number} */ (this.high)) * (HEIGHT - TOP - 1);
  }

  /** The point at a part of the width. @param {number} part */
  #nearest(part) {
    const distances = this.#points.map((point) => Math.abs(this.#x(point) - part * WIDTH));
    return distances.indexOf(Math.min(...distances));
  }

  /** @param {number} number */
  #choose(number) {
    this.#chosen = number;
    this.#point();
  }

  /** Show the figures of the chosen point, of the newest when none is. */
  #point() {
    const chosen = this.#points[this.#chosen];
    const point = chosen ?? this.#points.at(-1);
    if (!chosen || document.activeElement !== this.slider) this.slider.value = String(chosen ? this.#chosen : this.#points.length - 1);
    this.cursor?.classList.toggle("shown", Boolean(chosen));
    if (chosen) for (const end of ["x1", "x2"]) this.cursor?.setAttribute(end, String(this.#x(chosen)));
    const figures = this.series.map(({ name, of }) => [name, point ? this.format(of(point) ?? null) : "–"]);
    this.legend.replaceChildren(
      ...figures.map(([name, figure], number) => make("div", { className: `key key-${number}` }, make("dt", {}, name), make("dd", {}, figure))),
    );
    const when = point ? timeOf(point) : "no points yet";
    this.when.textContent = chosen ? when : "now";
    this.slider.setAttribute("aria-valuetext", `${when}: ${figures.map(([name, figure]) => `${name} ${figure}`).join(", ")}`);
  }

  #summary() {
    if (!this.#points.length) return "No points yet.";
    const [first, last] = [this.#points[0], this.#points[this.#points.length - 1]];
    const parts = this.series.map(({ name, of }) => {
      const values = this.#points.map(of).filter((value) => value !== null && value !== undefined);
      return values.length ? `${name} between ${this.format(Math.min(...values))} and ${this.format(Math.max(...values))}` : `${name} not known`;
    });
    return `${timeOf(first)} to ${timeOf(last)}: ${parts.join("; ")}.`;
  }

  /** A row for each five minutes or so, with the average. */
  #list() {
    if (!(/** @type {any} */ (this.details).open)) return;
    const size = Math.max(1, Math.ceil(this.#points.length / TABLE_ROWS));
    const groups = [];
    for (let begin = 0; begin < this.#points.length; begin += size) groups.push(this.#points.slice(begin, begin + size));
    const average = (/** @type {any[]} */ group, /** @type {Series["of"]} */ of) => {
      const values = group.map(of).filter((value) => value !== null && value !== undefined);
      return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
    };
    const columns = [
      { title: "Up to", cell: (/** @type {any[]} */ group) => timeOf(group.at(-1)), head: true },
      ...this.series.map(({ name, of }) => ({ title: name, cell: (/** @type {any[]} */ group) => this.format(average(group, of)), figure: true })),
    ];
    this.rows.replaceChildren(table(`${/** @type {any} */ (this).title}, averages`, columns, groups));
  }
}

/** @param {any} point */
function timeOf(point) {
  return new Date(point.at).toLocaleTimeString("en-GB");
}
