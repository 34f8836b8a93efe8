/**
 * One connection for all tabs of a user. The tab that holds a Web Lock leads: it has the connection to the engine, and is to the other
 * tabs what the engine is to it. They `join` with their cursor, get `welcome` and what is open, then every frame that arrives, and send
 * their acknowledgements to it. Their ledgers are as good as the leader's, so each of them can go on where it ended.
 *
 * Who leads. The lock is released by `leave`, and by the browser when the tab ends in any way; the tab that asked for it first has it
 * next, and says `lead`, upon which the others join again. A leader that is frozen keeps the lock but answers nothing: a tab that waits in
 * vain for an answer steals the lock, and the old leader follows when it wakes up. Until then two tabs are connected, as two devices are:
 * both have ledgers, so nothing is shown twice. The lock may be there before the last messages of the tab that had it, which has
 * acknowledged them: a tab that leads takes messages of another one too. And a tab that is being closed goes on for a moment with a
 * channel that the browser has cut: what it tells is acknowledged once a second channel of its own has heard it.
 *
 * @typedef {object} Hooks
 * @property {() => void} lead This tab leads from now on.
 * @property {() => void} follow It does not any more.
 * @property {(from: string, frame: any) => void} asked A frame of a tab, to the leader.
 * @property {(frame: any) => void} told A frame of the leader, to the others.
 * @property {() => void} passed The browser has passed messages on that this tab told all others.
 */

export class Tabs {
  #id = Math.random().toString(36).slice(2);
  #left = false;
  /** @type {() => void} */ #release = () => {};
  #waiting = new AbortController(); // for the lock
  leading = false;

  /** Web Locks exist in secure contexts only: https, and http to this machine. */
  static get available() {
    return Boolean(globalThis.navigator?.locks && globalThis.BroadcastChannel);
  }

  /** @param {string} name The same for the tabs that share. @param {Hooks} hooks */
  constructor(name, hooks) {
    this.name = name;
    this.hooks = hooks;
    this.channel = new BroadcastChannel(name);
    this.channel.onmessage = ({ data: { from, to, frame } }) => {
      if (to === "leader" && this.leading) hooks.asked(from, frame);
      else if ((!this.leading || frame.type === "messages") && (to === "all" || to === this.#id)) hooks.told(frame);
    };
    this.echo = new BroadcastChannel(name);
    this.echo.onmessage = ({ data: { from, to, frame } }) => {
      if (from === this.#id && to === "all" && frame.type === "messages") hooks.passed();
    };
  }

  /** Settles once it is known whether this tab leads at first. Rejects where the browser gives no locks. @returns {Promise<void>} */
  enter() {
    return new Promise((known, refused) => {
      this.#request({ ifAvailable: true }, (lock) => {
        if (lock) this.#begin();
        else this.#queue();
        known();
      }).then(() => refused(new Error("the browser gives no lock")));
    });
  }

  /** Lead although another tab has the lock: it does not answer. */
  steal() {
    this.#waiting.abort();
    this.#request({ steal: true }, () => this.#lead());
  }

  /** To all tabs that follow this one, or to one of them. @param {object} frame @param {string} [to] */
  tell(frame, to = "all") {
    if (!this.#left) this.channel.postMessage({ from: this.#id, to, frame });
  }

  /** To the leader. @param {object} frame */
  ask(frame) {
    this.tell(frame, "leader");
  }

  /** Take part no more; another tab may lead. */
  leave() {
    this.leading = false;
    this.#left = true;
    this.#waiting.abort();
    this.#release();
    this.channel.close();
    this.echo.close();
  }

  #queue() {
    this.#waiting = new AbortController();
    this.#request({ signal: this.#waiting.signal }, () => this.#lead());
  }

  #lead() {
    this.#begin();
    this.hooks.lead();
  }

  #begin() {
    this.leading = true;
    this.tell({ type: "lead" });
  }

  /** Settles when the lock ends. @param {LockOptions} options @param {(lock: Lock | null) => void} granted @returns {Promise<any>} */
  #request(options, granted) {
    let led = false;
    const held = navigator.locks.request(this.name, options, (lock) => {
      if (this.#left) return null;
      led = lock !== null;
      granted(lock);
      return lock && new Promise((release) => (this.#release = () => release(null)));
    });
    return held.catch(() => {
      if (this.#left || !led) return; // it waited, and need not any more
      this.leading = false; // stolen
      this.#queue();
      this.hooks.follow();
    });
  }
}
