"""Overload: three times the capacity for a minute, slow clients, and the way back.

First the capacity: acknowledged, durable messages a second at full load, closed loop. Then the latency of a few high-priority messages
beside nothing, beside half of the capacity, and beside half of the capacity with clients that never read or never acknowledge; and of
as many high ones as the overload has, beside nothing. These phases take turns, and the median of each quantile over the turns counts,
because one stall of the machine decides a 99th percentile. Then an open loop of several times the capacity, 70 % low, 20 % normal, 10 %
high, one user in eight away, the slow clients still there; its latencies are medians over slices as long as the phases before, beside
those of the whole run. Then nothing: how long until a low-priority publish is taken again, until everything accepted has arrived. At
last the users who were away come, and every accepted number must have been delivered or announced as gone, in order.

Latency counts from when a message was meant to be sent. It is taken by this process, which does nothing else but receive; the flood comes
from a process of the lowest priority. What it leaves out: TLS, networks; everything shares one machine, so the engine's capacity under
the flood is less than beside a closed loop."""

from __future__ import annotations

import asyncio
import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Final

import msgspec
import uvloop

from bench import delivery
from bench.books import now_s
from bench.figures import latency_ms, quantile
from bench.processes import CpuMeter
from bench.progress import Phases
from bench.server import Engine, engine
from bench.system import rss_mib
from tests.support.load import flood
from tests.support.load.flood import Flood, Outcome, Wave
from tests.support.load.frame_reader import Reader
from tests.support.load.poster import Poster

ONLINE: Final = 350
AWAY: Final = 50
MIX: Final = (("low", 0.7, 100, 32), ("normal", 0.2, 50, 16))  # priority, share, items per request, connections
HIGH_SHARE: Final = 0.1
HIGH_RATE_ALONE: Final = 200.0
HIGH_CONNECTIONS: Final = 96
SLOW: Final = ("never-reads", "never-acks")
SLOW_WAVE: Final = Wave("normal", 400.0, 20, 8, list(SLOW))
_CAPACITY_MESSAGES: Final = 40_000
_PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.05


class Deaf:
    """A client that does its handshake and never reads again; it comes back when it is thrown out."""

    def __init__(self, system: Engine, user: str) -> None:
        self._system = system
        self._user = user
        self.connects = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            _, writer = await asyncio.open_connection("127.0.0.1", self._system.port, limit=1)
            writer.write(
                f"GET /v1/ws HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                f"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nAuthorization: Bearer {self._system.token(self._user)}\r\n\r\n".encode()
            )
            self.connects += 1
            transport = writer.transport
            transport.pause_reading()  # type: ignore[attr-defined]
            try:
                while not transport.is_closing():
                    await asyncio.sleep(1)
                    writer.write(b"\x8a\x80\0\0\0\0")  # an empty pong: alive, only deaf
            finally:
                transport.abort()


@asynccontextmanager
async def slow_clients(system: Engine) -> AsyncIterator[Deaf]:
    """A client that never reads, and one that never acknowledges."""
    deaf = Deaf(system, SLOW[0])
    running = asyncio.create_task(deaf.run())
    mute = await Reader(SLOW[1], acknowledges=False).connect(system.port, system.token(SLOW[1]))
    try:
        yield deaf
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        mute.drop()


class Memory:
    """Resident memory over time."""

    def __init__(self, system: Engine) -> None:
        self._system = system
        self.samples: list[dict[str, float]] = []

    async def watch(self) -> None:
        """One sample a second, until cancelled."""
        while True:
            self.samples.append(await asyncio.to_thread(rss_mib, self._system.processes))
            await asyncio.sleep(1)

    def figures(self) -> dict[str, Any]:
        """First, highest and last by role."""
        roles = ("edge", "shard", "scheduler", "redis")
        return {
            role: {"first": values[0], "max": max(values), "last": values[-1]}
            for role in roles
            if (values := [sample[role] for sample in self.samples if role in sample])
        }


