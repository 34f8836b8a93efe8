/** @typedef {import("ray-notification-client").Message} Message */

const SETTLED_MAX = 4096; // ids remembered to drop repeats: 16 in-flight windows
const ACKED_IDS = 100; // in one acknowledgement: a frame has 64 KiB at most, and an id 128 characters
const REASON_CHARS = 1024; // of a refusal: the engine takes no more
const SETTLED_KEPT = 512; // of those across page loads: what may be settled above the cursor, two in-flight windows

/** `"7-1042"` -> `{epoch: "7", seq: 1042}`; null when it is not a cursor. @param {string | null | undefined} text */
export function parseEventId(text) {
  const match = /^(.+)-(\d+)$/.exec(text ?? "");
  return match && { epoch: match[1], seq: Number(match[2]) };
}

/**
 * What this client knows of one user's messages. Pure: no clock, no I/O.
 *
 * A message is *open* from when it is shown until it is settled: acknowledged, refused, or handled on another device. A refusal settles
 * when the server confirms it; until then it is said again on every connection, and the cursor does not pass the message.
 *
 * An early copy (`early`) has no event id. It is acknowledged by id, and comes again in its place unless the server settled it.
 */
export class Ledger {
  /** @type {Map<string, Message>} shown and not settled, in the order of arrival */ #open = new Map();
  /** @type {Set<string>} ids shown and not settled in former epochs; they may come again under other numbers */ #former = new Set();
  /** @type {Map<string, string>} id -> event id, "" when unknown; oldest first, bounded */ #settled = new Map();
  /** @type {Map<string, number>} settled, but the server was not told yet */ #untold = new Map();
  /** @type {Map<string, string>} id -> reason, not confirmed yet */ #refused = new Map();
  /** @type {Set<string>} of those, what is to be said on this connection */ #unsaid = new Set();
  #high = 0; // newest sequence number shown or known to be gone
  /** @type {string | null} */ epoch = null;
  floor = 0;

  /** @param {string | null} [lastEventId] @param {{settled?: [string, string][], settledMax?: number}} [known] as `kept` has it */
  constructor(lastEventId = null, { settled = [], settledMax = SETTLED_MAX } = {}) {
    this.settledMax = settledMax;
    this.#settled = new Map(settled);
    const cursor = parseEventId(lastEventId);
    if (cursor) this.#restart(cursor.epoch, cursor.seq);
  }

  /** The cursor to present, null before anything is known. */
  get lastEventId() {
    return this.epoch === null ? null : `${this.epoch}-${this.floor}`;
  }

