/**
 * Keeps the cursor of each user, and the ids settled last, across page loads. What is kept is a hint: without it the engine sends again
 * what was not acknowledged, so no failure here may keep messages from being shown.
 *
 * @typedef {{cursor: string | null, settled: [string, string][]}} Kept The cursor, and [id, event id] of those settled last.
 * @typedef {{load(key: string): Promise<Kept | null>, save(key: string, kept: Kept): Promise<void>}} CursorStore
 */

const DATABASE = "notify";
const TABLE = "cursors";

/** As long as the page lasts. */
export class MemoryStore {
  /** @type {Map<string, Kept>} */ #kept = new Map();

  /** @param {string} key @returns {Promise<Kept | null>} */
  async load(key) {
    return this.#kept.get(key) ?? null;
  }

  /** @param {string} key @param {Kept} kept */
  async save(key, kept) {
    this.#kept.set(key, kept);
  }
}

/** A `Storage` of the page (`sessionStorage`: one tab's). @implements {CursorStore} */
export class WebStorageStore {
  /** @param {Pick<Storage, "getItem" | "setItem">} storage */
  constructor(storage) {
    this.storage = storage;
  }

  /** @param {string} key @returns {Promise<Kept | null>} */
  async load(key) {
    const text = this.storage.getItem(key);
    return text ? JSON.parse(text) : null;
  }

  /** @param {string} key @param {Kept} kept */
  async save(key, kept) {
    this.storage.setItem(key, JSON.stringify(kept));
  }
}

/** The browser's database, which all tabs of an origin share. Where it is refused (some private windows), memory. @implements {CursorStore} */
export class IndexedDbStore {
  /** @type {Promise<IDBDatabase> | undefined} */ #database;
  #memory = new MemoryStore();

  static get available() {
    return Boolean(globalThis.indexedDB);
  }

  /** @param {string} key @returns {Promise<Kept | null>} */
  async load(key) {
    try {
      return (await this.#run("readonly", (table) => table.get(key))) ?? null;
    } catch {
      return this.#memory.load(key);
    }
  }

  /** @param {string} key @param {Kept} kept */
  async save(key, kept) {
    try {
      await this.#run("readwrite", (table) => table.put(kept, key));
    } catch {
      await this.#memory.save(key, kept);
    }
  }

  /** @param {IDBTransactionMode} mode @param {(table: IDBObjectStore) => IDBRequest} ask @returns {Promise<any>} */
  async #run(mode, ask) {
    const database = await (this.#database ??= this.#open());
    return new Promise((resolve, reject) => {
      const transaction = database.transaction(TABLE, mode);
      const request = ask(transaction.objectStore(TABLE));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
  }

  /** @returns {Promise<IDBDatabase>} */
  #open() {
    return new Promise((resolve, reject) => {
      const opening = indexedDB.open(DATABASE, 1);
      opening.onupgradeneeded = () => opening.result.createObjectStore(TABLE);
      opening.onerror = () => reject(opening.error);
      opening.onsuccess = () => {
        const database = opening.result;
        database.onversionchange = () => database.close(); // a later client wants another layout: from then on, memory
        resolve(database);
      };
    });
  }
}

/** What the option `storage` stands for. @param {CursorStore | Pick<Storage, "getItem" | "setItem"> | undefined} chosen @returns {CursorStore} */
export function cursorStore(chosen) {
  if (!chosen) return IndexedDbStore.available ? new IndexedDbStore() : new MemoryStore();
  return "getItem" in chosen ? new WebStorageStore(chosen) : chosen;
}
