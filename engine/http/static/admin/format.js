/** Figures as text. What is not known is a dash. */

const NONE = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const three = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const UNITS = ["B", "KB", "MB", "GB", "TB"];

/** @typedef {number | null | undefined} Figure */

/** @param {Figure} value */
const unknown = (value) => value === null || value === undefined || Number.isNaN(value);

/** 12,345. @param {Figure} value */
export function count(value) {
  return unknown(value) ? NONE : whole.format(/** @type {number} */ (value));
}

/** 1 connection, 12 connections. @param {Figure} value @param {string} one @param {string} [many] */
export function counted(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** Three digits: 0.123, 12.3, 12,300. @param {Figure} value */
export function short(value) {
  return unknown(value) ? NONE : three.format(/** @type {number} */ (value));
}

/** 12.3 MB, in powers of 1000. @param {Figure} value */
export function bytes(value) {
  if (unknown(value)) return NONE;
  let left = /** @type {number} */ (value);
  let unit = 0;
  while (left >= 999.5 && unit < UNITS.length - 1) [left, unit] = [left / 1000, unit + 1];
  return `${three.format(left)} ${UNITS[unit]}`;
}

/** 850 ms, 12.3 s, 5 min, 3 h, 2 d. @param {Figure} ms */
export function span(ms) {
  if (unknown(ms)) return NONE;
  const value = /** @type {number} */ (ms);
  if (value < 1000) return `${three.format(value)} ms`;
  if (value < 100_000) return `${three.format(value / 1000)} s`;
  if (value < 7_200_000) return `${whole.format(value / 60_000)} min`;
  if (value < 172_800_000) return `${whole.format(value / 3_600_000)} h`;
  return `${whole.format(value / 86_400_000)} d`;
}

/** 14:03:09 of today, with the date for other days. @param {Figure} ms Since the epoch; 0 is never. */
export function moment(ms) {
  if (!ms) return NONE;
  const date = new Date(ms);
  const time = date.toLocaleTimeString("en-GB");
  return date.toDateString() === new Date().toDateString() ? time : `${date.toLocaleDateString("en-CA")} ${time}`;
}
