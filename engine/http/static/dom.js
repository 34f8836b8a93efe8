/** The few things the pages need of the DOM. Text only ever becomes a text node, so a message cannot become markup. */

const SVG = "http://www.w3.org/2000/svg";

/** The element with this id; it is in the page's HTML. @param {string} id @returns {any} */
export function byId(id) {
  return document.getElementById(id);
}

/**
 * A new element.
 * @param {string} tag
 * @param {Record<string, any>} properties Of the element; `data` fills its dataset, undefined is left out.
 * @param {...(Node | string | null | undefined | false)} children Strings become text nodes.
 * @returns {any}
 */
export function make(tag, { data = {}, ...properties } = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) if (value !== undefined) /** @type {any} */ (element)[name] = value;
  Object.assign(element.dataset, data);
  element.append(.../** @type {(Node | string)[]} */ (children.filter((child) => child || child === "")));
  return element;
}

/** One of the icons of the page. @param {string} name */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });

/** "now", "12 sec. ago", "in 3 min.". @param {number} ms From now; negative is past. */
export function fromNow(ms) {
  const seconds = Math.round(ms / 1000);
  const size = Math.abs(seconds);
  if (size < 5) return seconds > 0 ? `in ${seconds} sec.` : "now";
  if (size < 100) return relative.format(seconds, "second");
  if (size < 3600) return relative.format(Math.round(seconds / 60), "minute");
  if (size < 86_400) return relative.format(Math.round(seconds / 3600), "hour");
  return relative.format(Math.round(seconds / 86_400), "day");
}

/** One shell word. @param {string} text */
export function shellWord(text) {
  return /^[\w./:@%+=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
