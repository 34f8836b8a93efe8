/** Tables of the admin page. A cell is text or an element; text only ever becomes a text node. */

import { make } from "../dom.js";

/** @typedef {{title: string, cell: (row: any) => any, figure?: boolean, head?: boolean}} Column `figure`: a number, at the right; `head`: names its row. */

/**
 * A table in a region that scrolls sideways where it does not fit.
 * @param {string} caption What it lists; read out, not shown.
 * @param {Column[]} columns
 * @param {any[]} rows
 */
export function table(caption, columns, rows) {
  const head = make("tr", {}, ...columns.map(({ title, figure }) => make("th", { scope: "col", className: figure ? "figure-cell" : "" }, title)));
  const lines = rows.map((row) => make("tr", {}, ...columns.map((column) => cell(column, row))));
  const made = make("table", {}, make("caption", { className: "unseen" }, caption), make("thead", {}, head), make("tbody", {}, ...lines));
  return make("div", { className: "scroll", tabIndex: 0, role: "group", ariaLabel: caption }, made);
}

/** @param {Column} column @param {any} row */
function cell({ cell, figure, head }, row) {
  const shown = cell(row);
  const content = shown instanceof Node ? shown : String(shown ?? "–");
  return make(head ? "th" : "td", { className: figure ? "figure-cell" : "", ...(head && { scope: "row" }) }, content);
}

/** A word with a coloured mark. @param {"good" | "warn" | "bad" | "plain"} kind @param {string} word */
export function chip(kind, word) {
  return make("span", { className: "state", data: { kind } }, word);
}

/** Names with their values. @param {[string, any][]} pairs */
export function facts(pairs) {
  const lines = pairs.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value instanceof Node ? value : String(value ?? "–"))]);
  return make("dl", { className: "facts" }, ...lines);
}

/** A card with a heading. @param {string} id @param {string} title @param {{note?: string, end?: Node | null}} [more] @returns {{card: any, body: any}} */
export function card(id, title, { note, end } = {}) {
  const heading = make("h2", { id: `${id}-title` }, title);
  const body = make("div", { id });
  const head = make("div", { className: "card-head" }, heading, end);
  const made = make("section", { className: "card" }, head, note && make("p", { className: "hint note" }, note), body);
  made.setAttribute("aria-labelledby", heading.id);
  return { card: made, body };
}
