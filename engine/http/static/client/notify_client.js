/**
 * A connection of one user that keeps itself up.
 *
 * Theory of operation. A `Ledger` knows what the application was shown and what it has settled; its *floor* is the highest
 * sequence number at or below which nothing is unsettled. The floor is the cursor of every transport: presenting it after a
 * break acknowledges what was handled and asks for exactly the rest. The client steps down the ladder WebSocket -> SSE -> polling
 * when the better transport does not get through, and back up by opening a better one beside the working link, which is closed
 * once the new one has answered. With `share`, one tab has such a link and the others have one to that tab (`tabs.js`).
 *
 * States: `connecting` at first; `open`; `reconnecting` or `offline` between two attempts; `paused` in a page that is hidden
 * (`pauseHiddenMs`); `closed` by the application, or for good by the engine. In a tab that shares, the state is that of the tab
 * which has the connection. Times are milliseconds unless a name says otherwise.
 *
 * @typedef {"connecting" | "open" | "reconnecting" | "offline" | "paused" | "closed"} State
 * @typedef {import("./ledger.js").Message} Message
 * @typedef {import("./transports.js").Transport} Transport
 * @typedef {import("./transports.js").Link} Link
 * @typedef {import("./transports.js").End} End
 * @typedef {object} Options
 * @property {string | URL} [url] Where the engine is; the page's own origin when left out. A path is kept as a prefix.
 * @property {string} [token] A JWT. Neither token nor getToken: the cookie `notify_token` carries it.
 * @property {() => string | Promise<string>} [getToken] Asked before the first connection, before expiry and after a refusal.
 * @property {string} [device] Name of this device.
 * @property {string} [lastEventId] Cursor to start from, when the application keeps its own.
 * @property {import("./cursor_store.js").CursorStore | Pick<Storage, "getItem" | "setItem">} [storage] Keeps the cursor of each user across
 *   page loads; IndexedDB when left out. Not used where neither the token nor `share` names the user.
 * @property {boolean | string} [share] One connection for all tabs that have the same user, engine and device; a string names who shares,
 *   which is needed where the user is not known from a token. Default false.
 * @property {number} [pauseHiddenMs] Disconnects a page that has been hidden for so long, until it is visible. Default: never.
 * @property {boolean} [counts] Ask for the counts of the inbox: the event `counts`. Not with polling. Default false.
 * @property {boolean} [digest] After an absence, ask for a digest of what was missed: the event `digest`. Not with polling. Default false.
 * @property {"auto" | "manual"} [ack] "auto" (default): when the `message` listeners have returned.
 * @property {Transport[]} [transports] The ladder, best first.
 * @property {number} [websocketAttempts] WebSockets in a row that never open before the next transport is tried; default 2. One that is
 *   not answered at all is enough.
 * @property {number} [upgradeAfterMs] On a lesser transport: when to try a better one again (doubles up to 10 min); default 60 000.
 */

import { Backoff } from "./backoff.js";
import { cursorStore } from "./cursor_store.js";
import { Growing } from "./growing.js";
import { Ledger, parseEventId } from "./ledger.js";
import { Push } from "./push.js";
import { refusalOf, request } from "./requests.js";
import { Tabs } from "./tabs.js";
import { readClaims } from "./token.js";
import { openPoll, openSse, openWebSocket } from "./transports.js";

const OPEN_TIMEOUT_MS = 10_000; // a proxy that swallows a transport answers nothing at all
const PROBE_TIMEOUT_MS = 5_000; // after sleep or a network change: how long a live server may take to answer a ping
const PROBES_PER_HEARTBEAT = 3;
const STABLE_MS = 5_000; // a link that lived shorter was no success, else accept-then-close would be retried at full speed
const UPGRADE_MAX_MS = 600_000;
const TOKEN_TIMEOUT_MS = 30_000; // of one call of `getToken`
const STORAGE_TIMEOUT_MS = 2000; // a browser may never open its database
const RENEW_MIN_MS = 1000; // between two attempts to get a fresh token for an open connection
const TIMER_MAX_MS = 2 ** 31 - 1;
const TAB_LIVENESS = { heartbeat_ms: 10_000, timeout_ms: 20_000 }; // of the tab that leads: a frozen one answers nothing
const RELAYED = new Set(["revoke", "gap", "nacked", "error", "counts", "digest", "part"]); // what concerns all tabs
const TOO_MANY = 4409;
/** What a request over HTTP may get answered otherwise. @param {number} status */ const RETRIED = (status) => status === 429 || status >= 500;
/** Close codes after which connecting again would end the same way. */
const FINAL = new Map([[4403, "forbidden"], [TOO_MANY, "too many connections of this user"]]);

/**
 * What is asked for, or an error in time.
 * @template T
 * @param {() => T} ask @param {number} ms @param {string} late The error.
 */
