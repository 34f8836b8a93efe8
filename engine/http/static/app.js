/**
 * The demo page: signs in (`sign_in.js`), connects with the browser client, and wires the parts together.
 */

import { Absence } from "./absence.js";
import { Api } from "./api.js";
import { BadNetwork } from "./bad_network.js";
import { NotifyClient, readClaims } from "./client.js";
import "./client/elements/index.js";
import { Counters } from "./counters.js";
import { CaughtMails } from "./caught_mails.js";
import { showGrowing } from "./client/elements/growing.js";
import { Deliveries } from "./deliveries.js";
import { byId, make, shellWord } from "./dom.js";
import { Preferences } from "./preferences.js";
import { PublishForm } from "./publish.js";
import { notification, SAMPLES } from "./samples.js";
import { followAddress, leave, signIn, takeToken, wireCopyButtons } from "./sign_in.js";

const DEVICE_KEY = "engine.device";
const CATCHING_UP_MS = 1000; // what arrives this soon after a reconnect was missed before it
/** A visitor waits neither for a second WebSocket before the page falls back, nor a minute until a better transport is tried again. */
const IMPATIENT = { websocketAttempts: 1, upgradeAfterMs: 3000 };
const LOG_LINES = 40;
const TRANSPORTS = { websocket: "WebSocket", sse: "Server-sent events", poll: "Long polling" };
const HINTS = {
  auto: "Each message is acknowledged as soon as it is shown. The engine takes it off the pending queue for all your devices. The bell has what you have not read.",
  manual:
    "Until you acknowledge it the engine keeps a message and sends it again: three tries on this connection, then it waits until you come " +
    "back. Those after it go on.",
};

function deviceName() {
  const known = sessionStorage.getItem(DEVICE_KEY);
  if (known) return known;
  const name = `browser-${Math.random().toString(36).slice(2, 6)}`;
  sessionStorage.setItem(DEVICE_KEY, name);
  return name;
}

/** Everything after signing in. */
class Demo {
  #device = deviceName();
  #openedMs = 0;
  #caughtUp = 0;
  #lostMs = 0;
  #carrier = "–";
  /** @type {Set<string>} ids of what was accepted for me and has not arrived */ #onTheWay = new Set();
  #network = new BadNetwork();

