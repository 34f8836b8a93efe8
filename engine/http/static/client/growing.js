/**
 * Messages that grow, as this page has them: parts by offset become their text, and what is missing is asked for.
 *
 * Offsets count bytes of the text in UTF-8. A part at or below the end of the text adds what is new in it. One above the end waits, while
 * the text before it is read from the engine. So a page that comes late or lost some parts has the same text as one that saw them all.
 *
 * @typedef {object} Growth
 * @property {string} id
 * @property {number} generation Grows when the message is begun anew.
 * @property {any} message Its members, without the text.
 * @property {boolean} list The text is a list of JSON values, one a line.
 * @property {string} text So far.
 * @property {{value?: number, text?: string, step?: string} | null} progress
 * @property {boolean} ended Its message has arrived, or it is gone: it grows no more.
 *
 * @typedef {Growth & {size: number, waiting: any[], asking: boolean, look?: ReturnType<typeof setTimeout>}} Known
 */

const WAIT_S = 20;
const RETRY_MS = 2000;
const IDLE_MS = 60_000; // without a part: its end may have been handled on another device, or have been muted, and does not arrive here
const ENDED_MAX = 256; // remembered, so that a late part begins nothing

const encoder = new TextEncoder();
const decoder = new TextDecoder();

export class Growing {
  /** @type {Map<string, Known>} */ #known = new Map();
  /** @type {Set<string>} */ #ended = new Set();
  #ask;
  #emit;

  /**
   * @param {(path: string) => Promise<any>} ask A GET; null where the answer is of no use any more.
   * @param {(growth: Growth) => void} emit Called for each change.
   */
  constructor(ask, emit) {
    this.#ask = ask;
    this.#emit = emit;
  }

  /** Those that grow, as far as their members are known. @returns {Growth[]} */
  get all() {
    return [...this.#known.values()].filter(({ message }) => message).map(shown);
  }

  /** Nothing grows here any more. */
  endAll() {
    for (const id of [...this.#known.keys()]) this.#end(id);
  }

  /** @param {any} frame */
  part(frame) {
    const growth = this.#of(frame.id, frame.generation);
    if (!growth) return;
    if (frame.message) Object.assign(growth, { message: frame.message, list: Boolean(frame.list) });
    if (frame.progress) growth.progress = frame.progress;
    growth.waiting.push(frame);
    this.#join(growth);
  }

  /** A message has arrived: what grew to it has ended. @param {string} id */
  arrived(id) {
    if (this.#known.has(id)) this.#end(id);
  }

  /** Learn what grows by now, also what began before this page. */
  async learn() {
    for (const { id, generation, ...more } of (await this.#ask("v1/growing"))?.growing ?? []) {
      const growth = this.#of(id, generation);
      if (!growth) continue;
      Object.assign(growth, { message: more.message, list: more.list, progress: more.progress ?? growth.progress });
      if (growth.size < more.size) this.#catchUp(growth);
      else this.#changed(growth);
    }
  }

  /** @param {string} id @param {number} generation @returns {Known | null} */
  #of(id, generation) {
    const known = this.#known.get(id);
    if (this.#ended.has(`${generation} ${id}`) || (known && known.generation > generation)) return null;
    if (known?.generation === generation) return known;
    clearTimeout(known?.look);
    /** @type {Known} */ const begun = { id, generation, message: null, list: false, text: "", progress: null, ended: false, size: 0, waiting: [], asking: false };
    this.#known.set(id, begun);
    return begun;
  }

  /** Add the parts that fit, and ask for what is before the others. @param {Known} growth */
  #join(growth) {
    growth.waiting.sort((one, other) => one.offset - other.offset);
    while (growth.waiting.length && growth.waiting[0].offset <= growth.size) add(growth, growth.waiting.shift());
    if (growth.waiting.length || !growth.message) this.#catchUp(growth);
    if (growth.message) this.#changed(growth);
  }

  /** @param {Known} growth */
  async #catchUp(growth) {
    if (growth.asking) return;
    growth.asking = true;
    const { id, generation } = growth;
    try {
      do {
        const offset = growth.message ? growth.size : 0;
        const wait = growth.waiting.length ? WAIT_S : 0; // what these follow is on its way to storage
        const askedMs = performance.now();
        const read = await this.#ask(`v1/growing/${encodeURIComponent(id)}?generation=${generation}&offset=${offset}&wait=${wait}`);
        if (!read || this.#known.get(id) !== growth) return;
        if (read.generation !== generation) {
          const newer = this.#of(id, read.generation);
          if (newer) this.#catchUp(newer);
          return;
        }
        const isNewer = !growth.progress || (growth.message && !growth.waiting.length); // else parts came since that was stored
        Object.assign(growth, { message: read.message, list: read.list });
        if (read.progress && isNewer) growth.progress = read.progress;
        growth.waiting.unshift(read);
        if (read.state === "ended") {
          this.#join(growth);
          return this.#end(id); // its message comes, or has come
        }
        growth.waiting.sort((one, other) => one.offset - other.offset);
        const { size } = growth;
        while (growth.waiting.length && growth.waiting[0].offset <= growth.size) add(growth, growth.waiting.shift());
        this.#changed(growth);
        if (growth.waiting.length && growth.size === size && performance.now() - askedMs < RETRY_MS) {
          return this.#lookLater(growth, RETRY_MS); // an edge that drains waits for nothing
        }
      } while (growth.waiting.length);
    } catch (error) {
      if (/** @type {any} */ (error).status === 404) this.#end(id);
      else this.#lookLater(growth, growth.waiting.length || !growth.message ? RETRY_MS : IDLE_MS);
    } finally {
      growth.asking = false;
    }
  }

  /** @param {Known} growth */
  #changed(growth) {
    this.#emit(shown(growth));
    this.#lookLater(growth, IDLE_MS);
  }

  /** @param {Known} growth @param {number} afterMs */
  #lookLater(growth, afterMs) {
    clearTimeout(growth.look);
    growth.look = setTimeout(() => this.#known.get(growth.id) === growth && this.#catchUp(growth), afterMs);
  }

  /** @param {string} id */
  #end(id) {
    const growth = this.#known.get(id);
    if (!growth) return;
    this.#known.delete(id);
    this.#ended.add(`${growth.generation} ${id}`);
    if (this.#ended.size > ENDED_MAX) this.#ended.delete(this.#ended.values().next().value ?? "");
    clearTimeout(growth.look);
    if (growth.message) this.#emit({ ...shown(growth), ended: true });
  }
}

/** @param {Known} growth @param {{offset: number, text: string}} part */
function add(growth, { offset, text }) {
  const bytes = encoder.encode(text);
  const known = growth.size - offset;
  if (known >= bytes.length) return;
  growth.text += known ? decoder.decode(bytes.subarray(known)) : text;
  growth.size = offset + bytes.length;
}

/** @param {Known} growth @returns {Growth} */
function shown({ id, generation, message, list, text, progress, ended }) {
  return { id, generation, message, list, text, progress, ended };
}
