/** Every process with its node, its state and its load; and how many of them are wanted. */

import { make } from "../dom.js";
import { actorsOf, nameOf } from "./attention.js";
import { bytes, count, counted, moment, short, span } from "./format.js";
import { chip, facts, table } from "./table.js";

const DECISIONS = 5;

/** The table of actors, and of Redis. @param {any} status */
export function topology(status) {
  return table(
    "Processes of the engine",
    [
      { title: "Part", cell: ({ name }) => name, head: true },
      { title: "State", cell: ({ state }) => chip(...state) },
      { title: "Node", cell: ({ node }) => node || "–" },
      { title: "Process", cell: ({ pid }) => pid ?? "–", figure: true },
      { title: "CPU", cell: cpu, figure: true },
      { title: "Memory", cell: ({ memory }) => bytes(memory), figure: true },
      { title: "Restarts", cell: ({ restarts }) => count(restarts), figure: true },
      { title: "Since", cell: ({ since }) => moment(since) },
      { title: "Load", cell: ({ load }) => load },
    ],
    [...actorsOf(status).map(actorRow), ...serverRows(status.redis ?? {})],
  );
}

/** @param {any} row */
function actorRow(row) {
  return {
    name: nameOf(row),
    state: stateOf(row),
    node: row.node,
    pid: row.pid,
    cpu: row.cpu_pct,
    memory: row.rss_bytes,
    restarts: row.restarts,
    since: row.started_ms,
    load: loadOf(row),
  };
}

/** @param {any} row @returns {["good" | "warn" | "bad", string]} */
function stateOf(row) {
  if (!row.alive) return ["bad", "silent"];
  if (row.draining || row.leaving) return ["warn", "leaving"];
  if (!row.ready) return ["warn", "starting"];
  return Object.keys(row.degraded ?? {}).length ? ["warn", "degraded"] : ["good", "ready"];
}

/** What each role has to do, in a few words. @param {any} row */
function loadOf(row) {
  if (!row.alive) return "–";
  if (row.role === "edge") {
    const connections = Object.values(row.connections ?? {}).reduce((/** @type {number} */ sum, one) => sum + Number(one), 0);
    return `${counted(connections, "connection")}, ${counted(row.awaiting, "request")} unanswered, ${span(row.delay_ms)} delay`;
  }
  if (row.role === "shard") return `${counted(row.users, "user")}, ${count(row.pending)} pending, ${span(row.lag_ms)} lag`;
  if (row.role === "scheduler") return `${counted(row.armed, "timer")}, ${span(row.lag_ms)} lag`;
  if (row.role === "archivist") return `${counted(row.waiting, "outcome")} unwritten, ${span(row.lag_ms)} lag`;
  if (row.role === "watcher") return `${counted(row.running_jobs, "job")}, ${counted(row.told, "event")} told`;
  return "–";
}

/** @param {any} redis */
function serverRows(redis) {
  /** @type {any[]} */
  const servers = redis.servers ?? [redis];
  return servers.map((server, at) => ({
    name: redis.servers ? `redis-${at}` : "redis",
    state: server.alive ? ["good", "ready"] : ["bad", "silent"],
    pid: server.pid,
    memory: server.used_memory_bytes,
    restarts: server.restarts,
    since: server.uptime_s ? Date.now() - server.uptime_s * 1000 : 0,
    load: server.version ? `version ${server.version}, append-only file ${bytes(server.aof_bytes)}` : "–",
  }));
}

/** The share of a core, as a number and a bar. @param {{cpu?: number}} row */
function cpu({ cpu }) {
  if (cpu === undefined) return "–";
  const bar = make("meter", { max: 100, value: Math.min(cpu, 100), high: 85, ariaLabel: "share of a core" });
  return make("span", { className: "share" }, `${short(cpu)} %`, bar);
}

/** Wanted numbers, what is under way, and the last decisions of the autoscaler. @param {any} scaling */
export function scalingFacts(scaling) {
  const have = scaling.have ?? {};
  const number = (/** @type {string} */ role) => {
    const wanted = scaling.wanted?.[role];
    return wanted === undefined ? "–" : have[role] === wanted ? count(wanted) : `${count(have[role])}, to be ${count(wanted)}`;
  };
  const shown = facts([
    ["Edges", number("edges")],
    ["Shards", number("shards")],
    ["Schedulers", number("schedulers")],
    ["Wanted by", scaling.by || "settings"],
    ["Slots to move", count(scaling.slots_left)],
    ["Autoscaler", scaling.autoscale ?? "–"],
  ]);
  const news = [
    ...(scaling.joining ?? []).map((/** @type {string} */ name) => `${name} joins`),
    ...(scaling.leaving ?? []).map((/** @type {string} */ name) => `${name} leaves`),
    ...(scaling.upgrading?.length ? [`upgrading ${scaling.upgrading[0]}, ${scaling.upgrading.length} to go`] : []),
    ...(scaling.decisions ?? []).slice(0, DECISIONS).map((/** @type {any} */ one) => `${moment(one.at_ms)} ${one.action} ${one.role}: ${one.reason}`),
  ];
  return make("div", {}, shown, news.length > 0 && make("ul", { className: "plain small" }, ...news.map((line) => make("li", {}, line))));
}
