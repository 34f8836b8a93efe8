/**
 * What is asked by a message, as buttons and a field, and what was answered. The inbox and the demo page show both.
 *
 * A list is drawn anew when a message arrives. So the words that somebody is typing are kept by the list, by the id of the message.
 */

import { make } from "./content.js";

/** @typedef {import("../ledger.js").Message} Message */

const TEXT_CHARS_MAX = 1000;
const COMPOSED_KEY = 229; // of the key that ends a composition (an input method) in Safari

/** Its style sheet. */
export const QUESTION_LOOK = `
:where(.question) { display: flex; flex-wrap: wrap; gap: 6px; margin: 6px 0 2px; padding: 0; border: 0; min-width: 0; }
:where(.question) button { padding: 5px 12px; border: 1px solid currentcolor; border-radius: 8px; background: none; color: var(--own-accent, inherit);
  font: inherit; font-size: .93em; cursor: pointer; }
:where(.question) button.primary { border-color: transparent; background: var(--own-accent, #3451c7); color: var(--own-on-accent, #fff); }
:where(.question) button.danger { color: light-dark(#b3261e, #ffb4ab); }
:where(.question) input { flex: 1 1 12em; min-width: 0; padding: 5px 8px; border: 1px solid var(--own-muted, #566072); border-radius: 8px;
  background: none; color: inherit; font: inherit; font-size: .93em; }
:where(.outcome) { margin: 4px 0 0; font-size: .93em; }
`;

/**
 * The buttons of a question, and its field where it takes a text; nothing for another message. It is open until the engine ends it: the
 * page's clock may be wrong.
 * @param {Message} message
 * @param {string} title Of the message.
 * @param {{ownWords: string, send: string}} words
 * @param {Map<string, string>} typed What is being typed, by id of the message.
 * @param {(answer: string | null, text: string) => void} chosen
 */
export function questionOf({ id, ask }, title, words, typed, chosen) {
  if (!ask) return false;
  const field = ask.text && make("input", { className: "words", type: "text", maxLength: TEXT_CHARS_MAX, value: typed.get(id) ?? "", ariaLabel: `${words.ownWords}: ${title}`, placeholder: words.ownWords });
  const text = () => (field ? /** @type {HTMLInputElement} */ (field).value.trim() : "");
  const answer = (/** @type {string | null} */ which) => chosen(which, text());
  const choices = ask.answers.map((/** @type {{id: string, label: string, style?: string}} */ choice) => {
    const button = make("button", { type: "button", className: choice.style ?? "plain", ariaLabel: `${choice.label}: ${title}` }, choice.label);
    button.dataset.answer = choice.id;
    button.addEventListener("click", () => answer(choice.id));
    return button;
  });
  const send = field && !choices.length && make("button", { type: "button", className: "primary", ariaLabel: `${words.send}: ${title}` }, words.send);
  if (send) send.addEventListener("click", () => answer(null));
  if (field) {
    field.addEventListener("input", () => typed.set(id, /** @type {HTMLInputElement} */ (field).value));
    field.addEventListener("keydown", (event) => {
      const { key, isComposing, keyCode } = /** @type {KeyboardEvent} */ (event);
      const composing = isComposing || keyCode === COMPOSED_KEY;
      if (key !== "Escape" || composing) event.stopPropagation(); // arrows and Home are of the field
      if (key === "Enter" && !composing && !choices.length) answer(null);
    });
  }
  const group = make("div", { className: "question" }, ...choices, field || false, send || false);
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", title);
  return group;
}

/**
 * What was answered, by whom, or that the question was withdrawn; nothing for another message.
 * @param {Message} message
 * @param {{answered: (answer: string, by: string | null) => string, noAnswer: string, withdrawn: string}} words
 */
export function outcomeOf({ answer }, words) {
  if (!answer) return false;
  const said = [answer.label, answer.text].filter(Boolean).join(": ") || words.noAnswer;
  return make("p", { className: "outcome" }, answer.reason === "withdrawn" ? words.withdrawn : words.answered(said, answer.by));
}