  /** @param {string} token */
  constructor(token) {
    this.token = token;
    this.me = readClaims(token).sub;
    this.api = new Api(token);
    this.deliveries = new Deliveries();
    this.counters = new Counters(this.api);
    this.form = new PublishForm(this.api, this.me);
    this.absence = new Absence(this.api, this.#network, this.me, (text) => this.#log(text));
    this.mails = new CaughtMails(this.api, this.absence, this.me, String(readClaims(token).scope ?? ""), (text) => this.#log(text));
    this.preferences = new Preferences(this.api);
    byId("demo").hidden = byId("top-end").hidden = byId("sign-out").hidden = false;
    byId("deliveries-user").textContent = `for ${this.me}`;
    byId("fact-device").textContent = this.#device;
    this.#wire();
    this.client = this.#connect();
    byId("bell").client = this.client;
    showGrowing(this.client, byId("growing"));
    this.#showOnTheWay();
    this.#showPush();
    this.#showMode();
    this.#showCommands();
  }

  #connect() {
    const client = new NotifyClient({ token: this.token, device: this.#device, storage: sessionStorage, counts: true, ...IMPATIENT });
    const on = (/** @type {string} */ type, /** @type {(detail: any, event: Event) => void} */ handle) =>
      client.addEventListener(type, (/** @type {any} */ event) => handle(event.detail, event));
    on("state", (detail) => this.#showState(detail));
    on("welcome", ({ resumed }) => resumed !== "new" && this.#log(`Resumed from the cursor by ${this.#carrier}: ${resumed}`));
    on("message", (message, event) => this.#receive(message, event));
    on("duplicate", (message) => {
      this.deliveries.again(message);
      this.#log(`Number ${message.seq} came again (attempt ${message.attempt}), not shown twice`);
    });
    on("revoke", ({ ids }) => {
      const elsewhere = this.deliveries.settle(ids, "elsewhere");
      this.#arrived(ids);
      if (elsewhere) this.#log(`Acknowledged in the inbox, or on another device: ${elsewhere}`);
    });
    on("gap", ({ from, to }) => this.#log(from === null ? "Gap: the engine does not know the cursor" : `Gap: ${from} to ${to} are gone`));
    on("counts", ({ unread }) => (document.title = unread ? `(${unread}) Engine` : "Engine"));
    on("error", ({ code, detail }) => this.#log(`Error ${code}: ${detail}`));
    return client;
  }

  #wire() {
    byId("ack-mode").addEventListener("change", () => this.#showMode());
    byId("acknowledge-all").addEventListener("click", () => this.deliveries.acknowledgeAll());
    byId("send-samples").addEventListener("click", () => this.#send(SAMPLES.slice(0, 3)));
    byId("cut").addEventListener("click", () => this.#network.cut());
    byId("passing").addEventListener("change", (/** @type {any} */ event) => (this.#network.passing = event.target.value));
    byId("delay-ms").addEventListener("change", (/** @type {any} */ event) => (this.#network.delayMs = Number(event.target.value)));
    byId("other").addEventListener("input", () => this.#showCommands());
    byId("second-device").addEventListener("click", () => window.open(`/#token=${this.token}`, "_blank", "noopener"));
    byId("push-switch").addEventListener("click", () => this.#switchPush());
    byId("sign-out").addEventListener("click", () => {
      this.client.close();
      leave();
    });
    this.deliveries.addEventListener("change", () => queueMicrotask(() => this.#showCursor())); // after the client has settled what was shown
    this.deliveries.addEventListener("acknowledge", (/** @type {any} */ event) => {
      for (const message of event.detail) this.client.ack(message);
    });
    this.deliveries.addEventListener("answer", (/** @type {any} */ event) => this.#answer(event.detail));
    this.api.addEventListener("accepted", (/** @type {any} */ event) => {
      for (const { id, user } of event.detail) if (user === this.me && !this.deliveries.has(id)) this.#onTheWay.add(id);
      this.#showOnTheWay();
    });
  }

  async #switchPush() {
    try {
      await ((await this.client.pushState()) === "on" ? this.client.disablePush() : this.client.enablePush());
    } catch (error) {
      byId("push-note").textContent = `Not possible: ${/** @type {Error} */ (error).message}`;
    }
    await this.#showPush();
  }

  async #showPush() {
    const state = await this.client.pushState();
    byId("push").hidden = state === "unavailable";
    byId("push-switch").disabled = state === "denied";
    if (state === "denied") byId("push-note").textContent = "This browser does not permit this page to show notifications.";
    byId("push-switch").textContent = state === "on" ? "Push to this browser no more" : "Push to this browser when no page is open";
  }

  get #manual() {
    return document.querySelector("input[name=ack]:checked")?.getAttribute("value") === "manual";
  }

  /** @param {import("./client/notify_client.js").Message} message @param {Event} event */
  #receive(message, event) {
    if (this.#manual) event.preventDefault(); // acknowledged when the user says so
    const resumed = this.client.reconnects > 0 && Date.now() - this.#openedMs < CATCHING_UP_MS;
    this.deliveries.add(message, { resumed, settled: !this.#manual });
    this.#arrived([message.id]);
    if (resumed && this.#caughtUp++ === 0) setTimeout(() => this.#logCaughtUp(), CATCHING_UP_MS);
  }

  /** @param {{message: import("./client/notify_client.js").Message, answer: string | null, text: string}} given */
  async #answer({ message, answer, text }) {
    try {
      await this.client.answer(message.id, answer, text, message.ask?.topic);
    } catch (error) {
      this.#log(`Not answered: ${/** @type {Error} */ (error).message}`);
    }
  }

  #logCaughtUp() {
    const away = ((this.#openedMs - this.#lostMs) / 1000).toFixed(1);
    this.#log(`Away for ${away} s; caught up with ${this.#caughtUp} missed meanwhile, in order`);
  }

  /** Publish to me. @param {typeof SAMPLES} samples */
  async #send(samples) {
    try {
      await this.api.publish(...samples.map((sample) => notification(this.me, sample)));
    } catch (error) {
      this.#log(`Not published: ${/** @type {any} */ (error).message}`);
    }
  }

  /** @param {string[]} ids */
  #arrived(ids) {
    for (const id of ids) this.#onTheWay.delete(id);
    this.#showOnTheWay();
  }

  // -- showing --

  /** @param {{state: import("./client/notify_client.js").State, transport: import("./client/notify_client.js").Transport | null} & Record<string, any>} detail */
  #showState({ state, transport, reason, retryInMs = 0, code, status }) {
    const carrier = (this.#carrier = transport ? TRANSPORTS[transport] : "–");
    if (state === "open") {
      this.#openedMs = Date.now();
      this.#caughtUp = 0;
      if (this.client.reconnects === 0) this.#log(`Connected by ${carrier}`);
    } else if (state === "reconnecting" || state === "offline") {
      const lost = byId("pill").dataset.state === "open";
      if (lost) this.#lostMs = Date.now();
      const cause = this.absence.away ? "You are away" : `${lost ? "Connection lost" : "Not connected"}: ${reason}`;
      this.#log(`${cause}; next attempt ${retryInMs > 0 ? `in ${(retryInMs / 1000).toFixed(1)} s` : "at once"}`);
    }
    byId("pill").dataset.state = state;
    byId("pill-text").textContent = state === "open" ? `Live by ${carrier}` : state[0].toUpperCase() + state.slice(1);
    byId("fact-transport").textContent = carrier;
    byId("fact-connection").textContent = this.client.connection ?? "–";
    byId("fact-reconnects").textContent = String(Math.max(0, this.client.reconnects));
    this.#showCursor();
    if (state !== "closed") return;
    this.#log(`Closed: ${reason}`);
    if (code === 4401 || status === 401) leave("The token has expired, or belongs to another engine. Make a new one in a terminal:");
  }

  #showCursor() {
    byId("fact-cursor").textContent = this.client.lastEventId ?? "–";
  }

  #showOnTheWay() {
    byId("fact-on-the-way").textContent = String(this.#onTheWay.size);
  }

  #showMode() {
    byId("ack-hint").textContent = this.#manual ? HINTS.manual : HINTS.auto;
    if (this.#manual) return;
    this.deliveries.acknowledgeAll();
  }

  #showCommands() {
    const user = shellWord(byId("other").value.trim() || "USER");
    byId("listen-command").textContent = `engine listen ${user}`;
    const data = shellWord(JSON.stringify({ title: `Hello from ${this.me}` }));
    byId("other-command").textContent = `engine publish ${user} message.direct --data ${data}`;
  }

  /** @param {string} text */
  #log(text) {
    const time = new Date().toLocaleTimeString("en-GB");
    byId("log").prepend(make("li", {}, make("span", {}, time), make("span", {}, text)));
    if (byId("log").children.length > LOG_LINES) byId("log").lastChild.remove();
  }
}

wireCopyButtons();
followAddress();
const token = takeToken();
if (token) new Demo(token);
else signIn();
