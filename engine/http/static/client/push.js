/**
 * Pushes to this browser while no page is open (Push API, Notifications API, RFC 8292).
 *
 * States of a browser: off; on, for the user in the browser's record, which `localStorage` has. The subscription is the browser's, so what
 * differs from the record is mended when a page connects: it is made anew where the browser has lost or replaced it or the engine has
 * another key, told to the engine again, and ended where the permission is gone or another user has signed in, who must not see the first one's messages.
 *
 * @typedef {(method: string, path: string, body?: object) => Promise<any>} Ask
 * @typedef {{user: string, id: string, key: string, worker: string}} Kept `user`: engine and user; `id`: of the endpoint
 */

import { Refused } from "./requests.js";

const PATH = "v1/channels/push";

/** Its id at the engine. @param {string} endpoint */
async function idOf(endpoint) {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(endpoint));
  return Array.from(new Uint8Array(digest).slice(0, 16), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Push {
  #place;

  /** @param {URL} url of the engine @param {Ask} ask asks the engine as the user */
  constructor(url, ask) {
    this.url = url;
    this.ask = ask;
    this.#place = `notify-push:${url.host}${url.pathname}`;
  }

  /** Whether this browser can be pushed to: in secure contexts only; on iOS, when the page is on the home screen. */
  static get available() {
    return Boolean(globalThis.navigator?.serviceWorker && globalThis.PushManager && globalThis.Notification);
  }

  /** @returns {Kept | null} */
  get kept() {
    try {
      return JSON.parse(localStorage.getItem(this.#place) ?? "null");
    } catch {
      return null; // the browser refuses its storage
    }
  }

  /** @param {string} user */
  stateFor(user) {
    if (!Push.available) return "unavailable";
    if (Notification.permission === "denied") return "denied";
    return this.kept?.user === user && Notification.permission === "granted" ? "on" : "off";
  }

  /** @param {string} user @param {string} [worker] */
  async enable(user, worker = new URL("client/push_worker.js", this.url).href) {
    if (!Push.available) throw new Refused(0, "this browser has no Web Push, or not in this context");
    if ((await Notification.requestPermission()) !== "granted") throw new Refused(0, "the user has not permitted notifications");
    await this.#alone(async () => {
      if (this.kept && this.kept.user !== user) await this.#end(this.kept); // its subscription is another user's
      await this.#subscribe(user, worker);
    });
  }

  disable() {
    return this.#alone(async () => {
      const kept = this.kept;
      if (!kept) return;
      await this.ask("DELETE", `${PATH}/${kept.id}`);
      await this.#end(kept);
    });
  }

  /** Mend what differs from the record; for a page that has connected. @param {string} user */
  async renew(user) {
    if (!Push.available) return;
    await this.#alone(async () => {
      const kept = this.kept;
      if (!kept) return;
      if (kept.user !== user || Notification.permission !== "granted") await this.#end(kept);
      else await this.#subscribe(user, kept.worker, kept);
    });
  }

  /** One change of the subscription at a time, in all tabs: one that is being renewed is disabled after that. @param {() => Promise<void>} act */
  async #alone(act) {
    await (navigator.locks ? navigator.locks.request(this.#place, act) : act());
  }

  /** Close what is shown of these messages; of all without `ids`. @param {string[]} [ids] */
  async withdraw(ids) {
    for (const shown of await this.shown()) if (!ids || ids.includes(shown.tag)) shown.close();
  }

  /** What this browser shows, each with the id of its message as its tag. @returns {Promise<Notification[]>} */
  async shown() {
    return (await this.#registration(this.kept))?.getNotifications() ?? [];
  }

  /** @param {string} user @param {string} worker @param {Kept} [kept] what the engine knows */
  async #subscribe(user, worker, kept) {
    const { key } = await this.ask("GET", PATH);
    const registration = await navigator.serviceWorker.register(worker, { scope: Push.#scope(worker) });
    let subscription = await registration.pushManager.getSubscription();
    if (subscription && kept?.key !== key) {
      await subscription.unsubscribe(); // it is for another key, or nobody knows for which
      subscription = null;
    }
    await Push.#active(registration);
    subscription ??= await registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
    const { endpoint, keys } = /** @type {{endpoint: string, keys: object}} */ (subscription.toJSON());
    const id = await idOf(endpoint);
    await this.ask("PUT", PATH, { endpoint, keys }); // also an unchanged one: the engine may have lost it
    try {
      localStorage.setItem(this.#place, JSON.stringify({ user, id, key, worker }));
    } catch (error) {
      await subscription.unsubscribe(); // without a record nobody could end it
      throw error;
    }
  }

  /** A browser subscribes a worker that is active only. @param {ServiceWorkerRegistration} registration @returns {Promise<void>} */
  static #active(registration) {
    const waiting = registration.installing ?? registration.waiting;
    if (registration.active || !waiting) return Promise.resolve();
    return new Promise((active, failed) =>
      waiting.addEventListener("statechange", () => {
        if (waiting.state === "activated") active();
        if (waiting.state === "redundant") failed(new Refused(0, "the service worker could not be installed"));
      }),
    );
  }

  /** Without a subscription the push service refuses what is still pushed, and the engine forgets it. @param {Kept} kept */
  async #end(kept) {
    await this.withdraw();
    localStorage.removeItem(this.#place);
    const registration = await this.#registration(kept);
    await (await registration?.pushManager.getSubscription())?.unsubscribe();
  }

  /** @param {Kept | null} kept */
  async #registration(kept) {
    return kept && Push.available ? await navigator.serviceWorker.getRegistration(Push.#scope(kept.worker)) : undefined;
  }

  /** Below the worker, where no page is: the application may have a worker of its own for its pages. @param {string} worker */
  static #scope(worker) {
    return new URL("notify-push/", new URL(worker, location.href)).href;
  }
}
