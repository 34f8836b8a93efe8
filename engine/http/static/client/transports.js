/**
 * The three ways from the engine to the page. Each turns what it receives into the frames of PROTOCOL.md and tells once how it ended.
 *
 * @typedef {"websocket" | "sse" | "poll"} Transport
 * @typedef {{code?: number, status?: number, silent?: boolean, retryAfterMs?: number, reason: string}} End How a link ended.
 * @typedef {{kind: Transport, duplex: boolean, shared: boolean, openedMs: number, opened(): void, send(frame: object): void,
 *   close(): void}} Link `duplex`: takes frames, acknowledgements too; `shared`: ends in another tab, which has the connection.
 * @typedef {{frame(frame: any): void, alive(): void, end(end: End): void, cursor(): string | null}} Hooks What a link tells and asks.
 */

import { Backoff } from "./backoff.js";
import { SseParser } from "./event_stream.js";
import { parseEventId } from "./ledger.js";
import { retryAfterMs } from "./requests.js";

const PROTOCOL = "notify.v1.json";
const POLL_WAIT_S = 25;

/** Why a fetch did not give what it should. @param {Response} response @returns {End} */
function refusal(response) {
  const { status } = response;
  return { status, reason: `HTTP ${status}`, retryAfterMs: retryAfterMs(response) };
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
export function openWebSocket(url, token, hooks) {
  url.protocol = url.protocol.replace("http", "ws");
  const socket = new WebSocket(url, token ? [PROTOCOL, `bearer.${token}`] : [PROTOCOL]);
  socket.onmessage = ({ data }) => hooks.frame(parse(data));
  socket.onclose = ({ code, reason }) => hooks.end({ code, reason: reason || `closed with ${code}` });
  const send = (/** @type {object} */ frame) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify(frame));
  return { duplex: true, send, close: () => socket.close() };
}

/** Over fetch: EventSource cannot carry a header. @param {URL} url @param {() => RequestInit} init @param {Hooks} hooks */
export function openSse(url, init, { frame, end, alive }) {
  const abort = new AbortController();
  const run = async () => {
    const response = await fetch(url, { ...init(), signal: abort.signal });
    const isStream = response.headers.get("Content-Type")?.startsWith("text/event-stream");
    if (!response.ok || !isStream || !response.body) return end(refusal(response));
    const parser = new SseParser();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      for (const { event, data } of parser.push(part.value)) {
        frame(parse(data, (value) => (event === "message" ? { type: "messages", messages: [value] } : { ...value, type: event })));
      }
      alive(); // after a welcome, which has the connection
    }
    end({ reason: "stream ended" });
  };
  run().catch((error) => end({ reason: String(error.message ?? error) }));
  return { duplex: false, send: () => {}, close: () => abort.abort() };
}

/** Every request carries the cursor, which acknowledges, and the token of then. @param {URL} url @param {() => RequestInit} init @param {Hooks} hooks */
export function openPoll(url, init, { frame, end, alive, cursor }) {
  const abort = new AbortController();
  const pause = new Backoff();
  let resume = () => {};
  let who = "";
  const run = async () => {
    for (let wait = 0; ; wait = POLL_WAIT_S) { // the first one is answered at once, so that polling is known to work
      const presented = cursor();
      if (presented) url.searchParams.set("last_event_id", presented);
      url.searchParams.set("wait", String(wait));
      const response = await fetch(url, { ...init(), signal: abort.signal });
      if (!response.ok) return end(refusal(response));
      const { messages, last_event_id, resumed, gaps = [], early, frames = [], user = "" } = await response.json();
      alive();
      const last = parseEventId(last_event_id);
      const from = messages[0]?.seq ?? (last?.seq ?? 0) + 1;
      if (last && (!wait || resumed === "gap" || user !== who)) frame({ type: "welcome", resumed, epoch: last.epoch, from, user });
      who = user;
      let at = 0;
      for (const gap of gaps) { // each in its place: ahead of a lower message it would settle that
        const below = messages.filter((/** @type {{seq: number}} */ { seq }) => seq < gap.from).length;
        frame({ type: "messages", messages: messages.slice(at, below) });
        frame({ type: "gap", ...gap });
        at = below;
      }
      frame({ type: "messages", messages: messages.slice(at) });
      if (early) frame({ type: "early", messages: early });
      for (const one of frames) frame(one);
      if (!messages.length || cursor() !== presented) pause.step = 0;
      else await new Promise((resolve) => setTimeout((resume = () => resolve(null)), pause.next())); // unsettled: it would come right back
    }
  };
  run().catch((error) => end({ reason: String(error.message ?? error) }));
  return { duplex: false, send: () => resume(), close: () => abort.abort() };
}