async function inTime(ask, ms, late) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */ let timer;
  const end = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${late} within ${ms / 1000} s`)), ms);
  });
  try {
    return await Promise.race([ask(), /** @type {Promise<never>} */ (end)]);
  } finally {
    clearTimeout(timer);
  }
}

/** What is given, as the query of a URL. @param {object} query */
function queryOf(query) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  return new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
}

/**
 * Opens when the current task has ended, so that listeners can be put in place.
 *
 * Events, all CustomEvents: `message` (a {@link Message}, shown once), `duplicate` (one that came again and was dropped), `state`
 * `{state, transport, reason?, code?, retryInMs?}`, `welcome` (the frame), `revoke` `{ids}` handled on another device or in another
 * tab, `gap` `{from, to}` gone (nulls: the cursor was unknown, so is the extent), `counts` (the frame), `digest` (the frame, once after an absence),
 * `part` (a {@link import("./growing.js").Growth} with its text so far, for each change), `user` `{user}` the token or the cookie is another user's, who
 * must not see what was shown before, `error` `{code, detail}`.
 *
 * A message is acknowledged when its listeners have returned. To do it later, or not at all, call `event.preventDefault()` (or set
 * `ack: "manual"`) and then `ack(message)` or `nack([message.id])`; what is never acknowledged comes again after a reload. Tabs that
 * share are one device: each of them is shown a message, and it is acknowledged when one of them has handled it.
 */
export class NotifyClient extends EventTarget {
  /** @type {Link | null} */ #link = null;
  /** @type {Link | null} a WebSocket being tried beside a lesser link */ #candidate = null;
  /** @type {End | null} how the link ended that made room for the candidate */ #evicted = null;
  /** @type {Record<string, ReturnType<typeof setTimeout>>} */ #timers = {};
  /** @type {string | undefined} */ #token;
  /** @type {Promise<void> | undefined} until the token that is being asked for is there */ #freshening;
  /** @type {string | undefined} of engine and user */ #key;
  /** @type {import("./cursor_store.js").CursorStore} */ #store;
  #user = ""; // by the token, or else by the name in `share`; "" where only the engine knows whose the cookie is
  #welcomed = ""; // the user of the last welcome, where only the engine knows
  /** @type {string | null} */ #saved = null;
  /** @type {Tabs | null} */ #tabs = null;
  /** @type {any} the last one of this connection */ #welcome = null;
  /** @type {object} of the last state */ #detail = {};
  /** @type {Push} */ #push;
  /** @type {Growing} */ #growing;
  #ledger = new Ledger();
  #backoff = new Backoff();
  #page = new AbortController(); // ends the listeners on the page
  #turn = 0; // of connecting: what belongs to an earlier one is stale
  #rung = 0; // of the transport ladder
  #websocketFailures = 0;
  #refusals = 0; // in a row, of the token
  /** @type {Set<Transport>} answered with 403 since a link was open */ #forbidden = new Set();
  #upgradeMs = 0;
  #candidateRung = 0;
  #expiresMs = Infinity;
  #heardMs = 0;
  #pingedMs = 0;
  #notBeforeMs = 0; // the server told when to come back, by the clock of `performance`
  #heartbeatMs = 30_000;
  #timeoutMs = 60_000;
  #flushing = false;
  #apart = false; // a connection was lost, and there is none
  #clientId = "";
  #untold = 0; // messages told to the other tabs, and not passed on yet
  #posting = false;
  /** @type {Map<string, (result: any) => void>} by `ref`: requests as frames, unanswered */ #asked = new Map();
  #refs = 0;
  #unsaved = false;
  #saving = false;
  /** @type {State} */ state = "closed";
  /** Id of the connection at the server, null while there is none or the transport has none. @type {string | null} */ connection = null;
  /** The newest counts of the inbox. @type {{unread: number, unseen: number, revision: number} | null} */ counts = null;
  /** Connections established after the first one. */ reconnects = -1;

  /** @param {Options} [options] */
  constructor(options = {}) {
    super();
    this.options = { ack: "auto", share: false, websocketAttempts: 2, upgradeAfterMs: 60_000, ...options };
    this.#store = cursorStore(options.storage);
    /** @type {Transport[]} */ this.transports = options.transports ?? ["websocket", "sse", "poll"];
    this.url = new URL(options.url ?? "/", globalThis.location?.href);
    this.url.protocol = this.url.protocol.replace("ws", "http");
    if (!this.url.pathname.endsWith("/")) this.url.pathname += "/";
    this.#push = new Push(this.url, (method, path, body) => this.#ask(method, path, body));
    this.#growing = new Growing((path) => this.#askForPage(path), (growth) => this.#emit("part", growth));
    queueMicrotask(() => this.#page.signal.aborted || this.open());
  }

  /** The transport in use, null while not open. */
  get transport() {
    return this.state === "open" ? (this.#link?.kind ?? null) : null;
  }

  /** The cursor: everything up to it is handled. */
  get lastEventId() {
    return this.#ledger.lastEventId;
  }

  /** Connect, also after `close()`. Does nothing when it is connected or trying. */
  open() {
    if (this.state !== "closed") return;
    this.#page = new AbortController();
    const { signal } = this.#page;
    for (const type of ["online", "offline", "pageshow"]) globalThis.addEventListener?.(type, () => this.#probe(), { signal });
    globalThis.document?.addEventListener("visibilitychange", () => this.#visibilityChanged(), { signal });
    this.#visibilityChanged();
    this.#rung = this.#websocketFailures = this.#refusals = this.#backoff.step = 0;
    this.#forbidden.clear();
    this.#become("connecting");
    this.#connect();
  }

  /** Disconnect for good; what was handled is acknowledged first. */
  close() {
    if (this.state !== "closed") this.#shut({ reason: "closed by the application" });
    this.#page.abort(); // also before it has opened
  }

  /** Drop the connection and open a new one `afterMs` later. */
  reconnect(afterMs = 0) {
    if (this.state === "closed") return;
    this.#unlink();
    this.#retry(afterMs, { reason: "asked for by the application" });
  }

  /** Acknowledge a message, or everything up to and including a sequence number. @param {number | Message} target */
  ack(target) {
    if (typeof target === "number") this.#ledger.settleThrough(target);
    else {
      this.#ledger.settle(target.id);
      this.#withdraw([target.id]);
    }
    this.#flushSoon();
  }

  /** Say that messages cannot be handled: no retry, they go to the dead-letter queue. It is said until the engine confirms it.
   * @param {string[]} ids @param {string} [reason] */
  nack(ids, reason = "refused by the client") {
    this.#ledger.refuse(ids, reason);
    this.#flushSoon();
  }

  /** Become a subscriber of topics, for good. @param {...string} topics @returns {Promise<string[]>} all topics of the user */
  subscribe(...topics) {
    return this.#eachTopic("PUT", topics);
  }

  /** Be no subscriber any more. @param {...string} topics @returns {Promise<string[]>} the topics that are left */
  unsubscribe(...topics) {
    return this.#eachTopic("DELETE", topics);
  }

  /**
   * A page of what is kept for the user, the newest first. Needs no connection, and acknowledges nothing.
   * @param {{before?: number, limit?: number, unread?: boolean, archived?: boolean, type?: string, q?: string}} [query]
   * @returns {Promise<any>} `{messages, unread, unseen, revision, before?}`; `before` begins the next page
   */
  inbox(query = {}) {
    return this.#ask("GET", `v1/inbox?${queryOf(query)}`);
  }

  /**
   * What the user has missed, in a few lines: what is pending; with `since`, also what is acknowledged and unread since then.
   * @param {{since?: number, limit?: number}} [query] `since`: ms since the epoch; `limit`: lines at most, 20 by default and 100 at most
   * @returns {Promise<any>} `{since, until, messages, lines, skipped, older, model}`; it acknowledges nothing
   */
  digest(query = {}) {
    return this.#ask("GET", `v1/digest?${queryOf(query)}`);
  }

  /** The messages that grow, as far as this page knows. @returns {import("./growing.js").Growth[]} */
  get grows() {
    return this.#growing.all;
  }

  /**
   * Learn which messages grow, also those that began before this page; each comes as `part`. To be called after `welcome`.
   * @returns {Promise<void>} Rejects with {@link Refused}.
   */
  growing() {
    return this.#growing.learn();
  }

  /**
   * Mark messages of the inbox, for all devices; `read` and `archive` acknowledge them too.
   * @param {"read" | "unread" | "seen" | "archive" | "unarchive" | "pin" | "unpin"} mark
   * @param {{ids: string[]} | {upto: Pick<Message, "seq" | "event_id"> | number} | {all: true}} which
   *   A number alone is of another message when the engine has lost its data meanwhile; a message is then refused (409).
   * @returns {Promise<any>} `{unread, unseen, revision, unknown?}`
   */
  async mark(mark, which) {
    const upto = "upto" in which && which.upto;
    const message = typeof upto === "object" && { upto: upto.seq, epoch: parseEventId(upto.event_id)?.epoch };
    const answer = await this.#ask("POST", `v1/inbox/${mark}`, message || which);
    if (mark === "read" || mark === "archive") {
      if ("ids" in which) this.#withdraw(which.ids);
      else if ("all" in which) this.#withdraw();
      else if (this.#push.kept) this.#withdrawThose((one) => one.read).catch((error) => this.#pushFailed(error));
    }
    return answer;
  }

  /**
   * Put messages of the inbox away, on all devices; each comes back then, as a message that `replaces` it. Once more moves the time.
   * @param {string[]} ids
   * @param {Date | number} until As a number, ms since the epoch.
   * @returns {Promise<any>} `{until, unread, unseen, revision, unknown?}`; `unknown`: ids that the inbox does not list
   */
  async snooze(ids, until) {
    const answer = await this.#ask("POST", "v1/inbox/snooze", { ids, until: Number(until) });
    this.#withdraw(ids);
    return answer;
  }

  /**
   * Answer a question, once for all devices. Durable when it resolves, and idempotent. It goes by the open WebSocket, else by a request.
   * @param {string} id Of the message that asks.
   * @param {string | null} answer Id of one of its `answers`; null for a text alone.
   * @param {string} [text] In the user's words, where the question takes a text.
   * @param {string} [topic] That `ask` names, where the members of a topic are asked.
   * @returns {Promise<any>} `{answer, by, at, label?, text?, device?}`. Rejects with {@link Refused}; status 409: it has another answer.
   */
  async answer(id, answer, text = "", topic = "") {
    const given = await this.#askByFrame("answer", { message: id, answer, text, topic });
    if (given) return given;
    const query = this.options.device ? `?device=${encodeURIComponent(this.options.device)}` : "";
    return this.#ask("POST", `v1/answers/${encodeURIComponent(id)}${query}`, { answer, text, topic });
  }

  /**
   * Bring messages back now that were put away.
   * @param {string[]} ids Of the messages that were put away.
   * @returns {Promise<any>} `{coming, unknown?}`
   */
  unsnooze(ids) {
    return this.#ask("POST", "v1/inbox/unsnooze", { ids });
  }

  /**
   * What is put away, the next to come first.
   * @returns {Promise<any>} `{snoozed: [{id, until, message}]}`
   */
  snoozed() {
    return this.#ask("GET", "v1/inbox/snooze");
  }

  /**
   * What the user has chosen, and may choose.
   * @returns {Promise<any>} `{user, zone, locale, quiet, categories, types, targets, available}`
   */
  preferences() {
    return this.#ask("GET", "v1/preferences");
  }

  /**
   * Change what is named, and leave the rest; null removes a choice, or a whole member.
   * @param {object} changes `{categories: {news: "off"}, types: {"post.*": null}, zone: "Asia/Tokyo"}`
   * @returns {Promise<any>} the preferences as they are now
   */
  setPreferences(changes) {
    return this.#ask("PATCH", "v1/preferences", changes);
  }

  /**
   * Push to this browser too, while no page is open. Asks the user for permission, so call it when a button is pressed.
   * @param {{worker?: string}} [options] `worker`: URL of the service worker, on the page's origin; by default the engine's
   *   `client/push_worker.js`, which does where the page is of that origin
   * @returns {Promise<void>} Rejects with {@link Refused}; status 0: the browser cannot, or the user does not permit it.
   */
  async enablePush({ worker } = {}) {
    await this.#push.enable(await this.#keyOfPushes(), worker && new URL(worker, location.href).href);
  }

  /** Push to this browser no more; before the user signs out, too. @returns {Promise<void>} */
  async disablePush() {
    await this.#push.disable();
  }

  /** Whether this browser is pushed to, for this user. @returns {Promise<"on" | "off" | "denied" | "unavailable">} */
  async pushState() {
    return this.#push.stateFor(this.#push.kept ? await this.#keyOfPushes() : "");
  }

  /** Of engine and user, whom the engine names where the token does not. */
  async #keyOfPushes() {
    await this.#freshToken();
    return this.#user ? (this.#key ?? "") : `notify:${this.#place}:default:${(await this.preferences()).user}`;
  }

  /** Close the pushes of messages that came to the user otherwise. @param {string[]} [ids] all without */
  #withdraw(ids) {
    if (this.#push.kept) this.#push.withdraw(ids).catch((error) => this.#pushFailed(error));
  }

  /** The page is open: what a device has acknowledged needs no push. */
  async #pushOpened() {
    await this.#push.renew(await this.#keyOfPushes());
    await this.#withdrawThose((one) => one.acknowledged);
  }

  /** Close the pushes of such messages of the inbox, and of those that were put away. @param {(message: any) => boolean} which */
  async #withdrawThose(which) {
    for (const archived of [false, true]) {
      if (!(await this.#push.shown()).length) return;
      const { messages } = await this.inbox({ limit: 100, archived }).catch((error) => {
        if (error.status !== 404) throw error;
        return { messages: [] }; // this engine keeps no inboxes
      });
      await this.#push.withdraw(messages.filter((/** @type {any} */ one) => archived || which(one)).map((/** @type {any} */ one) => one.id));
    }
  }

  /** @param {unknown} error */
  #pushFailed(error) {
    this.#emit("error", { code: "push", detail: String(error) });
  }

  /** @param {string} method @param {string[]} topics @returns {Promise<string[]>} @throws {import("./requests.js").Refused} */
  async #eachTopic(method, topics) {
    if (!topics.length) return (await this.#ask("GET", "v1/subscriptions")).topics;
    let answer;
    for (const topic of topics) answer = await this.#ask(method, `v1/subscriptions/${encodeURIComponent(topic)}`);
    return answer.topics;
  }

  /** For what is shown without being asked for; null for a closed client, and where the user is another one by then.
   * @param {string} path @returns {Promise<any>} @throws {import("./requests.js").Refused} */
  async #askForPage(path) {
    if (this.state === "closed") return null;
    const key = this.#key;
    const answer = await this.#ask("GET", path).catch((error) => {
      if (this.state === "closed") return null;
      throw error;
    });
    return key === this.#key ? answer : null;
  }

  /** The body of the engine's answer. @param {string} method @param {string} path @param {object} [body] @returns {Promise<any>} */
  async #ask(method, path, body) {
    await this.#freshToken();
    const init = { ...this.#init(), method, ...(body && { body: JSON.stringify(body) }) };
    if (body) init.headers["Content-Type"] = "application/json";
    return request(new URL(path, this.url), init).catch((error) => {
      if (error.status === 401) this.#expiresMs = 0; // the next one asks for another token
      throw error;
    });
  }

  /**
   * The answer to a request as a frame; null where nothing takes it, or no answer came: it may have taken effect then.
   * @param {string} type @param {object} members @returns {Promise<any>} @throws {import("./requests.js").Refused}
   */
  async #askByFrame(type, members) {
    const link = this.#link;
    if (!link?.openedMs || !link.duplex || link.shared) return null;
    const ref = String(++this.#refs);
    const result = await new Promise((resolve) => {
      this.#asked.set(ref, resolve);
      this.#after(ref, OPEN_TIMEOUT_MS, () => resolve(null));
      link.send({ type, ref, ...members });
    });
    clearTimeout(this.#timers[ref]);
    delete this.#timers[ref];
    this.#asked.delete(ref);
    if (!result || RETRIED(result.status)) return null;
    const { type: _, ref: __, status, problem, ...answer } = result;
    if (problem) throw refusalOf(status, problem);
    return answer;
  }

  // -- connecting --

  /** Of the engine: a host may have several, each below a path. */
  get #place() {
    return this.url.host + this.url.pathname.replace(/\/$/, "");
  }

  async #connect() {
    const turn = ++this.#turn;
    clearTimeout(this.#timers.retry);
    try {
      await this.#freshToken();
    } catch (error) {
      if (turn === this.#turn) this.#retry(this.#backoff.next(), { reason: `no token: ${error}` });
      return;
    }
    if (turn === this.#turn && !this.#tabs && this.#shares()) await this.#enterTabs();
    if (turn !== this.#turn) return;
    this.#link = this.#tabs && !this.#tabs.leading ? this.#openTab(this.#tabs) : this.#openLink(this.transports[this.#rung]);
  }

  /** One at a time: of two that find a new user, the later would leave the tabs that the earlier has joined. */
  #freshToken() {
    this.#freshening ??= this.#refreshToken().finally(() => (this.#freshening = undefined));
    return this.#freshening;
  }

  async #refreshToken() {
    if (this.options.getToken && (!this.#token || this.#expiresMs < Date.now() + 5000)) await this.#renew();
    else if (this.#key === undefined) await this.#useToken(this.options.token);
  }

  async #renew() {
    const token = await inTime(() => this.options.getToken?.(), TOKEN_TIMEOUT_MS, "getToken has given no token");
    await this.#useToken(token);
    const link = this.#link;
    if (link?.openedMs && link.duplex && !link.shared) link.send({ type: "auth", token });
  }

  /** @param {string | undefined} token */
  async #useToken(token) {
    const { tenant = "default", sub = "", exp } = readClaims(token ?? "");
    const user = sub || (typeof this.options.share === "string" ? this.options.share : "");
    const key = `notify:${this.#place}:${tenant}:${user || this.#welcomed}`;
    const other = key !== this.#key;
    if (other) {
      const given = this.#key === undefined ? this.options.lastEventId : null; // another user has another cursor
      const kept = user ? await this.#kept(key) : null; // a cookie alone may be another user's by now
      this.#saved = given ?? kept?.cursor ?? null;
      this.#ledger = new Ledger(this.#saved, { settled: kept?.settled });
      this.#leaveTabs();
      this.#welcome = this.counts = null;
    }
    const another = other && this.#key !== undefined;
    this.#user = user;
    this.#token = token;
    this.#key = key;
    // One that has expired by this page's clock would be renewed without end where that is ahead: the engine tells when it has.
    this.#expiresMs = exp * 1000 > Date.now() ? exp * 1000 : Infinity;
    const leftMs = this.#expiresMs - Date.now();
    const early = async () => {
      if (this.state === "closed" || this.#follows()) return;
      await this.#renew().catch((error) => {
        this.#emit("error", { code: "token", detail: String(error) });
        if (this.#link?.openedMs) this.#after("renew", Math.max((this.#expiresMs - Date.now()) / 2, RENEW_MIN_MS), early);
      });
    };
    clearTimeout(this.#timers.renew);
    if (this.options.getToken && leftMs < Infinity) this.#after("renew", leftMs * 0.8, early);
    if (another) {
      this.#growing.endAll();
      this.#emit("user", { user: sub });
    }
    if (!other || !(this.#link || this.#candidate)) return;
    this.#dropCandidate(); // a connection is one user's: what comes on this one must not count as the other's
    this.reconnect();
  }

  /** What the last page kept; without it the engine sends again what was not acknowledged. @param {string} key */
  async #kept(key) {
    try {
      return await inTime(() => this.#store.load(key), STORAGE_TIMEOUT_MS, "no answer");
    } catch (error) {
      this.#emit("error", { code: "storage", detail: String(error) });
      return null;
    }
  }

  /** What a connection begins with; none where a cookie may be another user's by now, whose messages it would acknowledge. */
  get #presented() {
    return this.#welcomed ? null : this.lastEventId;
  }

  /** @param {Transport} kind @returns {Link} */
  #openLink(kind) {
    const url = new URL({ websocket: "v1/ws", sse: "v1/sse", poll: "v1/poll" }[kind], this.url);
    if (this.options.device) url.searchParams.set("device", this.options.device);
    if (this.options.digest) url.searchParams.set("digest", "1");
    if (this.options.counts) url.searchParams.set("counts", "true");
    if (this.#presented) url.searchParams.set("last_event_id", this.#presented);
    const late = setTimeout(() => hooks.end({ silent: true, reason: "no answer" }), OPEN_TIMEOUT_MS);
    /** @type {Link} */
    const link = { kind, duplex: false, shared: false, openedMs: 0, opened: () => clearTimeout(late), send: () => {}, close: () => {} };
    /** @type {import("./transports.js").Hooks} */
    const hooks = {
      cursor: () => this.#presented,
      frame: (frame) => this.#received(link, frame),
      alive: () => this.#alive(link),
      end: (end) => {
        link.opened();
        this.#ended(link, end);
      },
    };
    try {
      if (kind === "websocket") Object.assign(link, openWebSocket(url, this.#token, hooks));
      else Object.assign(link, (kind === "sse" ? openSse : openPoll)(url, () => this.#init(), hooks));
    } catch (error) {
      queueMicrotask(() => hooks.end({ status: 401, reason: String(error) })); // the token cannot even be a subprotocol
    }
    return link;
  }

  // -- tabs that share --

  #shares() {
    return Boolean(this.options.share && Tabs.available && this.#user);
  }

  /** Whether another tab has the connection. */
  #follows() {
    return this.#tabs !== null && !this.#tabs.leading;
  }

  async #enterTabs() {
    const group = typeof this.options.share === "string" ? `notify:${this.#place}:${this.options.share}` : this.#key;
    /** @type {Tabs | undefined} */ let tabs;
    try {
      tabs = this.#tabs = new Tabs(`${group}:${this.options.device ?? ""}`, {
        lead: () => this.#changeRole("this tab has the connection now"),
        follow: () => this.#changeRole("another tab has the connection"),
        asked: (from, frame) => this.#serve(from, frame),
        told: (frame) => this.#told(frame),
        passed: () => {
          this.#untold = Math.max(this.#untold - 1, 0);
          this.#flushSoon();
        },
      });
      await tabs.enter();
    } catch {
      if (tabs === this.#tabs) this.#leaveTabs(); // the browser refuses locks or channels: this tab connects by itself
    }
  }

  #leaveTabs() {
    this.#tabs?.leave();
    this.#tabs = null;
    this.#untold = 0;
  }

  /** @param {string} reason */
  #changeRole(reason) {
    this.#untold = 0;
    this.#dropCandidate();
    this.#unlink();
    this.#endProbes();
    if (this.state === "open") this.#become("reconnecting", { reason, retryInMs: 0 });
    this.#connect();
  }

  /** A link to the tab that leads. @param {Tabs} tabs @returns {Link} */
  #openTab(tabs) {
    const late = setTimeout(() => this.#ended(link, { silent: true, reason: "no answer" }), OPEN_TIMEOUT_MS);
    /** @type {Link} */
    const link = {
      kind: "websocket", duplex: true, shared: true, openedMs: 0,
      opened: () => clearTimeout(late), send: (frame) => tabs.ask(frame), close: () => {},
    };
    tabs.ask({ type: "join", last_event_id: this.lastEventId });
    return link;
  }

  /** The tab that leads tells something. @param {any} frame */
  #told(frame) {
    const link = this.#link;
    if (!link?.shared) {
      if (this.#tabs?.leading && frame.type === "messages") this.#deliver(frame.messages); // the tab that led before had these
      return this.#flushSoon();
    }
    if (frame.type === "lead") link.send({ type: "join", last_event_id: this.lastEventId });
    else this.#received(link, frame);
  }

  /** A tab asks this one, which leads. @param {string} from @param {any} frame */
  #serve(from, frame) {
    const ledger = this.#ledger;
    const open = ledger.open;
    const tell = (/** @type {object} */ answer) => this.#tabs?.tell(answer, from);
    if (frame.type === "join") {
      const cursor = parseEventId(frame.last_event_id);
      if (cursor && cursor.epoch === ledger.epoch) ledger.settleThrough(cursor.seq);
      tell(this.#stateFrame());
      if (this.#welcome) tell({ ...this.#welcome, epoch: ledger.epoch, resumed: "ok", from: ledger.floor + 1, ...TAB_LIVENESS });
      if (this.counts) tell(this.counts);
      if (ledger.open.length) tell({ type: "messages", messages: ledger.open });
    } else if (frame.type === "ack" && frame.ids) for (const id of frame.ids) ledger.settle(id);
    else if (frame.type === "ack") ledger.settleThrough(frame.seq);
    else if (frame.type === "nack") this.nack(frame.ids, frame.reason);
    else if (frame.type === "ping") tell({ type: "pong", ts: frame.ts });
    const left = new Set(ledger.open);
    const ids = open.filter((message) => !left.has(message)).map(({ id }) => id);
    if (ids.length) this.#emit("revoke", { ids }); // this page shows them too
    this.#flushSoon();
  }

  #stateFrame() {
    const { state, transport, connection, reconnects } = this;
    return { type: "state", state, transport, connection, reconnects, detail: this.#detail };
  }

  // -- links --

  /** What all requests have in common. @returns {RequestInit & {headers: Record<string, string>}} */
  #init() {
    if (!this.#token) return { headers: {}, cache: "no-store", credentials: "include" };
    return { headers: { Authorization: `Bearer ${this.#token}` }, cache: "no-store" };
  }

  /** Something arrived; the first time, the link is open. @param {Link} link @param {string | null} [connection] */
  #alive(link, connection = null) {
    if (link !== this.#link && link !== this.#candidate) return;
    this.#heardMs = Date.now();
    if (link.openedMs) return;
    if (link === this.#candidate) this.#unlink(); // make before break: the lesser link has served
    this.#link = link;
    this.#candidate = null;
    this.connection = connection;
    link.openedMs = this.#heardMs;
    link.opened();
    this.#notBeforeMs = 0; // it has come back
    this.#endProbes();
    if (link.shared) return this.#watch(); // all else it is told
    this.reconnects++;
    this.#refusals = 0;
    this.#forbidden.clear();
    this.#rung = this.transports.indexOf(link.kind);
    if (link.kind === "websocket") this.#websocketFailures = this.#upgradeMs = 0;
    else this.#scheduleUpgrade(this.#upgradeMs || this.options.upgradeAfterMs);
    this.#become("open");
    this.#watch();
    this.#flushSoon();
  }

  /** @param {Link} link @param {End} end @returns {void} */
  #ended(link, end) {
    link.close();
    if (link === this.#candidate) {
      this.#candidate = null;
      const evicted = this.#evicted;
      if (this.#link && ++this.#candidateRung < this.#rung) this.#tryBetter();
      else if (this.#link && evicted) {
        this.#evicted = null;
        return this.#ended(this.#link, evicted);
      } else if (this.#link) this.#scheduleUpgrade(this.#upgradeMs * 2);
    }
    if (link !== this.#link || this.#evicted) return;
    if (end.code === TOO_MANY && this.#candidate) {
      this.#evicted = end; // the engine may have made room for the candidate: final only if that fails
      return;
    }
    this.#unlink();
    if (link.shared) return this.#tabs?.steal();
    const { code = 0, status = 0, silent = false } = end;
    if (status === 403) this.#forbidden.add(link.kind);
    // A proxy may forbid one transport. A WebSocket tells no status.
    const everywhere = status === 403 && this.transports.every((kind) => kind === "websocket" || this.#forbidden.has(kind));
    if (FINAL.has(code) || everywhere) return this.#shut({ ...end, reason: end.reason || FINAL.get(code) || "forbidden" });
    if (code === 4401 || status === 401) {
      if (!this.options.getToken || ++this.#refusals > 2) return this.#shut({ ...end, reason: "unauthorized" });
      this.#token = undefined;
      return this.#retry(this.#refusals > 1 ? this.#backoff.next() : 0, end);
    }
    if (Date.now() - link.openedMs >= STABLE_MS && link.openedMs) this.#backoff.step = 0;
    const rung = this.#rung;
    if (!link.openedMs) this.#step(link.kind, silent || (status > 0 && status !== 429 && status !== 503), silent);
    if (end.retryAfterMs) this.#notBeforeMs = performance.now() + end.retryAfterMs * (1 + this.#backoff.jitter * Math.random());
    const told = this.#notBeforeMs - performance.now();
    const delayMs = this.#rung > rung ? 0 : this.#backoff.next(); // the transports of one round follow at once
    this.#retry(told > 0 ? told : (end.retryAfterMs ?? delayMs), end);
  }

  /** A transport that never opened: which one is next. @param {Transport} kind @param {boolean} blocked the server, or a proxy, answered
   * @param {boolean} silent nothing was answered in time: once is enough, where a restart would refuse */
  #step(kind, blocked, silent) {
    const { websocketAttempts } = this.options;
    const last = this.transports.length - 1;
    if (kind === "websocket") {
      this.#websocketFailures += silent ? websocketAttempts : 1;
      this.#rung = this.#websocketFailures >= websocketAttempts ? Math.min(1, last) : 0;
    } else if (blocked) this.#rung = this.#rung < last ? this.#rung + 1 : 0; // the network may be another one by now
    else [this.#rung, this.#websocketFailures] = [0, websocketAttempts - 1]; // no server at all: no reason to step down
  }

  /** @param {number} delayMs @param {End} end */
  #retry(delayMs, end) {
    this.#become(globalThis.navigator?.onLine === false ? "offline" : "reconnecting", { ...end, retryInMs: delayMs });
    this.#after("retry", delayMs, () => this.#connect());
    if (this.#apart || this.reconnects < 0 || this.#follows()) return;
    this.#apart = true;
    this.#probeLater(0);
  }

  /** @param {number} afterMs */
  #scheduleUpgrade(afterMs) {
    if (this.#rung === 0) return;
    this.#upgradeMs = Math.min(afterMs, UPGRADE_MAX_MS);
    const spread = 1 + this.#backoff.jitter * (2 * Math.random() - 1); // pages that fell back together do not come back together
    this.#after("upgrade", this.#upgradeMs * spread, () => {
      this.#candidateRung = 0;
      this.#tryBetter();
    });
  }

  #tryBetter() {
    this.#candidate = this.#openLink(this.transports[this.#candidateRung]);
  }

  #dropCandidate() {
    const candidate = this.#candidate;
    this.#candidate = null;
    candidate?.opened();
    candidate?.close();
  }

  /** Let go of the link and of everything that was going to happen on it. */
  #unlink() {
    const link = this.#link;
    this.#link = null;
    this.#evicted = null;
    this.connection = null;
    for (const name of ["watch", "probe", "drain", "upgrade", "retry"]) clearTimeout(this.#timers[name]);
    this.#turn++;
    link?.opened();
    link?.close();
    for (const answered of this.#asked.values()) answered(null);
  }

  /** @param {End} end */
  #shut(end) {
    this.#flush();
    this.#disconnect();
    this.#page.abort();
    clearTimeout(this.#timers.renew);
    clearTimeout(this.#timers.pause);
    this.#become("closed", end);
  }

  #disconnect() {
    this.#unlink();
    this.#endProbes();
    this.#dropCandidate();
    this.#leaveTabs();
  }

  #visibilityChanged() {
    const { pauseHiddenMs } = this.options;
    clearTimeout(this.#timers.pause);
    if (globalThis.document?.visibilityState !== "hidden") {
      if (this.state !== "paused") return this.#probe();
      this.#become("connecting");
      this.#connect();
    } else if (pauseHiddenMs !== undefined) this.#after("pause", pauseHiddenMs, () => this.#pause());
  }

  #pause() {
    this.#flush();
    this.#disconnect();
    this.#become("paused", { reason: "the page is hidden" });
  }

  // -- liveness --

  /** A server is silent when it does not answer a ping either: in a page that has been hidden for long, timers come a minute late. */
  #watch() {
    const link = this.#link;
    if (!link) return;
    const nowMs = Date.now();
    [this.#heardMs, this.#pingedMs] = [Math.min(this.#heardMs, nowMs), Math.min(this.#pingedMs, nowMs)]; // a clock may be set back
    const silentMs = nowMs - this.#heardMs;
    const askedMs = this.#pingedMs > this.#heardMs ? nowMs - this.#pingedMs : 0;
    const unanswered = !link.duplex || askedMs >= Math.min(this.#timeoutMs / 2, PROBE_TIMEOUT_MS);
    if (silentMs >= this.#timeoutMs && unanswered) return this.#ended(link, { reason: "server silent" });
    if (silentMs >= this.#heartbeatMs / 2) this.#ping(link);
    const leftMs = this.#timeoutMs - silentMs;
    this.#after("watch", leftMs > 0 ? Math.min(this.#heartbeatMs / 2, leftMs) : this.#heartbeatMs / 2, () => this.#watch());
  }

  /** @param {Link} link */
  #ping(link) {
    if (this.#pingedMs <= this.#heardMs) this.#pingedMs = Date.now();
    link.send({ type: "ping", ts: Date.now() });
  }

  /** The page woke up or the network changed. `navigator.onLine` is only a hint (an engine on this machine works without a network). */
  #probe() {
    const link = this.#link;
    const waiting = this.state === "reconnecting" || this.state === "offline";
    if (!link && waiting && performance.now() >= this.#notBeforeMs) this.#retry(0, { reason: "page or network is back" });
    if (link?.openedMs) {
      const askedMs = Date.now();
      this.#ping(link);
      if (!link.duplex) return this.#watch();
      this.#after("probe", PROBE_TIMEOUT_MS, () => this.#heardMs < askedMs && this.#ended(link, { reason: "no answer to a probe" }));
    }
  }

  /** Heartbeat probes while there is no connection: the engine expects this client for longer, and the user does not become offline.
   * @param {number} askedMs what the engine wants to be waited for */
  #probeLater(askedMs) {
    const spread = 1 + this.#backoff.jitter * (2 * Math.random() - 1);
    this.#after("heartbeat", Math.max(askedMs, (this.#heartbeatMs / PROBES_PER_HEARTBEAT) * spread), async () => {
      const asked = await this.#probeHeartbeat();
      if (this.#apart) this.#probeLater(asked);
    });
  }

  /** One probe. @returns {Promise<number>} for how long the engine wants no other */
  async #probeHeartbeat() {
    const init = this.#init();
    this.#clientId ||= this.options.device?.replace(/[^ -~]/gu, encodeURIComponent) ?? Math.random().toString(36).slice(2);
    Object.assign(init.headers, { "X-Client-ID": this.#clientId, "X-Last-Seq": String(this.#ledger.floor) });
    try {
      await request(new URL("v1/heartbeat", this.url), { ...init, signal: AbortSignal.timeout(OPEN_TIMEOUT_MS) });
    } catch (error) { // the next one may get through; why nothing does is told by the attempts to connect
      return /** @type {import("./requests.js").Refused} */ (error).retryAfterMs ?? 0;
    }
    return 0;
  }

  #endProbes() {
    this.#apart = false;
    clearTimeout(this.#timers.heartbeat);
  }

  // -- frames --

  /** @param {Link} link @param {any} frame */
  #received(link, frame) {
    if (link !== this.#link && link !== this.#candidate) return;
    this.#heardMs = Date.now();
    if (link.shared) this.#alive(link);
    if (RELAYED.has(frame.type)) this.#relay(frame);
    if (frame.type === "welcome") this.#greeted(link, frame);
    else if (frame.type === "messages" || frame.type === "early") this.#deliver(frame.messages);
    else if (frame.type === "nacked") this.#ledger.revoke(frame.ids);
    else if (frame.type === "answer_result") this.#asked.get(frame.ref)?.(frame);
    else if (frame.type === "revoke") {
      const ids = this.#ledger.revoke(frame.ids);
      this.#withdraw(frame.ids);
      if (ids.length) this.#emit("revoke", { ids });
    } else if (frame.type === "gap") {
      this.#ledger.gap(frame.from, frame.to);
      this.#emit("gap", frame);
    } else if (frame.type === "drain") {
      this.#notBeforeMs = performance.now() + frame.after_ms; // the server closes before or then; if it does not, we do
      this.#after("drain", frame.after_ms, () => this.#ended(link, { code: 1012, reason: "drained", retryAfterMs: 0 }));
    } else if (frame.type === "settled") {
      const ids = this.#ledger.settledElsewhere(frame);
      if (ids.length) this.#emit("revoke", { ids });
    } else if (frame.type === "state") {
      Object.assign(link, frame.transport && { kind: frame.transport });
      this.connection = frame.connection;
      this.reconnects = frame.reconnects;
      this.#become(frame.state, frame.detail);
    } else if (frame.type === "counts") {
      if (frame.revision > (this.counts?.revision ?? -1)) this.#counted(frame);
    } else if (frame.type === "digest") this.#emit("digest", frame);
    else if (frame.type === "part") this.#growing.part(frame);
    else if (frame.type === "close") return this.#ended(link, frame); // SSE has no close codes of its own
    else if (frame.type === "error") this.#emit("error", frame);
    this.#flushSoon();
  }

  /** @param {{unread: number, unseen: number, revision: number}} frame */
  #counted(frame) {
    this.counts = frame;
    this.#emit("counts", frame);
    if (this.#push.kept) this.#withdrawThose((one) => one.read).catch((error) => this.#pushFailed(error)); // on another device, perhaps
  }

  /** @param {Link} link @param {any} frame */
  #greeted(link, frame) {
    if (!this.#user && frame.user && frame.user !== this.#welcomed) this.#meet(frame.user);
    this.#heartbeatMs = frame.heartbeat_ms ?? this.#heartbeatMs;
    this.#timeoutMs = frame.timeout_ms ?? this.#timeoutMs;
    this.#backoff.delaysMs = frame.reconnect?.delays_ms ?? this.#backoff.delaysMs;
    this.#backoff.jitter = frame.reconnect?.jitter ?? this.#backoff.jitter;
    this.#welcome = frame;
    if (frame.epoch !== this.#ledger.epoch) this.counts = null; // revisions begin anew
    const gone = this.#ledger.welcome(frame);
    this.#alive(link, frame.connection);
    this.#relay({ ...frame, ...TAB_LIVENESS });
    this.#emit("welcome", frame);
    if (frame.resumed === "gap") this.#emit("gap", { from: null, to: null });
    if (gone.length) this.#emit("revoke", { ids: gone });
    if (this.#push.kept) this.#pushOpened().catch((error) => this.#pushFailed(error));
  }

  /** The engine names the user of the cookie, for the first time or as another one. @param {string} user */
  #meet(user) {
    const another = this.#welcomed !== "";
    this.#welcomed = user;
    this.#key = `notify:${this.#place}:default:${user}`;
    if (!another) return;
    this.#ledger = new Ledger();
    this.counts = null;
    this.#growing.endAll();
    this.#emit("user", { user });
  }

  /** @param {Message[]} messages */
  #deliver(messages) {
    const received = messages.map((message) => ({ message, verdict: this.#ledger.receive(message) }));
    // The other tabs have them before any of them is acknowledged. Not what was settled: a tab opened since has never seen it.
    const unsettled = received.filter(({ verdict }) => verdict !== "settled").map(({ message }) => message);
    if (unsettled.length && this.#tabs?.leading) {
      this.#untold += 1;
      this.#relay({ type: "messages", messages: unsettled });
    }
    for (const { message, verdict } of received) this.#show(message, verdict);
  }

  /** @param {Message} message @param {"new" | "open" | "settled"} verdict */
  #show(message, verdict) {
    this.#growing.arrived(message.id);
    if (verdict !== "new") {
      this.#emit("duplicate", message);
      return;
    }
    if (message.replaces) this.#ledger.settle(message.replaces, message); // the new one stands for it: nobody will acknowledge it any more
    if (this.#emit("message", message) && this.options.ack === "auto") this.ack(message);
  }

  /** To the tabs that follow this one. @param {object} frame */
  #relay(frame) {
    if (this.#tabs?.leading) this.#tabs.tell(frame);
  }

  /** One acknowledgement for all that happens in this task. */
  #flushSoon() {
    if (this.#flushing) return;
    this.#flushing = true;
    queueMicrotask(() => this.#flush());
  }

  #flush() {
    this.#flushing = false;
    if (this.#untold) return; // nothing is acknowledged before the other tabs have it
    const link = this.#link;
    if (link?.openedMs && !link.duplex) this.#post(link);
    else if (link?.openedMs) {
      for (const ack of this.#takeAcks(true)) link.send({ type: "ack", ...ack, ts: Date.now() });
      for (const nack of this.#ledger.takeNacks()) link.send({ type: "nack", ...nack });
    }
    if (this.#unsaved || this.lastEventId !== this.#saved) this.#save();
  }

  /** @param {boolean} numbers */
  #takeAcks(numbers) {
    const acks = this.#ledger.takeAcks(numbers);
    if (acks.length) this.#unsaved = true;
    for (const ack of acks) this.#relay({ type: "settled", ...ack });
    return acks;
  }

  /** One request at a time; what is settled meanwhile goes with the next. @param {Link} link */
  async #post(link) {
    if (this.#posting) return;
    this.#posting = true;
    const init = { ...this.#init(), method: "POST", keepalive: true };
    init.headers["Content-Type"] = "application/json";
    // One that is not answered must not hold up what is settled later, on this link or the next.
    const send = async (/** @type {string} */ path, /** @type {object} */ body) => {
      const signal = AbortSignal.timeout(OPEN_TIMEOUT_MS);
      const answer = await request(new URL(path, this.url), { ...init, body: JSON.stringify(body), signal });
      if (!answer) throw new Error("the answer is not an engine's"); // a proxy's page confirms nothing
    };
    try {
      for (;;) {
        const acks = this.#takeAcks(!this.#welcomed); // the cookie may be another user's since this link was opened
        const nacks = this.#ledger.takeNacks();
        if (!acks.length && !nacks.length) break;
        const { epoch } = this.#ledger; // a request belongs to no connection: it says of which epoch its number is
        for (const ack of acks) await send("v1/ack", "seq" in ack ? { ...ack, epoch } : ack);
        for (const nack of nacks) {
          await send("v1/nack", nack);
          this.#confirmed(nack.ids);
        }
        link.send({}); // a pausing poll goes on
      }
    } catch (error) {
      const { message, retryAfterMs } = /** @type {import("./requests.js").Refused} */ (error);
      if (link === this.#link) this.#ended(link, { reason: `acknowledgement or refusal failed: ${message}`, retryAfterMs }); // said again on the next one
    } finally {
      this.#posting = false;
      if (link !== this.#link) this.#flushSoon(); // what was settled on the next one has waited
    }
  }

  /** The engine has these among the dead letters. @param {string[]} ids */
  #confirmed(ids) {
    this.#relay({ type: "nacked", ids });
    this.#ledger.revoke(ids);
    this.#flushSoon(); // the cursor may have moved
  }

  async #save() {
    this.#unsaved = true;
    if (this.#saving || !this.#user || this.#follows()) return;
    this.#saving = true;
    try {
      while (this.#unsaved) {
        this.#unsaved = false;
        this.#saved = this.lastEventId;
        if (this.#saved) await this.#store.save(/** @type {string} */ (this.#key), this.#ledger.kept);
      }
    } catch (error) {
      this.#emit("error", { code: "storage", detail: String(error) });
    } finally {
      this.#saving = false;
    }
  }

  // -- events --

  /** @param {State} state @param {object} [detail] */
  #become(state, detail = {}) {
    this.state = state;
    this.#detail = detail;
    if (state !== "closed" && state !== "paused") this.#relay(this.#stateFrame());
    this.#emit("state", { state, transport: this.transport, ...detail });
  }

  /** True unless a listener called preventDefault(), or raised, which only the page is told. @param {string} type @param {any} detail */
  #emit(type, detail) {
    let raised = false;
    const note = () => (raised = true);
    globalThis.addEventListener?.("error", note, { capture: true });
    const wanted = this.dispatchEvent(new CustomEvent(type, { detail, cancelable: true }));
    globalThis.removeEventListener?.("error", note, { capture: true });
    return wanted && !raised;
  }

  /** One timer per name. @param {string} name @param {number} ms @param {() => void} run */
  #after(name, ms, run) {
    clearTimeout(this.#timers[name]);
    this.#timers[name] = setTimeout(run, Math.min(Math.max(ms, 0), TIMER_MAX_MS));
  }
}
