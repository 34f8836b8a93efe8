/** What an operator should look at, out of the status: silent parts, degraded ones, a fault of storage, records in quarantine. */

import { bytes, count, span } from "./format.js";

const ROLES = ["edges", "shards", "schedulers", "archivists"];
const LAG_MS = 5000; // behind that, an actor does not keep up
const MEMORY_SHARE = 0.9; // of what Redis may have: writes are refused from there on

/** @typedef {{kind: "bad" | "warn", what: string, why: string}} Alert */

/** The name of an actor. @param {any} row */
export function nameOf(row) {
  return row.role === "controller" ? row.role : `${row.role}-${row.index}`;
}

/** All actors of a status. @param {any} status @returns {any[]} */
export function actorsOf(status) {
  return [...ROLES.flatMap((role) => status[role] ?? []), ...(status.controller ? [status.controller] : [])];
}

/** @param {any} status @returns {Alert[]} The worst first. */
export function attention(status) {
  const found = [...storage(status.redis ?? {}), ...actorsOf(status).flatMap(actor), ...engine(status)];
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
  if (row.degraded > 0) found.push({ kind: "warn", what, why: `${count(row.degraded)} timers failed more than once, and are tried again` });
  for (const [part, why] of Object.entries(row.degraded ?? {})) found.push({ kind: "warn", what: `${what}, ${part}`, why: String(why) });
  return found;
}

/** @param {any} status @returns {Alert[]} */
function engine({ totals = {}, scaling = {} }) {
  /** @type {Alert[]} */
  const found = [];
  if (totals.quarantined) found.push({ kind: "bad", what: "quarantine", why: `${count(totals.quarantined)} stored records could not be read` });
  if (scaling.stopped) found.push({ kind: "warn", what: "upgrade", why: scaling.stopped });
  for (const { actor, resource, offered } of scaling.waiting ?? []) {
    found.push({ kind: "warn", what: actor, why: `waits for a node with a free ${resource}; the nodes offer ${offered}` });
  }
  return found;
}
