/** What the inbox and the demo page show of a message: its picture, its title, which is its link where it has one, the time, and its text. */

import { addressOf, wording } from "./wording.js";

/** @typedef {import("../ledger.js").Message} Message */

/** Its style sheet. `:where` keeps the selectors weak, so that a page's own rules win. */
export const LOOK = `
.content { display: grid; grid-template-columns: minmax(0, 1fr) auto; gap: 2px 12px; align-items: start; }
.content:has(.picture) { grid-template-columns: auto minmax(0, 1fr) auto; }
:where(.content) .picture { grid-row: 1 / span 2; width: 44px; height: 44px; margin-top: 2px; border-radius: 8px; object-fit: cover; }
:where(.content) .title { margin: 0; font-weight: 400; overflow-wrap: anywhere; }
:where(.content) .title a { color: inherit; }
:where(.content) .text { grid-column: -3 / -1; margin: 0; color: var(--own-muted); overflow-wrap: anywhere; }
:where(.content) time { color: var(--own-muted); font-size: .87em; white-space: nowrap; }
`;

/** @param {string} tag @param {Record<string, any>} [properties] @param {...(Node | string | false | "" | undefined)} children text, never markup */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(.../** @type {(Node | string)[]} */ (children.filter(Boolean)));
  return element;
}

/** @type {WeakSet<Message>} whose picture cannot be loaded */ const broken = new WeakSet();

/** Decoration: a screen reader has the title. The picture's host learns the reader's address, but not the page's. @param {Message} message */
function pictureOf(message) {
  const src = broken.has(message) ? "" : addressOf(message.image);
  if (!src) return false;
  const picture = make("img", { className: "picture", alt: "", loading: "lazy", referrerPolicy: "no-referrer", src });
  picture.addEventListener("error", () => {
    broken.add(message);
    picture.remove();
  });
  return picture;
}

/**
 * @param {Message} message
 * @param {Node} time When it happened.
 * @param {{words?: [string, string], before?: Node | false, tabIndex?: number}} [shown] Title and text, what is before the title, and the
 *   place of the link in the order of the keyboard.
 */
export function contentOf(message, time, { words = wording(message), before = false, tabIndex = 0 } = {}) {
  const [title, text] = words;
  const href = addressOf(message.url);
  const heading = href ? make("a", { href, className: "open", target: "_blank", rel: "noopener noreferrer", tabIndex }, title) : title;
  const line = make("p", { className: "title" }, before, heading);
  return make("div", { className: "content" }, pictureOf(message), line, time, text && make("p", { className: "text" }, text));
}
