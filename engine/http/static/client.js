/**
 * The browser client: `import { NotifyClient } from "/client.js"`. One ES module, no dependency.
 *
 * Theory of operation. A `Ledger` knows what the application was shown and what it has settled; its *floor* is the highest
 * sequence number at or below which nothing is unsettled. The floor is the cursor of every transport: presenting it after a
 * break acknowledges what was handled and asks for exactly the rest. A *link* is one WebSocket, SSE stream or polling loop;
 * all turn what they receive into the frames of PROTOCOL.md and say once how they ended. The client steps down the ladder
 * WebSocket -> SSE -> polling when the better transport does not get through, and back up by opening a WebSocket beside the
 * working link, which is closed once the new one has said welcome. Times are milliseconds unless a name says otherwise.
 *
 * @typedef {"connecting" | "open" | "reconnecting" | "offline" | "closed"} State
 * @typedef {"websocket" | "sse" | "poll"} Transport
 * @typedef {{seq: number, id: string, event_id: string, type: string, priority: "high" | "normal" | "low", ts: number, attempt: number,
 *   actor?: any, target?: any, context?: any, url?: string, data?: any, count?: number, actors?: any[], text?: string, replaces?: string}} Message
 * @typedef {object} Options
 * @property {string | URL} [url] Where the engine is; the page's own origin when left out. A path is kept as a prefix.
 * @property {string} [token] A JWT. Neither token nor getToken: the cookie `notify_token` carries it.
 * @property {() => string | Promise<string>} [getToken] Asked before the first connection, before expiry and after a refusal.
 * @property {string} [device] Name of this device.
 * @property {string} [lastEventId] Cursor to start from, when the application keeps its own.
 * @property {Pick<Storage, "getItem" | "setItem">} [storage] Keeps the cursor of each user; memory only when left out.
 * @property {"auto" | "manual"} [ack] "auto" (default): when the `message` listeners have returned.
 * @property {Transport[]} [transports] The ladder, best first.
 * @property {number} [websocketAttempts] WebSockets in a row that never open before the next transport is tried; default 2.
 * @property {number} [upgradeAfterMs] On a lesser transport: when to try a WebSocket again (doubles up to 10 min); default 60 000.
 * @typedef {{code?: number, status?: number, silent?: boolean, retryAfterMs?: number, reason: string}} End How a link ended.
 * @typedef {{kind: Transport, openedMs: number, opened(): void, send(frame: object): void, close(): void}} Link
 * @typedef {{frame(frame: any): void, alive(): void, end(end: End): void, cursor(): string | null}} Hooks What a link tells and asks.
 */

const PROTOCOL = "notify.v1.json";
const OPEN_TIMEOUT_MS = 10_000; // a proxy that swallows a transport answers nothing at all
const PROBE_TIMEOUT_MS = 5_000; // after sleep or a network change: how long a live server may take to answer a ping
const STABLE_MS = 5_000; // a link that lived shorter was no success, else accept-then-close would be retried at full speed
const UPGRADE_MAX_MS = 600_000;
const SETTLED_MAX = 4096; // ids remembered to drop repeats: 16 in-flight windows
const POLL_WAIT_S = 25;
const TIMER_MAX_MS = 2 ** 31 - 1;
/** Close codes after which connecting again would end the same way. */
const FINAL = new Map([[1008, "protocol violation"], [4403, "forbidden"], [4409, "too many connections of this user"]]);

/** `"7-1042"` -> `{epoch: "7", seq: 1042}`; null when it is not a cursor. @param {string | null | undefined} text */
export function parseEventId(text) {
  const match = /^(.+)-(\d+)$/.exec(text ?? "");
  return match && { epoch: match[1], seq: Number(match[2]) };
}

/** The claims of a JWT, unverified: only for choosing a storage key and a renewal time. @param {string} token @returns {any} */
export function readClaims(token) {
  try {
    const bytes = Uint8Array.from(atob(token.split(".")[1].replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0));
    return JSON.parse(new TextDecoder().decode(bytes)) ?? {};
  } catch {
    return {}; // an opaque token is fine, it just cannot be looked into
  }
}

/** Delays of successive attempts, each spread by +-jitter so that clients cut off together do not come back together. */
export class Backoff {
  step = 0; // 0 again after a success

