/**
 * The demo page: signs in with the token of the address, connects with the browser client, and wires the parts together.
 *
 * The token comes in the fragment (`/#token=...`), which browsers do not send to servers; it is moved to the tab's session
 * storage and removed from the address bar at once.
 */

import { Api } from "./api.js";
import { NotifyClient, readClaims } from "./client.js";
import { Counters } from "./counters.js";
import { DeadLetters } from "./dead_letters.js";
import { byId, make, shellWord } from "./dom.js";
import { Inbox, wording } from "./inbox.js";
import { PublishForm } from "./publish.js";
import { notification, SAMPLES } from "./samples.js";

const TOKEN_KEY = "engine.token";
const DEVICE_KEY = "engine.device";
const BREAK_MS = 4000;
const CATCHING_UP_MS = 1000; // what arrives this soon after a reconnect was missed before it
const LOG_LINES = 40;
const TRANSPORTS = { websocket: "WebSocket", sse: "Server-sent events", poll: "Long polling" };
const HINTS = {
  auto:
    "Each message is acknowledged as soon as it is shown, and the engine takes it off the pending queue for all your devices. " +
    "Read or unread is only this page’s business.",
  manual:
    "Marking as read is the acknowledgement. Until then the engine keeps the message and sends it again: three tries on this " +
    "connection, then it waits until you acknowledge something or come back.",
};

function takeToken() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    if (token !== sessionStorage.getItem(TOKEN_KEY)) sessionStorage.clear();
    sessionStorage.setItem(TOKEN_KEY, token);
    history.replaceState(null, "", location.pathname + location.search);
  }
  return sessionStorage.getItem(TOKEN_KEY);
}

function deviceName() {
  const known = sessionStorage.getItem(DEVICE_KEY);
  if (known) return known;
  const name = `browser-${Math.random().toString(36).slice(2, 6)}`;
  sessionStorage.setItem(DEVICE_KEY, name);
  return name;
}

/** @param {string} reason Shown instead of the usual words, when there is one. */
function signIn(reason = "") {
  byId("sign-in").hidden = false;
  byId("sign-in-reason").textContent = reason || byId("sign-in-reason").textContent;
  byId("sign-in-form").addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    const pasted = byId("token").value.trim();
    const token = /#token=([^&\s]+)/.exec(pasted)?.[1] ?? pasted; // the whole link is fine too
    if (readClaims(token).sub) {
      location.hash = `token=${token}`; // as if it had come in the address
      return;
    }
    byId("sign-in-problem").hidden = false;
    byId("sign-in-problem").textContent = "This is not a token: one has three parts with dots between them, and names a user.";
  });
}

/** Everything after signing in. */
class Demo {
  #device = deviceName();
  #openedMs = 0;
  #caughtUp = 0;
  #lostMs = 0;
  #breaking = false;

  /** @param {string} token */
  constructor(token) {
    this.token = token;
    this.me = readClaims(token).sub;
    this.api = new Api(token);
    this.inbox = new Inbox();
    this.counters = new Counters(this.api);
    this.form = new PublishForm(this.api, this.me);
    this.deadLetters = new DeadLetters(this.api, String(readClaims(token).scope ?? ""));
    byId("demo").hidden = byId("top-end").hidden = byId("sign-out").hidden = false;
    byId("inbox-user").textContent = `of ${this.me}`;
    byId("fact-device").textContent = this.#device;
    this.#wire();
    this.client = this.#connect();
    this.#showUnread();
    this.#showMode();
    this.#showCommands();
  }

