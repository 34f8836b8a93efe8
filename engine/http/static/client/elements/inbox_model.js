/**
 * What the elements of a client show: its newest messages, and which are unread. One for all elements of a client.
 *
 * Where the engine keeps inboxes, that is what it says: pages of `GET /v1/inbox`, and the counts, which other devices change too. Where it
 * does not (`404`), it is what arrived on this page. A message that arrives is there at once. Where the engine counts, only the
 * engine does: its count may have the message before the message is here.
 *
 * Events: `change`, and `arrived` (the message) for one that was not known.
 *
 * @typedef {import("../ledger.js").Message} Message
 * @typedef {{message: Message, read: boolean}} Entry
 */

import { Backoff } from "../backoff.js";

const PAGE = 20;
const ENTRIES_MAX = 500; // of a page that stays open for weeks; where the engine keeps more, `more` has them
const RELOAD_AFTER_MS = 300; // of counts that something else has changed: several at once are one

/** @type {WeakMap<object, InboxModel>} */ const models = new WeakMap();

/** @param {import("../notify_client.js").NotifyClient} client @returns {InboxModel} */
export function modelOf(client) {
  const model = models.get(client) ?? new InboxModel(client);
  models.set(client, model);
  return model;
}

export class InboxModel extends EventTarget {
  /** @type {Map<string, Entry>} by id */ #entries = new Map();
  #before = Infinity; // begins the next page; 0: there is none; Infinity: there was no first one
  /** @type {{unread: number, revision: number} | null} by the engine; null: it keeps no inbox, or has not answered */ #counts = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #reload;
  #pause = new Backoff(); // between two requests that were not answered
  #late = false; // the last page was older than what is known
  #shown = false; // the messages, not only how many are unread

