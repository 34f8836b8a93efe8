/** The HTTP side of the engine, for the demo page. */

/** An answer that is not a success, as `application/problem+json` says it. */
export class Refused extends Error {
  /** @param {number} status @param {string} detail */
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export class Api {
  /** @param {string} token */
  constructor(token) {
    this.token = token;
  }

  /** Publish; returns one result per item. @param {object[]} items @returns {Promise<any[]>} */
  async publish(...items) {
    const answer = await this.#ask("POST", "/v1/notifications", items.length === 1 ? items[0] : items);
    return answer.results;
  }

  /** Cancel a delayed notification. @param {string} scheduledId */
  async cancel(scheduledId) {
    await this.#ask("DELETE", `/v1/scheduled/${encodeURIComponent(scheduledId)}`);
  }

  /** Who runs and how much went through. @returns {Promise<any>} */
  async status() {
    return this.#ask("GET", "/v1/status");
  }

  /** The newest dead letters of the token's tenant. @param {number} limit @returns {Promise<any>} */
  async deadLetters(limit) {
    return this.#ask("GET", `/v1/dead-letters?limit=${limit}`);
  }

  /** A dead letter with its message. @param {string} letter @returns {Promise<any>} */
  async deadLetter(letter) {
    return this.#ask("GET", `/v1/dead-letters/${letter}`);
  }

  /** Publish a dead letter again; what became of it. @param {string} letter @returns {Promise<any>} */
  async redrive(letter) {
    const { results } = await this.#ask("POST", "/v1/dead-letters/redrive", { letters: [letter] });
    return results[0];
  }

  /** Delete a dead letter. @param {string} letter */
  async drop(letter) {
    const { dropped } = await this.#ask("POST", "/v1/dead-letters/drop", { letters: [letter] });
    return { status: dropped ? "dropped" : "gone" };
  }

  /** @param {string} method @param {string} path @param {object} [body] @throws {Refused} */
  async #ask(method, path, body) {
    const headers = { Authorization: `Bearer ${this.token}`, ...(body && { "Content-Type": "application/json" }) };
    const response = await fetch(path, { method, headers, body: body && JSON.stringify(body), cache: "no-store" }).catch(() => null);
    if (!response) throw new Refused(0, "the engine does not answer");
    const answer = await response.json().catch(() => ({})); // 204, or a proxy's own page
    if (response.ok) return answer;
    const first = answer.errors?.[0];
    throw new Refused(response.status, first?.detail ?? answer.detail ?? answer.title ?? `HTTP ${response.status}`);
  }
}
