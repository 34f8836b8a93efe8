/**
 * What grows, above a list of messages: the text as far as it is, and a bar of its progress. The inbox and the demo page show it.
 *
 * Text changes 12 times a second or more, so an item is changed in place. When it ends, it goes, and its message takes its place in the list.
 */

import { make } from "./content.js";
import { wording } from "./wording.js";

/** @typedef {import("../growing.js").Growth} Growth */

/** Its style sheet. */
export const GROWING_LOOK = `
:where(.growing) { list-style: none; margin: 0; padding: 0; }
:where(.growing) li { display: grid; gap: 4px; padding: 10px 16px; border-top: 1px solid var(--own-line, #e1e5eb); }
:where(.growing) .title { margin: 0; font-weight: 650; overflow-wrap: anywhere; }
:where(.growing) .text { margin: 0; color: var(--own-muted, #566072); overflow-wrap: anywhere; white-space: pre-wrap; }
:where(.growing) .text:empty { display: none; }
:where(.growing) progress { width: 100%; accent-color: var(--own-accent, #3451c7); }
:where(.growing) .step { margin: 0; color: var(--own-muted, #566072); font-size: .87em; }
`;

/**
 * @param {import("../notify_client.js").NotifyClient} client
 * @param {Element} list An empty `ul`.
 * @param {AbortSignal} [signal] Ends it.
 */
export function showGrowing(client, list, signal) {
  /** @type {Map<string, {item: any, draw: (growth: Growth) => void}>} */ const items = new Map();
  list.classList.add("growing");
  const draw = (/** @type {Growth} */ growth) => {
    const known = items.get(growth.id);
    if (growth.ended) {
      known?.item.remove();
      items.delete(growth.id);
    } else if (known) known.draw(growth);
    else {
      const made = itemOf(growth);
      items.set(growth.id, made);
      list.prepend(made.item);
    }
    /** @type {any} */ (list).hidden = items.size === 0;
  };
  /** @type {any} */ (list).hidden = true;
  client.addEventListener("part", (/** @type {any} */ event) => draw(event.detail), { signal });
  client.addEventListener("welcome", () => client.growing().catch(() => {}), { signal }); // an engine that lets nothing grow
  for (const growth of client.grows) draw(growth);
  if (client.state === "open") client.growing().catch(() => {});
}

/** @param {Growth} growth */
function itemOf(growth) {
  const title = make("p", { className: "title" });
  const text = make("p", { className: "text" });
  const bar = make("progress", { max: 1, hidden: true });
  const step = make("p", { className: "step", hidden: true });
  const item = make("li", { ariaBusy: "true" }, title, text, bar, step);
  item.dataset.id = growth.id;
  const draw = (/** @type {Growth} */ { message, text: whole, progress, list }) => {
    const [name] = wording(message);
    title.textContent = name;
    if (!list) append(text, whole);
    const { value, text: said = "", step: at = "" } = progress ?? {};
    bar.hidden = !progress;
    bar.ariaLabel = name;
    if (value === undefined) bar.removeAttribute("value");
    else /** @type {any} */ (bar).value = value;
    step.textContent = [at, said].filter(Boolean).join(": ");
    step.hidden = !step.textContent;
  };
  draw(growth);
  return { item, draw };
}

/** Change a text in place: what is there keeps its selection. @param {HTMLElement} element @param {string} whole */
function append(element, whole) {
  const there = element.textContent ?? "";
  if (whole.startsWith(there)) element.append(whole.slice(there.length));
  else element.textContent = whole;
}