  constructor(delaysMs = [1000, 2000, 5000, 10_000], jitter = 0.3) {
    this.delaysMs = delaysMs;
    this.jitter = jitter;
  }

  /** The next delay. @param {number} [random] uniform in [0, 1) */
  next(random = Math.random()) {
    const base = this.delaysMs[Math.min(this.step++, this.delaysMs.length - 1)];
    return Math.round(base * (1 + this.jitter * (2 * random - 1)));
  }
}

/**
 * What this client knows of one user's messages. Pure: no clock, no I/O.
 *
 * A message is *open* from when it is shown until it is settled: acknowledged, refused, or handled on another device. A refusal settles
 * when the server confirms it; until then it is said again on every connection, and the cursor does not pass the message.
 */
export class Ledger {
  /** @type {Map<string, number>} id -> seq, shown and not settled */ #open = new Map();
  /** @type {Set<string>} oldest first, bounded */ #settled = new Set();
  /** @type {Map<string, number>} settled, but the server was not told yet */ #untold = new Map();
  /** @type {Map<string, string>} id -> reason, not confirmed yet */ #refused = new Map();
  #high = 0; // newest sequence number shown or known to be gone
  /** @type {string | null} */ epoch = null;
  floor = 0;

  /** @param {string | null} [lastEventId] @param {number} [settledMax] */
  constructor(lastEventId = null, settledMax = SETTLED_MAX) {
    this.settledMax = settledMax;
    const cursor = parseEventId(lastEventId);
    if (cursor) this.#restart(cursor.epoch, cursor.seq);
  }

  /** The cursor to present, null before anything is known. */
  get lastEventId() {
    return this.epoch === null ? null : `${this.epoch}-${this.floor}`;
  }