class Floods:
    """Pours high-priority messages and others beside them, and keeps what became of them."""

    def __init__(self, system: Engine, readers: Sequence[Reader]) -> None:
        self.token = system.token("bench", "publish")
        self.reports: list[Outcome] = []
        self.cpu_s: list[float] = []  # of the others' process
        self._port = system.port
        self._readers = readers

    async def pour(self, seconds: float, high_rate: float, waves: list[Wave]) -> list[tuple[float, float]]:
        """Latencies of the high ones: (seconds since the start when the message was due, how long it took)."""
        for reader in self._readers:
            reader.high_s.clear()
        start = now_s() + 2.0
        high = Wave("high", high_rate, max(1, round(high_rate / 500)), HIGH_CONNECTIONS, [reader.user for reader in self._readers])
        mine = flood.pour(self._port, self.token, high, start, seconds)
        others = flood.flood_elsewhere(Flood(self._port, self.token, start, seconds, waves)) if waves else asyncio.sleep(0)
        outcome, theirs = await asyncio.gather(mine, others)
        self.reports.append(outcome)
        if theirs is not None:
            self.reports.extend(theirs.outcomes)
            self.cpu_s.append(theirs.cpu_s)
        return [(due - start, took) for reader in self._readers for due, took in reader.high_s]


async def _calm(system: Engine, floods: Floods, capacity: float, args: Namespace, phases: Phases) -> dict[str, list[dict[str, float]]]:
    """The phases before the overload: latencies of the high ones, by phase, one row per turn."""
    half = [Wave("normal", capacity / 2, 50, 32, [f"on{n}" for n in range(ONLINE)])]
    few, many = HIGH_RATE_ALONE, capacity * args.times * HIGH_SHARE
    kinds: tuple[tuple[str, float, list[Wave]], ...] = (
        ("alone", few, []),
        ("same_rate_alone", many, []),
        ("beside_half", few, half),
        ("beside_half_and_slow", few, [*half, SLOW_WAVE]),
    )
    rows: dict[str, list[dict[str, float]]] = {name: [] for name, *_ in kinds}
    for turn in range(args.calm_turns):
        for name, rate, waves in kinds:
            with phases.phase(f"high {name.replace('_', ' ')}, turn {turn + 1} of {args.calm_turns}"):
                async with slow_clients(system) if SLOW_WAVE in waves else nullcontext():
                    samples = await floods.pour(args.calm_seconds, rate, waves)
            rows[name].append(latency_ms([took for _, took in samples]))
    return rows


async def measure(system: Engine, capacity: float, args: Namespace, phases: Phases) -> dict[str, Any]:
    """Everything but the capacity."""
    online = [f"on{n}" for n in range(ONLINE)]
    away = [f"away{n}" for n in range(AWAY)]
    readers = [await Reader(user).connect(system.port, system.token(user)) for user in online]
    floods = Floods(system, readers)
    calm = await _calm(system, floods, capacity, args, phases)
    rate = capacity * args.times
    async with slow_clients(system) as deaf:
        before = len(floods.reports)
        memory = Memory(system)
        watching = asyncio.create_task(memory.watch())
        waves = [Wave(name, rate * share, size, connections, online + away) for name, share, size, connections in MIX]
        meter, own = CpuMeter(system.processes), time.process_time()
        with phases.phase(f"{args.times:g} times the capacity"):
            loaded = await floods.pour(args.seconds, rate * HIGH_SHARE, [*waves, SLOW_WAVE])
        ended = now_s()
        cores = {role: round(spent / args.seconds, 2) for role, spent in meter.spent_s().items()}
        cores["receivers"] = round((time.process_time() - own) / args.seconds, 2)
        cores["flood"] = round(floods.cpu_s[-1] / args.seconds, 2)
        drain_s = await _until_low_is_taken(system, floods.token) - ended
        accepted = _accepted(floods.reports)
        with phases.phase("recovering"):
            recovered = await _until(lambda: all(accepted.get(reader.user, set()) <= reader.seen for reader in readers))
        recovered_s = now_s() - ended
        watching.cancel()
        connects = deaf.connects
    with phases.phase("who was away comes"):
        late = [await Reader(user).connect(system.port, system.token(user)) for user in away]
        await _until(lambda: all(accepted.get(reader.user, set()) <= reader.seen for reader in late))
    everyone = [*readers, *late]
    lost = sum(len(accepted.get(reader.user, set()) - reader.seen) for reader in everyone)
    status = await system.status()
    for reader in everyone:
        reader.drop()
    *flooded, _slow = floods.reports[before:]
    slices = _slices(loaded, args.calm_seconds)
    by_turn = {**calm, "under_load": slices}
    high_ms = {name: _medians(rows) for name, rows in by_turn.items()}
    p99 = {name: figures["p99"] for name, figures in high_ms.items()}
    return {
        "bench": "overload",
        "system": system.name,
        "case": {"times": args.times, "seconds": args.seconds, "online": ONLINE, "away": AWAY},
        "capacity_per_s": round(capacity),
        "offered_per_s": round(rate),
        "by_priority": {outcome.priority: _figures(outcome, args.seconds) for outcome in flooded},
        "high_ms": {**high_ms, "under_load_whole_run": latency_ms([took for _, took in loaded])},
        "high_p99_ms_by_turn": {name: [row["p99"] for row in rows] for name, rows in by_turn.items()},
        "high_p99_of_alone": round(p99["under_load"] / p99["alone"], 2),
        "high_p99_of_beside_half": round(p99["under_load"] / p99["beside_half"], 2),
        "high_p99_of_same_rate_alone": round(p99["under_load"] / p99["same_rate_alone"], 2),
        "retry_after_s": _spread([retry for outcome in flooded for retry in outcome.retry_after_s]),
        "low_taken_again_s": round(drain_s, 2),
        "recovered": recovered,
        "recovered_s": round(recovered_s, 2),
        "lost": lost,
        "out_of_order": sum(reader.out_of_order for reader in everyone),
        "repeated": sum(reader.repeated for reader in everyone),
        "announced_gone": sum(reader.gaps for reader in everyone),
        "never_reads_connects": connects,
        "rss_mib": memory.figures(),
        "cores_under_load": cores,
        "shards": [{key: row.get(key) for key in _SHARD_FIGURES} for row in status.get("shards", [])],  # type: ignore[attr-defined]
    }


