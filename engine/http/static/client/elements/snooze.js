/** The choice of when a message of the inbox comes back. A message arrives while somebody chooses: the choice is drawn open again. */

import { make } from "./content.js";

const HOUR_MS = 3_600_000;
const MORNING_H = 9;
const MONDAY = 1;

/** The times that are offered. @param {Date} now @returns {{hour: Date, tomorrow: Date, week: Date}} */
export function timesAfter(now) {
  const morning = (/** @type {number} */ days) => new Date(now.getFullYear(), now.getMonth(), now.getDate() + days, MORNING_H);
  return {
    hour: new Date(now.getTime() + HOUR_MS),
    tomorrow: morning(1),
    week: morning((MONDAY + 7 - now.getDay()) % 7 || 7),
  };
}

/**
 * @param {string} title Of the message.
 * @param {{snooze: string, snoozeHour: string, snoozeTomorrow: string, snoozeWeek: string}} words
 * @param {boolean} open
 * @param {(open: boolean) => void} toggled
 * @param {(until: Date) => void} chosen
 */
export function snoozeChoice(title, words, open, toggled, chosen) {
  const summary = make("summary", { className: "snooze", ariaLabel: `${words.snooze}: ${title}` }, words.snooze);
  const option = (/** @type {string} */ label, /** @type {"hour" | "tomorrow" | "week"} */ which) => {
    const button = make("button", { type: "button", ariaLabel: `${words.snooze}, ${label}: ${title}` }, label);
    button.addEventListener("click", () => chosen(timesAfter(new Date())[which]));
    return button;
  };
  const options = [option(words.snoozeHour, "hour"), option(words.snoozeTomorrow, "tomorrow"), option(words.snoozeWeek, "week")];
  const choice = make("details", { open }, summary, make("div", {}, ...options));
  choice.addEventListener("toggle", () => toggled(/** @type {HTMLDetailsElement} */ (choice).open));
  return choice;
}
