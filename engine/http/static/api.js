/** The HTTP side of the engine, for its pages. */

/** An answer that is not a success, as `application/problem+json` says it. */
export class Refused extends Error {
  /** @param {number} status @param {string} detail */
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/**
 * Send a request; returns what the engine answers.
 * @param {string} token @param {string} method @param {string} path @param {object | string} [body] A text is sent as it is.
 * @param {Record<string, string>} [more] Headers.
 * @returns {Promise<any>} What is no JSON as text. @throws {Refused}
 */
export async function ask(token, method, path, body, more) {
  const headers = { Authorization: `Bearer ${token}`, ...(body && { "Content-Type": "application/json" }), ...more };
  const response = await fetch(path, { method, headers, body: typeof body === "string" ? body : body && JSON.stringify(body), cache: "no-store" }).catch(() => null);
  if (!response) throw new Refused(0, "the engine does not answer");
  const json = /json/.test(response.headers.get("Content-Type") ?? "");
  if (response.ok && !json) return response.text(); // "" of a 204
  const answer = await response.json().catch(() => ({})); // a proxy's own page
  if (response.ok) return answer;
  const first = answer.errors?.[0];
  const [, member] = /\.(\w+)$/.exec(first?.path ?? "") ?? [];
  const detail = first && (member ? `${member}: ${first.detail}` : first.detail);
  throw new Refused(response.status, detail ?? answer.detail ?? answer.title ?? `HTTP ${response.status}`);
}

/** Event: `accepted` `[result]`, each accepted now. */
export class Api extends EventTarget {
  /** @param {string} token */
  constructor(token) {
    super();
    this.token = token;
  }

  /** Publish; returns one result per item. @param {object[]} items @returns {Promise<any[]>} */
  async publish(...items) {
    const answer = await this.#ask("POST", "/v1/notifications", items.length === 1 ? items[0] : items);
    this.dispatchEvent(new CustomEvent("accepted", { detail: answer.results.filter((/** @type {any} */ { status }) => status === "accepted") }));
    return answer.results;
  }

  /** Cancel a delayed notification. @param {string} scheduledId */
  async cancel(scheduledId) {
    await this.#ask("DELETE", `/v1/scheduled/${encodeURIComponent(scheduledId)}`);
  }

  /** What the token's user wants to get. @returns {Promise<any>} */
  async preferences() {
    return this.#ask("GET", "/v1/preferences");
  }

  /** @param {object} patch What changes, null for what is taken back (RFC 7396). @returns {Promise<any>} all of them */
  async changePreferences(patch) {
    return this.#ask("PATCH", "/v1/preferences", patch);
  }

  /** What waits for the token's user, in a few lines. @returns {Promise<any>} */
  async digest() {
    return this.#ask("GET", "/v1/digest");
  }

  /** Mails that this engine caught in place of sending them, the newest first. @returns {Promise<any[]>} */
  async caughtMails() {
    return (await this.#ask("GET", "/v1/caught-mails")).mails;
  }

  /** Give the token's user a mail address, unless there is one. @param {string} user @param {string} email */
  async addEmail(user, email) {
    const { push, ...known } = await this.#ask("GET", "/v1/channels");
    if (!known.email) await this.#ask("PUT", `/v1/users/${encodeURIComponent(user)}/channels`, { ...known, email });
  }

  /** Who runs and how much went through. @returns {Promise<any>} */
  async status() {
    return this.#ask("GET", "/v1/status");
  }

  /** @param {string} method @param {string} path @param {object} [body] */
  #ask(method, path, body) {
    return ask(this.token, method, path, body);
  }
}