  #connect() {
    const chosen = byId("transport").value;
    const options = { token: this.token, device: this.#device, storage: sessionStorage };
    const client = new NotifyClient({ ...options, ...(chosen && { transports: [chosen] }) });
    const on = (/** @type {string} */ type, /** @type {(detail: any, event: Event) => void} */ handle) =>
      client.addEventListener(type, (/** @type {any} */ event) => client === this.client && handle(event.detail, event));
    on("state", (detail) => this.#showState(detail));
    on("welcome", ({ resumed }) => resumed !== "new" && this.#log(`Resumed from the cursor: ${resumed}`));
    on("message", (message, event) => this.#receive(message, event));
    on("duplicate", (message) => {
      this.inbox.again(message);
      this.#log(`Number ${message.seq} came again (attempt ${message.attempt}), not shown twice`);
    });
    on("revoke", ({ ids }) => {
      this.inbox.settle(ids, "elsewhere");
      this.#log(`Handled on another device: ${ids.length}`);
    });
    on("gap", ({ from, to }) => this.#log(from === null ? "Gap: the engine does not know the cursor" : `Gap: ${from} to ${to} are gone`));
    on("error", ({ code, detail }) => this.#log(`Error ${code}: ${detail}`));
    return client;
  }

  #wire() {
    byId("ack-mode").addEventListener("change", () => this.#showMode());
    byId("read-all").addEventListener("click", () => this.inbox.readAll());
    byId("send-samples").addEventListener("click", () => this.#send(SAMPLES.slice(0, 3)));
    byId("break").addEventListener("click", () => this.#break());
    byId("other").addEventListener("input", () => this.#showCommands());
    byId("transport").addEventListener("change", () => {
      this.client.close();
      this.client = this.#connect();
    });
    byId("second-device").addEventListener("click", () => window.open(`/#token=${this.token}`, "_blank", "noopener"));
    byId("bell").addEventListener("click", () => {
      byId("inbox").scrollIntoView({ block: "start" });
      byId("inbox").focus({ preventScroll: true });
    });
    byId("sign-out").addEventListener("click", () => {
      this.client.close();
      sessionStorage.clear();
      location.reload();
    });
    this.inbox.addEventListener("change", () => this.#showUnread());
    this.inbox.addEventListener("read", (/** @type {any} */ event) => {
      for (const message of event.detail) this.client.ack(message); // once more does no harm
    });
  }

  get #manual() {
    return document.querySelector("input[name=ack]:checked")?.getAttribute("value") === "manual";
  }

  /** @param {import("./client.js").Message} message @param {Event} event */
  #receive(message, event) {
    if (this.#manual) event.preventDefault(); // acknowledged when it is read
    const resumed = this.client.reconnects > 0 && Date.now() - this.#openedMs < CATCHING_UP_MS;
    this.inbox.add(message, { resumed, settled: !this.#manual });
    byId("announce").textContent = `New: ${wording(message)[0]}`;
    byId("bell").classList.remove("ring");
    requestAnimationFrame(() => byId("bell").classList.add("ring"));
    if (resumed && this.#caughtUp++ === 0) setTimeout(() => this.#logCaughtUp(), CATCHING_UP_MS);
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

  #break() {
    if (this.client.state === "closed") return this.client.open();
    byId("break").disabled = this.#breaking = true;
    this.client.reconnect(BREAK_MS);
    const away = SAMPLES.slice(3).map((sample) => ({ ...sample, title: `While you were away: ${sample.title}` }));
    setTimeout(() => this.#send(away), BREAK_MS / 4);
    setTimeout(() => (byId("break").disabled = this.#breaking = false), BREAK_MS);
  }

  // -- showing --

  /** @param {{state: import("./client.js").State, transport: import("./client.js").Transport | null} & Record<string, any>} detail */
  #showState({ state, transport, reason, retryInMs = 0, code, status }) {
    const carrier = transport ? TRANSPORTS[transport] : "–";
    if (state === "open") {
      this.#openedMs = Date.now();
      this.#caughtUp = 0;
      if (this.client.reconnects === 0) this.#log(`Connected by ${carrier}`);
    } else if (state === "reconnecting" || state === "offline") {
      if (byId("pill").dataset.state === "open") this.#lostMs = Date.now();
      const cause = this.#breaking ? "Connection dropped by you" : `Connection lost: ${reason}`;
      this.#log(`${cause}; next attempt in ${(retryInMs / 1000).toFixed(1)} s`);
    }
    byId("pill").dataset.state = state;
    byId("pill-text").textContent = state === "open" ? `Live by ${carrier}` : state[0].toUpperCase() + state.slice(1);
    byId("fact-transport").textContent = carrier;
    byId("fact-connection").textContent = this.client.connection ?? "–";
    byId("fact-reconnects").textContent = String(Math.max(0, this.client.reconnects));
    byId("break").querySelector("span").textContent = state === "closed" ? "Connect again" : "Break the connection";
    this.#showCursor();
    if (state !== "closed") return;
    this.#log(`Closed: ${reason}`);
    if (code === 4401 || status === 401) leave("The token has expired, or belongs to another engine. Make a new one in a terminal:");
  }

  #showCursor() {
    byId("fact-cursor").textContent = this.client.lastEventId ?? "–";
  }

  #showUnread() {
    const { unread } = this.inbox;
    byId("badge").hidden = unread === 0;
    byId("badge").textContent = unread > 99 ? "99+" : String(unread);
    byId("bell").ariaLabel = `${unread || "No"} unread notification${unread === 1 ? "" : "s"}, go to the inbox`;
    byId("read-all").disabled = unread === 0;
    document.title = unread ? `(${unread}) Engine` : "Engine";
    queueMicrotask(() => this.client && this.#showCursor()); // after the client has settled what was just shown
  }

  #showMode() {
    byId("ack-hint").textContent = this.#manual ? HINTS.manual : HINTS.auto;
    if (this.#manual) return;
    const waiting = this.inbox.unsettled;
    for (const message of waiting) this.client.ack(message);
    this.inbox.settle(waiting.map(({ id }) => id), "yes");
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

/** Forget the token and say why. @param {string} reason */
function leave(reason) {
  sessionStorage.clear();
  sessionStorage.setItem("engine.reason", reason);
  location.reload();
}

for (const button of document.querySelectorAll("button[data-copy]")) {
  button.addEventListener("click", async () => {
    const label = /** @type {any} */ (button.querySelector("span"));
    const text = byId(/** @type {any} */ (button).dataset.copy).textContent;
    const copied = await navigator.clipboard?.writeText(text).then(() => true, () => false); // absent on plain http from elsewhere
    label.textContent = copied ? "Copied" : "Select and copy";
    setTimeout(() => (label.textContent = "Copy"), 1600);
  });
}

window.addEventListener("hashchange", () => takeToken() && location.reload());
const token = takeToken();
if (token) new Demo(token);
else {
  signIn(sessionStorage.getItem("engine.reason") ?? "");
  sessionStorage.removeItem("engine.reason");
}
