/**
 * A bad network between this page's client and the engine: it blocks some of the ways, delays what passes, and cuts what is open.
 *
 * It wraps `WebSocket` and `fetch`, so that the client meets what it would meet behind a proxy or in a tunnel, and takes part unchanged.
 * Only the requests of the receiving side pass through it: publishers are elsewhere, with a network of their own.
 *
 * What passes:  all     everything
 *               http    no WebSocket, as behind many proxies
 *               poll    no stream either: a proxy that wants whole answers
 *               none    nothing: no answer at all
 */

/** @typedef {"all" | "http" | "poll" | "none"} Passing */

const RECEIVING = /\/v1\/(ws|sse|poll|ack)$/;
const LOST = 1006; // close code of a connection that ended without a close frame
const wait = (/** @type {number} */ ms) => new Promise((resolve) => setTimeout(resolve, ms));

export class BadNetwork {
  /** @type {Passing} chosen */ #chosen = "all";
  #gone = false;
  /** Of what goes and what comes. */ delayMs = 0;
  /** @type {Set<() => void>} ends what is open */ #open = new Set();
  /** @type {(() => void)[]} */ #waiting = [];
  #fetch = globalThis.fetch.bind(globalThis);

  constructor() {
    globalThis.WebSocket = /** @type {any} */ (this.#socketClass(globalThis.WebSocket));
    globalThis.fetch = (input, init = {}) => {
      const { pathname } = new URL(input instanceof Request ? input.url : input, location.href);
      return RECEIVING.test(pathname) ? this.#carry(pathname, input, init) : this.#fetch(input, init);
    };
  }

  /** What passes now. @returns {Passing} */
  get passing() {
    return this.#gone ? "none" : this.#chosen;
  }

  /** What is open and may not pass any more is cut. When more may pass, the page is told, as by a browser that is online again. */
  set passing(passing) {
    this.#chosen = passing;
    this.#changed();
  }

  /** While there is no network at all, whatever was chosen, or is chosen meanwhile. */
  set gone(/** @type {boolean} */ gone) {
    this.#gone = gone;
    this.#changed();
  }

  #changed() {
    this.cut();
    // The reader of a stream learns of its end after this task, and a client that still takes it for open ignores the event.
    if (this.passing !== "none") setTimeout(() => window.dispatchEvent(new Event("online")));
  }

  /** End every open connection, without a word to either side. */
  cut() {
    for (const end of [...this.#open]) end();
  }

  /** @param {typeof WebSocket} Socket */
  #socketClass(Socket) {
    const network = this;
    return class {
      static OPEN = Socket.OPEN;
      /** @type {((event: any) => void) | null} */ onmessage = null;
      /** @type {((event: any) => void) | null} */ onclose = null;
      /** @type {WebSocket | null} */ #socket = null;

      /** @param {URL} url @param {string[]} protocols */
      constructor(url, protocols) {
        const lost = () => {
          network.#open.delete(lost);
          const socket = this.#socket;
          this.#socket = null;
          if (socket) [socket.onmessage, socket.onclose] = [null, null];
          socket?.close();
          this.onclose?.({ code: LOST, reason: "cut by this page" });
        };
        if (network.passing !== "all") {
          setTimeout(lost);
          return;
        }
        this.#socket = new Socket(url, protocols);
        this.#socket.onmessage = (event) => network.#later(() => this.#socket && this.onmessage?.(event));
        this.#socket.onclose = (event) => {
          network.#open.delete(lost);
          network.#later(() => this.#socket && this.onclose?.(event));
        };
        network.#open.add(lost);
      }

      get readyState() {
        return this.#socket?.readyState ?? Socket.CLOSED;
      }

      /** @param {string} frame */
      send(frame) {
        network.#later(() => this.readyState === Socket.OPEN && this.#socket?.send(frame));
      }

      close() {
        this.#socket?.close();
      }
    };
  }

  /** In order, also where the delay has become less meanwhile: each timer runs the oldest. @param {() => void} run */
  #later(run) {
    if (!this.delayMs && !this.#waiting.length) return run();
    this.#waiting.push(run);
    setTimeout(() => this.#waiting.shift()?.(), this.delayMs);
  }

  /** @param {string} path @param {RequestInfo | URL} input @param {RequestInit} init */
  async #carry(path, input, init) {
    const lost = new AbortController();
    const end = () => lost.abort(new TypeError("cut by this page"));
    const signal = AbortSignal.any([lost.signal, ...(init.signal ? [init.signal] : [])]);
    signal.addEventListener("abort", () => this.#open.delete(end));
    await wait(this.delayMs);
    if (this.passing === "none") throw new TypeError("cut by this page");
    if (this.passing === "poll" && path.endsWith("/sse")) return new Response("a proxy that lets no stream through", { status: 502 });
    this.#open.add(end);
    const answer = await this.#fetch(input, { ...init, signal });
    if (!path.endsWith("/sse")) this.#open.delete(end);
    await wait(this.delayMs);
    const slowly = new TransformStream({
      transform: async (part, out) => {
        await wait(this.delayMs);
        out.enqueue(part);
      },
    });
    return path.endsWith("/sse") && answer.ok && answer.body ? new Response(answer.body.pipeThrough(slowly), answer) : answer;
  }
}