  /** Messages shown and not settled, in the order of arrival. */
  get open() {
    return [...this.#open.values()];
  }

  /** What the next page needs to go on here. @returns {import("./cursor_store.js").Kept} */
  get kept() {
    return { cursor: this.lastEventId, settled: [...this.#settled].filter(([, eventId]) => eventId).slice(-SETTLED_KEPT) };
  }

  /** Settled before. A repeat has the same id and number; the same id under a higher number is a new message, published after the engine
   * had forgotten the first one. Numbers of another epoch cannot be compared. @param {Message} message @param {string} epoch */
  #isSettled({ id, seq }, epoch) {
    const eventId = this.#settled.get(id);
    const before = parseEventId(eventId);
    return eventId !== undefined && (!before || before.epoch !== epoch || before.seq >= seq);
  }

  /** Take over where delivery starts. Returns the ids of open messages before it: they were handled on another device meanwhile.
   * @param {{epoch: string, resumed: string, from: number}} welcome */
  welcome({ epoch, resumed, from }) {
    if (epoch !== this.epoch) {
      for (const id of this.#open.keys()) this.#former.add(id);
      this.#open.clear(); // sequence numbers of another epoch mean nothing here
    }
    if (epoch !== this.epoch || resumed === "gap") this.#restart(epoch, from - 1);
    this.#unsaid = new Set(this.#refused.keys());
    const gone = this.open.filter(({ id, seq }) => seq < from && !this.#refused.has(id)).map(({ id }) => id);
    this.#high = Math.max(this.#high, from - 1);
    this.revoke(gone);
    return gone;
  }

  /** What to do with a message that arrived: "new" is to be shown, "open" and "settled" were shown before. @param {Message} message
   * @returns {"new" | "open" | "settled"} */
  receive(message) {
    const { id, seq, event_id } = message;
    const epoch = parseEventId(event_id)?.epoch ?? this.epoch ?? "";
    if (epoch !== this.epoch) this.welcome({ epoch, resumed: "new", from: seq });
    if (!message.early) this.#high = Math.max(this.#high, seq); // an early copy moves no cursor
    const open = this.#open.get(id);
    if (open) {
      if (open.early && !message.early) this.#open.set(id, message); // its place is reached
      if (this.#refused.has(id)) this.#unsaid.add(id); // it comes again because the server has not heard
      return "open";
    }
    if (this.#refused.has(id)) {
      this.#open.set(id, message);
      this.#unsaid.add(id);
      return "open";
    }
    if (!this.#isSettled(message, epoch)) {
      this.#open.set(id, message);
      return this.#former.delete(id) ? "open" : "new";
    }
    this.#untold.set(id, seq); // it comes again because the server has not heard: acknowledge again
    this.#advance();
    return "settled";
  }

  /** The message is handled, or replaced by one that may come before it. @param {string} id @param {Pick<Message, "seq">} [replacement] */
  settle(id, replacement) {
    if (this.#refused.has(id)) return;
    const message = this.#open.get(id);
    if (message) this.#untold.set(id, message.seq);
    this.revoke([id]);
    if (!message && replacement) this.#settled.set(id, `${this.epoch}-${replacement.seq}`);
  }

  /** Everything shown up to and including `seq` is handled. @param {number} seq */
  settleThrough(seq) {
    for (const message of this.open) if (message.seq <= seq) this.settle(message.id);
  }

  /** These cannot be handled. @param {string[]} ids @param {string} reason */
  refuse(ids, reason) {
    const cut = [...reason].slice(0, REASON_CHARS).join("").replace(/\p{Surrogate}/gu, "\ufffd"); // half a pair is no JSON to the engine
    for (const id of ids) {
      this.#refused.set(id, cut);
      this.#unsaid.add(id);
    }
  }

  /** What the server must be told of refusals since the last call, or since `welcome`. @returns {{ids: string[], reason?: string}[]} */
  takeNacks() {
    const unsaid = [...this.#unsaid].filter((id) => this.#refused.has(id));
    this.#unsaid.clear();
    return unsaid.map((id) => ({ ids: [id], reason: this.#refused.get(id) }));
  }

  /** Settled without a word of ours: a refusal confirmed, or handled on another device. Returns the ids that were not settled here before:
   * over SSE a client's own acknowledgements come back too. @param {string[]} ids */
  revoke(ids) {
    const news = ids.filter((id) => this.#open.has(id) || !this.#settled.has(id));
    for (const id of ids) {
      const seq = this.#open.get(id)?.seq;
      this.#refused.delete(id);
      this.#open.delete(id);
      if (seq !== undefined) this.#settled.set(id, `${this.epoch}-${seq}`);
      else if (this.#former.has(id) && !this.#settled.has(id)) this.#settled.set(id, "");
      this.#former.delete(id);
      if (this.#settled.size > this.settledMax) this.#settled.delete(this.#settled.keys().next().value ?? "");
    }
    this.#advance();
    return news;
  }

  /** Settled by another tab: an acknowledgement as `takeAcks` returns it there. Returns the ids that were open here.
   * @param {{seq?: number, ids?: string[]}} ack */
  settledElsewhere({ seq = 0, ids = [] }) {
    const gone = this.open.filter((message) => message.seq <= seq || ids.includes(message.id)).map(({ id }) => id);
    this.revoke(gone);
    return gone;
  }

  /** The sequence numbers `from`..`to` are gone. @param {number} from @param {number} to */
  gap(from, to) {
    for (const { id, seq } of this.open) if (seq >= from && seq <= to) this.#open.delete(id);
    this.#high = Math.max(this.#high, to);
    this.#advance();
  }

  /** What the server must be told since the last call: all up to the floor, ids above it; ids alone where a number may be of another user.
   * @param {boolean} [numbers] @returns {({seq: number} | {ids: string[]})[]} */
  takeAcks(numbers = true) {
    const ids = [...this.#untold].filter(([, seq]) => !numbers || seq > this.floor).map(([id]) => id);
    const cumulative = this.#untold.size > ids.length;
    this.#untold.clear();
    /** @type {({seq: number} | {ids: string[]})[]} */ const acks = cumulative ? [{ seq: this.floor }] : [];
    for (let at = 0; at < ids.length; at += ACKED_IDS) acks.push({ ids: ids.slice(at, at + ACKED_IDS) });
    return acks;
  }

  #advance() {
    let floor = this.#high;
    for (const { seq } of this.#open.values()) floor = Math.min(floor, seq - 1);
    this.floor = Math.max(this.floor, floor); // never back: what the server was told is told
  }

  /** @param {string} epoch @param {number} seq */
  #restart(epoch, seq) {
    this.epoch = epoch;
    this.#high = this.floor = seq;
    this.#untold.clear();
  }
}