  /** Take over where delivery starts. Returns the ids of open messages before it: they were handled on another device meanwhile.
   * @param {{epoch: string, resumed: string, from: number}} welcome */
  welcome({ epoch, resumed, from }) {
    if (epoch !== this.epoch) this.#open.clear(); // sequence numbers of another epoch mean nothing here
    if (epoch !== this.epoch || resumed === "gap") this.#restart(epoch, from - 1);
    const gone = [...this.#open].filter(([id, seq]) => seq < from && !this.#refused.has(id)).map(([id]) => id);
    this.#high = Math.max(this.#high, from - 1);
    this.revoke(gone);
    return gone;
  }

  /** What to do with a message that arrived: "new" is to be shown, "open" and "settled" were shown before. @param {Message} message */
  receive({ id, seq, event_id }) {
    const epoch = parseEventId(event_id)?.epoch ?? this.epoch ?? "";
    if (epoch !== this.epoch) this.welcome({ epoch, resumed: "new", from: seq });
    this.#high = Math.max(this.#high, seq);
    if (this.#open.has(id)) return "open";
    if (this.#refused.has(id) || !this.#settled.has(id)) {
      this.#open.set(id, seq);
      return this.#refused.has(id) ? "open" : "new";
    }
    this.#untold.set(id, seq); // it comes again because the server has not heard: acknowledge again
    this.#advance();
    return "settled";
  }

  /** The message is handled. @param {string} id */
  settle(id) {
    if (this.#refused.has(id)) return;
    const seq = this.#open.get(id);
    if (seq !== undefined) this.#untold.set(id, seq);
    this.revoke([id]);
  }

  /** Everything shown up to and including `seq` is handled. @param {number} seq */
  settleThrough(seq) {
    for (const [id, at] of [...this.#open]) if (at <= seq) this.settle(id);
  }

  /** These cannot be handled. @param {string[]} ids @param {string} reason */
  refuse(ids, reason) {
    for (const id of ids) this.#refused.set(id, reason);
  }

  /** What to tell the server of refusals that it has not confirmed, of these ids or of all. @param {string[]} [ids] */
  nacks(ids = [...this.#refused.keys()]) {
    return ids.filter((id) => this.#refused.has(id)).map((id) => ({ type: "nack", ids: [id], reason: this.#refused.get(id) }));
  }

  /** Settled without a word of ours: a refusal confirmed, or handled on another device. @param {string[]} ids */
  revoke(ids) {
    for (const id of ids) {
      this.#refused.delete(id);
      this.#open.delete(id);
      this.#settled.add(id);
      if (this.#settled.size > this.settledMax) this.#settled.delete(this.#settled.values().next().value ?? "");
    }
    this.#advance();
  }

  /** The sequence numbers `from`..`to` are gone. @param {number} from @param {number} to */
  gap(from, to) {
    for (const [id, seq] of [...this.#open]) if (seq >= from && seq <= to) this.#open.delete(id);
    this.#high = Math.max(this.#high, to);
    this.#advance();
  }

  /** What the server must be told since the last call: all up to the floor, ids above it. @returns {({seq: number} | {ids: string[]})[]} */
  takeAcks() {
    const ids = [...this.#untold].filter(([, seq]) => seq > this.floor).map(([id]) => id);
    const cumulative = this.#untold.size > ids.length;
    this.#untold.clear();
    return [...(cumulative ? [{ seq: this.floor }] : []), ...(ids.length ? [{ ids }] : [])];
  }

  #advance() {
    let floor = this.#high;
    for (const seq of this.#open.values()) floor = Math.min(floor, seq - 1);
    this.floor = Math.max(this.floor, floor); // never back: what the server was told is told
  }

  /** @param {string} epoch @param {number} seq */
  #restart(epoch, seq) {
    this.epoch = epoch;
    this.#high = this.floor = seq;
    this.#untold.clear();
  }
}

/** Parser of `text/event-stream` (WHATWG HTML, section 9.2.6); takes decoded text in pieces of any size. */
export class SseParser {
  #rest = "";
  #event = "";
  /** @type {string[]} */ #data = [];

  /** @param {string} text @returns {Generator<{event: string, data: string}>} */
  *push(text) {
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?=[^])/); // a final \r may be half of \r\n: it waits
    this.#rest = lines.pop() ?? "";
    for (const line of lines) {
      const [, field, value] = /^([^:]*):? ?([^]*)$/.exec(line) ?? [];
      if (field === "data") this.#data.push(value);
      else if (field === "event") this.#event = value;
      if (line !== "") continue;
      if (this.#data.length) yield { event: this.#event || "message", data: this.#data.join("\n") };
      this.#event = "";
      this.#data = [];
    }
  }
}

/** Why a fetch did not give what it should. @param {Response} response @returns {End} */
function refusal({ status, headers }) {
  const seconds = Number(headers.get("Retry-After") ?? NaN);
  return { status, reason: `HTTP ${status}`, ...(seconds >= 0 && { retryAfterMs: seconds * 1000 }) };
}

/** @param {string} text @param {(data: any) => object} frame @returns {any} */
function parse(text, frame = (data) => data) {
  try {
    return frame(JSON.parse(text));
  } catch (error) {
    return { type: "error", code: "malformed", detail: String(error) };
  }
}

/** @param {URL} url @param {string | undefined} token @param {Hooks} hooks */
function openWebSocket(url, token, hooks) {
  url.protocol = url.protocol.replace("http", "ws");
  const socket = new WebSocket(url, token ? [PROTOCOL, `bearer.${token}`] : [PROTOCOL]);
  socket.onmessage = ({ data }) => hooks.frame(parse(data));
  socket.onclose = ({ code, reason }) => hooks.end({ code, reason: reason || `closed with ${code}` });
  const send = (/** @type {object} */ frame) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify(frame));
  return { send, close: () => socket.close() };
}

/** Over fetch: EventSource cannot carry a header. @param {URL} url @param {RequestInit} init @param {Hooks} hooks */
function openSse(url, init, { frame, end, alive }) {
  const abort = new AbortController();
  const run = async () => {
    const response = await fetch(url, { ...init, signal: abort.signal });
    const isStream = response.headers.get("Content-Type")?.startsWith("text/event-stream");
    if (!response.ok || !isStream || !response.body) return end(refusal(response));
    const parser = new SseParser();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      alive();
      for (const { event, data } of parser.push(part.value)) {
        frame(parse(data, (value) => (event === "message" ? { type: "messages", messages: [value] } : { ...value, type: event })));
      }
    }
    end({ reason: "stream ended" });
  };
  run().catch((error) => end({ reason: String(error.message ?? error) }));
  return { send: () => {}, close: () => abort.abort() };
}

/** Every request carries the cursor, which acknowledges. @param {URL} url @param {RequestInit} init @param {Hooks} hooks */
function openPoll(url, init, { frame, end, alive, cursor }) {
  const abort = new AbortController();
  const pause = new Backoff();
  let resume = () => {};
  const run = async () => {
    for (let wait = 0; ; wait = POLL_WAIT_S) { // the first one is answered at once, so that polling is known to work
      const presented = cursor();
      if (presented) url.searchParams.set("last_event_id", presented);
      url.searchParams.set("wait", String(wait));
      const response = await fetch(url, { ...init, signal: abort.signal });
      if (!response.ok) return end(refusal(response));
      const { messages, last_event_id, resumed, gaps = [] } = await response.json();
      alive();
      const last = parseEventId(last_event_id);
      const from = messages[0]?.seq ?? (last?.seq ?? 0) + 1;
      if (last && (!wait || resumed === "gap")) frame({ type: "welcome", resumed, epoch: last.epoch, from });
      for (const gap of gaps) frame({ type: "gap", ...gap });
      frame({ type: "messages", messages });
      if (!messages.length || cursor() !== presented) pause.step = 0;
      else await new Promise((resolve) => setTimeout((resume = () => resolve(null)), pause.next())); // unsettled: it would come right back
    }
  };
  run().catch((error) => end({ reason: String(error.message ?? error) }));
  return { send: () => resume(), close: () => abort.abort() };
}

/**
 * A connection of one user that keeps itself up. Opens when the current task has ended, so that listeners can be put in place.
 *
 * Events, all CustomEvents: `message` (a {@link Message}, shown once), `duplicate` (one that came again and was dropped), `state`
 * `{state, transport, reason?, code?, retryInMs?}`, `welcome` (the frame), `revoke` `{ids}` handled on another device, `gap`
 * `{from, to}` gone (nulls: the cursor was unknown, so is the extent), `error` `{code, detail}`.
 *
 * A message is acknowledged when its listeners have returned. To do it later, or not at all, call `event.preventDefault()` (or set
 * `ack: "manual"`) and then `ack(message)` or `nack([message.id])`; what is never acknowledged comes again after a reload.
 */
export class NotifyClient extends EventTarget {
  /** @type {Link | null} */ #link = null;
  /** @type {Link | null} a WebSocket being tried beside a lesser link */ #candidate = null;
  /** @type {Record<string, ReturnType<typeof setTimeout>>} */ #timers = {};
  /** @type {string | undefined} */ #token;
  /** @type {string | undefined} */ #storageKey;
  /** @type {string | null} */ #saved = null;
  #ledger = new Ledger();
  #backoff = new Backoff();
  #page = new AbortController(); // ends the listeners on the page
  #turn = 0; // of connecting: what belongs to an earlier one is stale
  #rung = 0; // of the transport ladder
  #websocketFailures = 0;
  #refusals = 0; // in a row, of the token
  #upgradeMs = 0;
  #expiresMs = Infinity;
  #heardMs = 0;
  #notBeforeMs = 0; // the server told when to come back
  #heartbeatMs = 30_000;
  #timeoutMs = 60_000;
  #flushing = false;
  #posting = false;
  /** @type {State} */ state = "closed";
  /** Id of the connection at the server, null while there is none or the transport has none. @type {string | null} */ connection = null;
  /** Connections established after the first one. */ reconnects = -1;

  /** @param {Options} [options] */
  constructor(options = {}) {
    super();
    this.options = { ack: "auto", websocketAttempts: 2, upgradeAfterMs: 60_000, ...options };
    /** @type {Transport[]} */ this.transports = options.transports ?? ["websocket", "sse", "poll"];
    this.url = new URL(options.url ?? "/", globalThis.location?.href);
    this.url.protocol = this.url.protocol.replace("ws", "http");
    if (!this.url.pathname.endsWith("/")) this.url.pathname += "/";
    queueMicrotask(() => this.open());
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
    globalThis.document?.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.#probe(), { signal });
    this.#rung = this.#websocketFailures = this.#refusals = this.#backoff.step = 0;
    this.#become("connecting");
    this.#connect();
  }

  /** Disconnect for good; what was handled is acknowledged first. */
  close() {
    if (this.state !== "closed") this.#shut({ reason: "closed by the application" });
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
    else this.#ledger.settle(target.id);
    this.#flushSoon();
  }

  /** Say that messages cannot be handled: no retry, they go to the dead-letter queue. Only a WebSocket can say it: false means that it
   * could not be said and they stay pending. It is said until the engine confirms it. @param {string[]} ids @param {string} [reason] */
  nack(ids, reason = "refused by the client") {
    if (this.transport !== "websocket") return false;
    this.#ledger.refuse(ids, reason);
    for (const frame of this.#ledger.nacks(ids)) this.#link?.send(frame);
    return true;
  }

  // -- connecting --

  async #connect() {
    const turn = ++this.#turn;
    clearTimeout(this.#timers.retry);
    try {
      if (this.options.getToken && (!this.#token || this.#expiresMs < Date.now() + 5000)) await this.#renew();
      else if (!this.#storageKey) this.#useToken(this.options.token);
    } catch (error) {
      if (turn === this.#turn) this.#retry(this.#backoff.next(), { reason: `no token: ${error}` });
      return;
    }
    if (turn === this.#turn) this.#link = this.#openLink(this.transports[this.#rung]);
  }

  async #renew() {
    const token = await this.options.getToken?.();
    this.#useToken(token);
    if (this.transport === "websocket") this.#link?.send({ type: "auth", token });
  }

  /** @param {string | undefined} token */
  #useToken(token) {
    const { tenant = "default", sub = "", exp } = readClaims(token ?? "");
    const key = `notify:${this.url.host}:${tenant}:${sub}`;
    if (key !== this.#storageKey) {
      const given = this.#storageKey === undefined ? this.options.lastEventId : null; // another user has another cursor
      this.#saved = given ?? this.options.storage?.getItem(key) ?? null;
      this.#ledger = new Ledger(this.#saved);
    }
    this.#token = token;
    this.#storageKey = key;
    this.#expiresMs = exp ? exp * 1000 : Infinity;
    const early = () => this.#renew().catch((error) => this.#emit("error", { code: "token", detail: String(error) }));
    if (this.options.getToken && exp) this.#after("renew", (this.#expiresMs - Date.now()) * 0.8, early);
  }

  /** @param {Transport} kind @returns {Link} */
  #openLink(kind) {
    const url = new URL({ websocket: "v1/ws", sse: "v1/sse", poll: "v1/poll" }[kind], this.url);
    if (this.options.device) url.searchParams.set("device", this.options.device);
    if (this.lastEventId) url.searchParams.set("last_event_id", this.lastEventId);
    const late = setTimeout(() => hooks.end({ silent: true, reason: "no answer" }), OPEN_TIMEOUT_MS);
    /** @type {Link} */ const link = { kind, openedMs: 0, opened: () => clearTimeout(late), send: () => {}, close: () => {} };
    /** @type {Hooks} */
    const hooks = {
      cursor: () => this.lastEventId,
      frame: (frame) => this.#received(link, frame),
      alive: () => this.#alive(link),
      end: (end) => {
        link.opened();
        this.#ended(link, end);
      },
    };
    try {
      if (kind === "websocket") Object.assign(link, openWebSocket(url, this.#token, hooks));
      else Object.assign(link, (kind === "sse" ? openSse : openPoll)(url, this.#init(), hooks));
    } catch (error) {
      queueMicrotask(() => hooks.end({ status: 401, reason: String(error) })); // the token cannot even be a subprotocol
    }
    return link;
  }

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
    this.reconnects++;
    this.#refusals = 0;
    this.#rung = this.transports.indexOf(link.kind);
    if (link.kind === "websocket") this.#websocketFailures = this.#upgradeMs = 0;
    else this.#scheduleUpgrade(this.#upgradeMs || this.options.upgradeAfterMs);
    this.#become("open");
    this.#watch();
    this.#flushSoon();
  }

  /** @param {Link} link @param {End} end */
  #ended(link, end) {
    link.close();
    if (link === this.#candidate) {
      this.#candidate = null;
      this.#scheduleUpgrade(this.#upgradeMs * 2);
    }
    if (link !== this.#link) return;
    this.#unlink();
    const { code = 0, status = 0, silent = false } = end;
    if (FINAL.has(code) || status === 403) return this.#shut({ ...end, reason: end.reason || FINAL.get(code) || "forbidden" });
    if (code === 4401 || status === 401) {
      if (!this.options.getToken || ++this.#refusals > 2) return this.#shut({ ...end, reason: "unauthorized" });
      this.#token = undefined;
      return this.#retry(this.#refusals > 1 ? this.#backoff.next() : 0, end);
    }
    if (Date.now() - link.openedMs >= STABLE_MS && link.openedMs) this.#backoff.step = 0;
    if (!link.openedMs) this.#step(link.kind, silent || (status > 0 && status !== 429 && status !== 503));
    if (end.retryAfterMs) this.#notBeforeMs = Date.now() + end.retryAfterMs * (1 + this.#backoff.jitter * Math.random());
    const told = this.#notBeforeMs - Date.now();
    this.#retry(told > 0 ? told : (end.retryAfterMs ?? this.#backoff.next()), end);
  }

  /** A transport that never opened: which one is next. @param {Transport} kind @param {boolean} blocked the server, or a proxy, answered */
  #step(kind, blocked) {
    const last = this.transports.length - 1;
    if (kind === "websocket") this.#rung = ++this.#websocketFailures >= this.options.websocketAttempts ? Math.min(1, last) : 0;
    else if (blocked) this.#rung = Math.min(this.#rung + 1, last);
    else [this.#rung, this.#websocketFailures] = [0, this.options.websocketAttempts - 1]; // no server at all: no reason to step down
  }

  /** @param {number} delayMs @param {End} end */
  #retry(delayMs, end) {
    this.#become(globalThis.navigator?.onLine === false ? "offline" : "reconnecting", { ...end, retryInMs: delayMs });
    this.#after("retry", delayMs, () => this.#connect());
  }

  /** @param {number} afterMs */
  #scheduleUpgrade(afterMs) {
    if (!this.transports.includes("websocket")) return;
    this.#upgradeMs = Math.min(afterMs, UPGRADE_MAX_MS);
    this.#after("upgrade", this.#upgradeMs, () => (this.#candidate = this.#openLink("websocket")));
  }

  /** Let go of the link and of everything that was going to happen on it. */
  #unlink() {
    const link = this.#link;
    this.#link = null;
    this.connection = null;
    for (const name of ["watch", "probe", "drain", "upgrade", "retry"]) clearTimeout(this.#timers[name]);
    this.#turn++;
    link?.opened();
    link?.close();
  }

  /** @param {End} end */
  #shut(end) {
    this.#flush();
    this.#unlink();
    this.#candidate?.close();
    this.#candidate = null;
    this.#page.abort();
    clearTimeout(this.#timers.renew);
    this.#become("closed", end);
  }

  // -- liveness --

  #watch() {
    const link = this.#link;
    const silence = Date.now() - this.#heardMs;
    if (link && silence >= this.#timeoutMs) return this.#ended(link, { reason: "server silent" });
    if (silence >= this.#heartbeatMs / 2) link?.send({ type: "ping", ts: Date.now() });
    this.#after("watch", Math.min(this.#heartbeatMs / 2, this.#timeoutMs - silence), () => this.#watch());
  }

  /** The page woke up or the network changed. `navigator.onLine` is only a hint (an engine on this machine works without a network). */
  #probe() {
    const link = this.#link;
    const waiting = this.state === "reconnecting" || this.state === "offline";
    if (!link && waiting && Date.now() >= this.#notBeforeMs) this.#retry(0, { reason: "page or network is back" });
    if (link?.openedMs) {
      const askedMs = Date.now();
      link.send({ type: "ping", ts: askedMs });
      if (link.kind !== "websocket") return this.#watch();
      this.#after("probe", PROBE_TIMEOUT_MS, () => this.#heardMs < askedMs && this.#ended(link, { reason: "no answer to a probe" }));
    }
  }

  // -- frames --

  /** @param {Link} link @param {any} frame */
  #received(link, frame) {
    if (link !== this.#link && link !== this.#candidate) return;
    this.#heardMs = Date.now();
    if (frame.type === "welcome") this.#welcomed(link, frame);
    else if (frame.type === "messages") for (const message of frame.messages) this.#deliver(link, message);
    else if (frame.type === "nacked") this.#ledger.revoke(frame.ids);
    else if (frame.type === "revoke") {
      this.#ledger.revoke(frame.ids);
      this.#emit("revoke", frame);
    } else if (frame.type === "gap") {
      this.#ledger.gap(frame.from, frame.to);
      this.#emit("gap", frame);
    } else if (frame.type === "drain") {
      this.#notBeforeMs = Date.now() + frame.after_ms; // the server closes before or then; if it does not, we do
      this.#after("drain", frame.after_ms, () => this.#ended(link, { code: 1012, reason: "drained", retryAfterMs: 0 }));
    } else if (frame.type === "close") return this.#ended(link, frame); // SSE has no close codes of its own
    else if (frame.type === "error") this.#emit("error", frame);
    this.#flushSoon();
  }

  /** @param {Link} link @param {any} frame */
  #welcomed(link, frame) {
    this.#heartbeatMs = frame.heartbeat_ms ?? this.#heartbeatMs;
    this.#timeoutMs = frame.timeout_ms ?? this.#timeoutMs;
    this.#backoff.delaysMs = frame.reconnect?.delays_ms ?? this.#backoff.delaysMs;
    this.#backoff.jitter = frame.reconnect?.jitter ?? this.#backoff.jitter;
    const gone = this.#ledger.welcome(frame);
    this.#alive(link, frame.connection);
    this.#emit("welcome", frame);
    for (const nack of this.#ledger.nacks()) link.send(nack);
    if (frame.resumed === "gap") this.#emit("gap", { from: null, to: null });
    if (gone.length) this.#emit("revoke", { ids: gone });
  }

  /** @param {Link} link @param {Message} message */
  #deliver(link, message) {
    if (this.#ledger.receive(message) !== "new") {
      for (const nack of this.#ledger.nacks([message.id])) link.send(nack); // it comes again because the server has not heard
      return this.#emit("duplicate", message);
    }
    if (message.replaces) this.#ledger.settle(message.replaces); // the new one stands for it: nobody will acknowledge it any more
    if (this.#emit("message", message) && this.options.ack === "auto") this.#ledger.settle(message.id);
  }

  /** One acknowledgement for all that happens in this task. */
  #flushSoon() {
    if (this.#flushing) return;
    this.#flushing = true;
    queueMicrotask(() => this.#flush());
  }

  #flush() {
    this.#flushing = false;
    if (this.lastEventId !== this.#saved) this.#save();
    const link = this.#link;
    if (!link?.openedMs) return;
    if (link.kind === "websocket") for (const ack of this.#ledger.takeAcks()) link.send({ type: "ack", ...ack, ts: Date.now() });
    else this.#post(link);
  }

  /** One request at a time; what is settled meanwhile goes with the next. @param {Link} link */
  async #post(link) {
    if (this.#posting) return;
    this.#posting = true;
    const url = new URL("v1/ack", this.url);
    const init = { ...this.#init(), method: "POST", keepalive: true };
    init.headers["Content-Type"] = "application/json";
    try {
      for (let acks = this.#ledger.takeAcks(); acks.length; acks = this.#ledger.takeAcks()) {
        for (const ack of acks) {
          const response = await fetch(url, { ...init, body: JSON.stringify(ack) });
          if (!response.ok) throw new Error(`HTTP ${response.status}`);
        }
        link.send({}); // a pausing poll goes on
      }
    } catch (error) {
      if (link === this.#link) this.#ended(link, { reason: `acknowledgement failed: ${error}` }); // the next cursor says it again
    } finally {
      this.#posting = false;
    }
  }

  #save() {
    this.#saved = this.lastEventId;
    try {
      if (this.#storageKey && this.#saved) this.options.storage?.setItem(this.#storageKey, this.#saved);
    } catch (error) {
      this.#emit("error", { code: "storage", detail: String(error) });
    }
  }

  // -- events --

  /** @param {State} state @param {object} [detail] */
  #become(state, detail = {}) {
    this.state = state;
    this.#emit("state", { state, transport: this.transport, ...detail });
  }

  /** True unless a listener called preventDefault(). @param {string} type @param {any} detail */
  #emit(type, detail) {
    return this.dispatchEvent(new CustomEvent(type, { detail, cancelable: true }));
  }

  /** One timer per name. @param {string} name @param {number} ms @param {() => void} run */
  #after(name, ms, run) {
    clearTimeout(this.#timers[name]);
    this.#timers[name] = setTimeout(run, Math.min(Math.max(ms, 0), TIMER_MAX_MS));
  }
}