  /** @param {import("../notify_client.js").NotifyClient} client */
  constructor(client) {
    super();
    this.client = client;
    const on = (/** @type {string} */ type, /** @type {(detail: any) => void} */ handle) =>
      client.addEventListener(type, (/** @type {any} */ event) => handle(event.detail));
    on("message", (message) => this.#arrived(message));
    on("revoke", ({ ids }) => this.#counts || this.#setRead(ids)); // handled elsewhere
    on("counts", (counts) => this.#counted(counts));
    on("welcome", () => this.#welcomed());
    on("user", () => this.#begin());
    if (client.counts) this.#counted(client.counts);
    else if (client.state === "open") this.#welcomed();
  }

  /** The messages are to be shown: until then they are not asked for, a bell needs only their number. */
  show() {
    if (this.#shown) return;
    this.#shown = true;
    if (this.client.state === "open") this.#load();
  }

  /** Newest first. @returns {Entry[]} */
  get entries() {
    return [...this.#entries.values()].sort((one, other) => other.message.seq - one.message.seq);
  }

  get unread() {
    return this.#counts?.unread ?? [...this.#entries.values()].filter(({ read }) => !read).length;
  }

  get hasMore() {
    return this.#before > 0 && this.#before < Infinity;
  }

  /** Whether messages can be put away: only an inbox that the engine keeps has an archive. */
  get canArchive() {
    return this.#counts !== null;
  }

  /** @param {string[]} ids */
  async read(ids) {
    await this.#markRead(ids, { ids });
  }

  async readAll() {
    await this.#markRead([...this.#entries.keys()], { all: true });
  }

  /** It shows at once, and no more when the engine does not take it. @param {string[]} ids @param {{ids: string[]} | {all: true}} which */
  async #markRead(ids, which) {
    const entries = this.#entries;
    const unread = ids.filter((id) => entries.get(id)?.read === false);
    this.#setRead(ids);
    if (!this.#counts) return ids.forEach((id) => this.#acknowledge(id));
    try {
      await this.#marked(this.client.mark("read", which));
    } catch (error) {
      if (entries === this.#entries) this.#setRead(unread, false);
      throw error;
    }
    if (entries === this.#entries) this.#setRead(ids); // a page that was asked for before may have come meanwhile
  }

  /** @param {string} id */
  async archive(id) {
    await this.#marked(this.client.mark("archive", { ids: [id] }));
    this.#entries.delete(id);
    this.#changed();
  }

  /** It leaves, and a copy of it comes back then. @param {string} id @param {Date} until */
  async snooze(id, until) {
    await this.#marked(this.client.snooze([id], until));
    this.#entries.delete(id);
    this.#changed();
  }

  /** For all devices; the outcome arrives as a message. @param {Message} message @param {string | null} answer @param {string} text */
  async answer({ id, ask }, answer, text) {
    await this.client.answer(id, answer, text, ask?.topic);
  }

  /** One more page. */
  async more() {
    const entries = this.#entries;
    const page = await this.client.inbox({ limit: PAGE, before: this.#before });
    if (entries === this.#entries) this.#take(page, page.before ?? 0);
  }

  /** Take the counts of an answer, unless they are of the user before. @param {Promise<any>} answer */
  async #marked(answer) {
    const entries = this.#entries;
    const counts = await answer;
    if (entries === this.#entries) this.#counted(counts);
  }

  /** Anew, for another user. */
  #begin() {
    this.#entries = new Map();
    this.#before = Infinity;
    this.#counts = null;
    this.#changed();
  }

  #welcomed() {
    if (this.#counts) this.#counts.revision = -1; // where storage lost data they begin anew
    if (this.#asks) this.#load();
  }

  /** Whether the engine is asked: for the messages, or as polling brings no counts. */
  get #asks() {
    return this.#shown || (Boolean(this.client.options.counts) && !this.#isTold);
  }

  /** Whether the engine tells each change of the counts. */
  get #isTold() {
    return Boolean(this.client.options.counts) && this.client.transport !== "poll";
  }

  async #load() {
    clearTimeout(this.#reload);
    const entries = this.#entries;
    const known = [...entries.values()]; // what arrives meanwhile may be newer than the answer
    try {
      const page = await this.client.inbox({ limit: PAGE });
      if (entries !== this.#entries) return; // it is of the user before
      const before = page.before ?? 0;
      const oldest = before && page.messages.at(-1).seq;
      const there = new Set(page.messages.map((/** @type {Message} */ { id }) => id));
      for (const { message } of known) if (message.seq >= oldest && !there.has(message.id)) entries.delete(message.id); // archived, or gone
      const goesOn = known.some(({ message }) => there.has(message.id)); // what it was before follows without a hole
      this.#take(page, goesOn ? Math.min(before, this.#before) : before);
      this.#pause.step = 0;
    } catch (error) {
      // Until there is an answer, or where there is no inbox, what arrives is shown. The next welcome asks again, too.
      const { status = 0, retryAfterMs = 0 } = /** @type {import("../requests.js").Refused} */ (error);
      const isFinal = status >= 400 && status < 500 && status !== 429;
      if (entries === this.#entries && this.client.state === "open" && !isFinal) this.#reloadSoon(Math.max(retryAfterMs, this.#pause.next()));
    }
  }

  /** @param {any} page @param {number} before */
  #take({ messages, unread, revision }, before) {
    const late = !this.#late && revision < (this.#counts?.revision ?? -1); // something was marked meanwhile
    this.#late = late; // of two the second one is right: revisions have begun anew
    for (const message of messages) {
      if (!late || !this.#entries.has(message.id)) this.#entries.set(message.id, { message, read: message.read });
    }
    for (const { replaces, answer } of messages) if (answer) this.#entries.delete(replaces); // a question that is answered
    this.#before = before;
    if (late) this.#reloadSoon();
    else this.#counts = { unread, revision };
    this.#changed();
  }

  /** @param {Message} message */
  #arrived(message) {
    const known = this.#entries.has(message.id);
    if (!known) this.#entries.set(message.id, { message, read: false });
    if (this.#entries.size > ENTRIES_MAX) this.#forget();
    const replaced = this.#entries.get(message.replaces ?? "");
    if (replaced && (!replaced.read || message.answer)) this.#entries.delete(replaced.message.id);
    if (!known) this.dispatchEvent(new CustomEvent("arrived", { detail: message }));
    if (this.#counts && !this.#isTold && this.#asks) this.#reloadSoon();
    this.#changed();
  }

  /** Half of the messages, the oldest: not one with each that arrives, as they have to be sorted. */
  #forget() {
    const [last] = this.entries.splice(ENTRIES_MAX / 2 - 1, 1);
    for (const [id, { message }] of this.#entries) if (message.seq < last.message.seq) this.#entries.delete(id);
    if (this.#counts) this.#before = last.message.seq;
  }

  /** @param {{unread: number, revision: number}} counts */
  #counted({ unread, revision }) {
    if (this.#counts && revision < this.#counts.revision) return;
    this.#counts = { unread, revision };
    const shown = [...this.#entries.values()].filter(({ read }) => !read).length;
    if (this.#shown && !this.hasMore && shown !== unread) this.#reloadSoon(); // marked on another device
    this.#changed();
  }

  #reloadSoon(afterMs = RELOAD_AFTER_MS) {
    clearTimeout(this.#reload);
    this.#reload = setTimeout(() => this.#load(), afterMs);
  }

  /** @param {string} id */
  #acknowledge(id) {
    const entry = this.#entries.get(id);
    if (entry) this.client.ack(entry.message); // once more does no harm
  }

  /** @param {string[]} ids */
  #setRead(ids, read = true) {
    for (const id of ids) {
      const entry = this.#entries.get(id);
      if (entry) entry.read = read;
    }
    this.#changed();
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}
