/** What an operator should look at: silent parts, degraded ones, a fault of storage, and what waits for somebody. Each leads to its place. */

import { bytes, counted, span } from "./format.js";

const ROLES = ["edges", "shards", "schedulers", "archivists", "watchers"];
const LAG_MS = 5000; // behind that, an actor does not keep up
const MEMORY_SHARE = 0.9; // of what Redis may have: writes are refused from there on

const PLACES = /** @type {Record<string, string>} */ ({ rules: "#rules" }); // of the parts of an actor; else its line in the topology

/** @typedef {{kind: "bad" | "warn", what: string, why: string, at?: string}} Alert `at`: its place, the topology when left out. */
/** @typedef {{letters?: number, exhausted?: number}} Waiting Dead letters of the tenant, and clients whose messages used up their tries. */

/** The name of an actor. @param {any} row */
export function nameOf(row) {
  return row.role === "controller" ? row.role : `${row.role}-${row.index}`;
}

/** All actors of a status. @param {any} status @returns {any[]} */
export function actorsOf(status) {
  return [...ROLES.flatMap((role) => status[role] ?? []), ...(status.controller ? [status.controller] : [])];
}

/** @param {any} status @param {Waiting} [waiting] @returns {Alert[]} The worst first. */
export function attention(status, waiting = {}) {
  const found = [...storage(status.redis ?? {}), ...actorsOf(status).flatMap(actor), ...engine(status), ...people(waiting)];
  return found.sort((one, other) => Number(other.kind === "bad") - Number(one.kind === "bad"));
}

/** @param {any} redis @returns {Alert[]} */
function storage(redis) {
  const servers = redis.servers ?? [redis];
  return servers.flatMap((/** @type {any} */ server, /** @type {number} */ at) => {
    const what = redis.servers ? `redis-${at}` : "redis";
    if (server.alive === false) return [{ kind: "bad", what, why: server.error || "does not answer: nothing is accepted until it does" }];
    const [used, most] = [server.used_memory_bytes, server.memory_bytes_max];
    if (most && used > most * MEMORY_SHARE) return [{ kind: "bad", what, why: `${bytes(used)} of ${bytes(most)} used: writes are refused until memory is free` }];
    return [];
  });
}

/** @param {any} row @returns {Alert[]} */
function actor(row) {
  const what = nameOf(row);
  /** @type {Alert[]} */
  const found = [];
  if (!row.alive) found.push({ kind: "bad", what, why: "does not answer; it is replaced when it stays silent" });
  else if (row.draining || row.leaving) found.push({ kind: "warn", what, why: "is leaving" });
  else if (!row.ready) found.push({ kind: "warn", what, why: "is starting" });
  if (row.storage === "down") found.push({ kind: "bad", what, why: "storage does not answer it" });
  if (row.database && row.database !== "ok") found.push({ kind: "warn", what, why: `the history waits for its database: ${row.database}` });
  if (row.lag_ms > LAG_MS) found.push({ kind: "warn", what, why: `is ${span(row.lag_ms)} behind` });
  if (row.degraded > 0) found.push({ kind: "warn", what, why: `${counted(row.degraded, "timer")} failed more than once, tried again` });
  for (const [part, why] of Object.entries(row.degraded ?? {})) found.push({ kind: "warn", what: `${what}, ${part}`, why: String(why), at: PLACES[part] });
  return found;
}

/** @param {any} status @returns {Alert[]} */
function engine({ totals = {}, scaling = {} }) {
  /** @type {Alert[]} */
  const found = [];
  if (totals.quarantined) found.push({ kind: "bad", what: "quarantine", why: `${counted(totals.quarantined, "stored record")} could not be read`, at: "#problems" });
  if (scaling.stopped) found.push({ kind: "warn", what: "upgrade", why: scaling.stopped });
  for (const { actor, resource, offered } of scaling.waiting ?? []) {
    found.push({ kind: "warn", what: actor, why: `waits for a node with a free ${resource}; the nodes offer ${offered}` });
  }
  return found;
}

/** @param {Waiting} waiting @returns {Alert[]} */
function people({ letters = 0, exhausted = 0 }) {
  return [
    ...(letters ? [{ kind: /** @type {const} */ ("warn"), what: "dead letters", why: `${counted(letters, "message or action", "messages and actions")} to redrive or drop`, at: "#dead-letters" }] : []),
    ...(exhausted ? [{ kind: /** @type {const} */ ("warn"), what: "clients", why: `${counted(exhausted, "client")} did not acknowledge any try`, at: "#problems" }] : []),
  ];
}
