/** One view of the admin page: its element, and when it is asked to show what. */

import { make } from "../dom.js";

export class View {
  /** @param {string} name In the address. @param {string} title @param {string} lead What it shows, in a sentence. */
  constructor(name, title, lead) {
    this.name = name;
    this.title = title;
    this.heading = make("h1", { tabIndex: -1 }, title);
    this.element = make("div", { className: "view", hidden: true }, make("div", { className: "intro" }, this.heading, make("p", {}, lead)));
    this.element.id = `view-${name}`;
  }

  /** Whether somebody has written here what would be lost with the page. */
  get unsaved() {
    return false;
  }

  /** The view is opened. @param {string[]} _words The parts of the address behind the view's name. */
  open(_words) {}

  /** Every two seconds while it is open, with `/v1/status`. @param {any} _status */
  show(_status) {}
}

/** Why an answer is not shown. */
class Outdated extends Error {}

/**
 * An answer, which throws where something else is chosen by then: `attempt` shows neither it nor its failure.
 * @template T
 * @param {() => unknown} chosen What it is about. @param {Promise<T>} answer
 */
export async function whileChosen(chosen, answer) {
  const before = chosen();
  try {
    return await answer;
  } finally {
    if (chosen() !== before) throw new Outdated();
  }
}

/**
 * Carry out what a control asks for; what goes wrong is shown beside it.
 * @param {any} note Element for the outcome, with the role `status`. @param {any} control Disabled meanwhile. @param {() => Promise<string | void>} act Returns what to show.
 */
export async function attempt(note, control, act) {
  const held = control && document.activeElement === control;
  if (control) control.disabled = true;
  note.classList.remove("problem");
  try {
    note.textContent = (await act()) ?? "";
  } catch (error) {
    if (!(error instanceof Outdated)) {
      note.classList.add("problem");
      note.textContent = /** @type {any} */ (error).message;
    }
  }
  if (control) control.disabled = false;
  if (held && document.activeElement === document.body) control.focus(); // a disabled one loses the keyboard
}

/** Draw a part anew; who is in it with the keyboard, or has scrolled it, stays. @param {any} part @param {Node} shown */
export function redraw(part, shown) {
  const nameOf = (/** @type {any} */ element) => element.ariaLabel ?? element.textContent;
  const held = part.contains(document.activeElement) && nameOf(document.activeElement);
  const at = part.firstElementChild?.scrollLeft ?? 0;
  part.replaceChildren(shown);
  part.firstElementChild.scrollLeft = at;
  [...part.querySelectorAll("a, [tabindex]")].find((one) => nameOf(one) === held)?.focus({ preventScroll: true });
}

/** An element for outcomes. */
export function noteElement() {
  return make("p", { className: "hint", role: "status" });
}

/** The address of a user's view. @param {string} tenant @param {string} user */
export function userAddress(tenant, user) {
  return `#users/${encodeURIComponent(tenant)}/${encodeURIComponent(user)}`;
}
