/** What the admin page asks the engine. Every answer is bounded by the engine. */

import { ask } from "../api.js";

const encoded = encodeURIComponent;

export class AdminApi {
  /** @param {string} token */
  constructor(token) {
    this.token = token;
  }

  /** Every actor and the totals. */
  status() {
    return this.#get("/v1/status");
  }

  /** Points of the last hour. */
  load() {
    return this.#get("/v1/load");
  }

  /** What the largest tenants have in storage, and the quotas. */
  tenants() {
    return this.#get("/v1/tenants");
  }

  /** Topics of a tenant with their subscribers. @param {string} tenant @param {string} after */
  topics(tenant, after) {
    return this.#get("/v1/topics", { tenant, after });
  }

  /** Stored records that could not be read. */
  quarantine() {
    return this.#get("/v1/quarantine");
  }

  /** Connections whose clients do not acknowledge. */
  slowClients() {
    return this.#get("/v1/slow-clients");
  }

  /** Where a user is, what waits for it, what was decided. @param {string} tenant @param {string} user */
  user(tenant, user) {
    return this.#get(`/v1/users/${encoded(user)}`, { tenant });
  }

  /** What became of a message. @param {string} tenant @param {string} user @param {string} id */
  timeline(tenant, user, id) {
    return this.#get(`/v1/users/${encoded(user)}/messages/${encoded(id)}`, { tenant });
  }

  /** What has become of a user's messages, the newest first. @param {string} tenant @param {string} user @param {string} [before] */
  history(tenant, user, before) {
    return this.#get("/v1/history", { tenant, user, before, limit: 10 });
  }

  /** What would become of a notification. @param {string} tenant @param {object} notification */
  async explain(tenant, notification) {
    return (await this.#post(`/v1/explain?tenant=${encoded(tenant)}`, notification)).results[0];
  }

  /** The rules in force, their versions, and what each rule did. @param {string} tenant Whose own; "": the operator's. Of all that follow, too. */
  rules(tenant) {
    return this.#rules("GET", tenant, "");
  }

  /** The text of a version. @param {string} tenant @param {number} version @returns {Promise<string>} */
  rulesText(tenant, version) {
    return this.#rules("GET", tenant, `/versions/${version}`);
  }

  /** How recorded events would come out under a version. @param {string} tenant @param {number} version @param {number} limit */
  dryRun(tenant, version, limit) {
    return this.#rules("POST", tenant, "/dry-run", { version, limit });
  }

  /** How they would come out under a text. @param {string} tenant @param {string} text @param {number} limit */
  dryRunText(tenant, text, limit) {
    return this.#rules("POST", tenant, "/dry-run", { limit }, text, { "Content-Type": "application/toml" });
  }

  /** Store a text, in force for a share of the users. @param {string} tenant @param {string} text @param {number} share @param {string} revision Of the state it is made from. */
  storeRules(tenant, text, share, revision) {
    return this.#rules("PUT", tenant, "", { share }, text, { "Content-Type": "application/toml", "If-Match": `"${revision}"` });
  }

  /** Put a version in force for a share of the users. @param {string} tenant @param {number} version @param {number} share @param {string} revision Likewise. */
  stage(tenant, version, share, revision) {
    return this.#rules("POST", tenant, "/stage", {}, { version, share }, { "If-Match": `"${revision}"` });
  }

  /** Take the newest step back. @param {string} tenant @param {string} revision Likewise. */
  rollBack(tenant, revision) {
    return this.#rules("POST", tenant, "/rollback", {}, {}, { "If-Match": `"${revision}"` });
  }

  /** @param {string} method @param {string} tenant @param {string} path @param {Record<string, any>} [query] @param {object | string} [body] @param {Record<string, string>} [headers] */
  #rules(method, tenant, path, query = {}, body = undefined, headers = {}) {
    const words = new URLSearchParams({ ...query, ...(tenant && { tenant }) }).toString();
    return ask(this.token, method, `${tenant ? "/v1/tenant-rules" : "/v1/rules"}${path}${words && "?"}${words}`, body, headers);
  }

  /** Dead letters of a tenant, the newest first. @param {string} tenant @param {{user?: string, after?: string, limit?: number}} [query] */
  deadLetters(tenant, query = {}) {
    return this.#get("/v1/dead-letters", { tenant, ...query });
  }

  /** A dead letter with its message. @param {string} tenant @param {string} letter */
  deadLetter(tenant, letter) {
    return this.#get(`/v1/dead-letters/${encoded(letter)}`, { tenant });
  }

  /** Publish dead letters again; what became of each. @param {string} tenant @param {string[]} letters */
  async redrive(tenant, letters) {
    return (await this.#post(`/v1/dead-letters/redrive?tenant=${encoded(tenant)}`, { letters })).results;
  }

  /** Delete dead letters; how many there were. @param {string} tenant @param {string[]} letters */
  async drop(tenant, letters) {
    return (await this.#post(`/v1/dead-letters/drop?tenant=${encoded(tenant)}`, { letters })).dropped;
  }

  /** @param {string} path @param {Record<string, any>} [query] Empty members are left out. @returns {Promise<any>} */
  #get(path, query = {}) {
    const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
    return ask(this.token, "GET", given.length ? `${path}?${new URLSearchParams(given)}` : path);
  }

  /** @param {string} path @param {object} body @returns {Promise<any>} */
  #post(path, body) {
    return ask(this.token, "POST", path, body);
  }
}