_SHARD_FIGURES: Final = (
    "pressure", "memory_bytes", "published", "refused_high", "refused_normal", "refused_low", "conflated", "low_spilled", "exhausted",
)  # fmt: skip


def _accepted(reports: Sequence[Outcome]) -> dict[str, set[int]]:
    accepted: dict[str, set[int]] = {}
    for outcome in reports:
        for user, seqs in outcome.accepted.items():
            accepted.setdefault(user, set()).update(seqs)
    return accepted


def _slices(samples: Sequence[tuple[float, float]], seconds: float) -> list[dict[str, float]]:
    """Latencies of slices of so many seconds."""
    slices: dict[int, list[float]] = {}
    for due, took in samples:
        slices.setdefault(int(due / seconds), []).append(took)
    return [latency_ms(slices[index]) for index in sorted(slices)]


def _medians(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of each figure."""
    return {name: round(statistics.median(row[name] for row in rows), 2) for name in rows[0]}


def _figures(outcome: Outcome, seconds: float) -> dict[str, Any]:
    accepted = outcome.statuses.get("accepted", 0)
    return {
        "due": outcome.due,
        "not_sent": outcome.unsent,
        "accepted": accepted,
        "accepted_per_s": round(accepted / seconds),
        "accepted_share": round(accepted / max(outcome.due, 1), 3),
        "http": outcome.http,
        "answer_ms": latency_ms(outcome.answers_s),
        "refusal_ms": latency_ms(outcome.refusals_s),
    }


def _spread(values: Sequence[int]) -> dict[str, int]:
    ordered = sorted(values)
    return {"count": len(ordered), **{f"p{q:g}": int(quantile(ordered, q / 100)) for q in (0, 50, 99, 100) if ordered}}


async def _until_low_is_taken(system: Engine, token: str) -> float:
    """When a low-priority publish was answered 202."""
    poster = await Poster.open(system.port, f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n")
    until = now_s() + _PATIENCE_S
    body = msgspec.json.encode({"user": "nobody", "type": "bench.flood", "priority": "low"})
    while now_s() < until:
        status, _, _ = await poster.request("POST", "/v1/notifications", body)
        if status == 202:
            break
        await asyncio.sleep(_POLL_S)
    poster.close()
    return now_s()


async def _until(reached: Any) -> bool:
    """False when it was not for a minute."""
    until = now_s() + _PATIENCE_S
    while not reached():
        if now_s() > until:
            return False
        await asyncio.sleep(_POLL_S)
    return True


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=60.0, help="of the overload (default %(default)s)")
    parser.add_argument("--calm-seconds", type=float, default=8.0, help="of each phase before it (default %(default)s)")
    parser.add_argument("--calm-turns", type=int, default=3, help="of these phases (default %(default)s)")
    parser.add_argument("--times", type=float, default=3.0, help="the capacity (default %(default)s)")
    parser.add_argument("--shards", type=int, default=1, help="shards (default %(default)s)")
    parser.add_argument("--edges", type=int, default=1, help="edges (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Start an engine, measure, stop it."""

    async def everything() -> dict[str, Any]:
        capacity = await delivery.measure(running, _CAPACITY_MESSAGES, delivery.WINDOW, args.phases)
        return await measure(running, capacity["per_s"], args, args.phases)

    with engine(shards=args.shards, edges=args.edges) as running:
        yield uvloop.run(everything())
