/** Requests to the engine's HTTP interface. */

const TIMEOUT_MS = 30_000; // until an answer has come whole: a connection may stand still for ever

/** An answer that is not a success, as `application/problem+json` states it. `status` 0: no answer. */
export class Refused extends Error {
  /** @param {number} status @param {string} detail @param {number} [retryAfterMs] */
  constructor(status, detail, retryAfterMs) {
    super(detail);
    this.name = "Refused";
    this.status = status;
    this.retryAfterMs = retryAfterMs;
  }
}

/** How long an answer wants to be waited for; undefined when it does not say. @param {Response} response @returns {number | undefined} */
export function retryAfterMs({ headers }) {
  const seconds = Number(headers.get("Retry-After") ?? NaN);
  return seconds > 0 ? seconds * 1000 : undefined;
}

/** The body of a successful answer, null for a 204. @param {URL} url @param {RequestInit} init @returns {Promise<any>} @throws {Refused} */
export async function request(url, init) {
  const lost = (/** @type {any} */ error) => {
    throw new Refused(0, String(error.message ?? error));
  };
  const response = await fetch(url, { signal: AbortSignal.timeout(TIMEOUT_MS), ...init }).catch(lost);
  const answer = await response.json().catch((error) => (error instanceof SyntaxError ? null : lost(error))); // 204, or a proxy's own page
  if (response.ok && !answer && response.status !== 204) throw new Refused(response.status, "the answer is not an engine's");
  if (response.ok) return answer;
  throw refusalOf(response.status, answer, retryAfterMs(response));
}

/** @param {number} status @param {any} problem its details, if any @param {number} [retryAfterMs] */
export function refusalOf(status, problem, retryAfterMs) {
  return new Refused(status, problem?.errors?.[0]?.detail ?? problem?.detail ?? problem?.title ?? `HTTP ${status}`, retryAfterMs);
}
