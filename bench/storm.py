"""Storm: many users lose their connections, miss messages, and return all at once, each with its cursor.

1 000 users get one message each, drop TCP without a word, 20 messages each are stored while they are away, and all reconnect in the
same moment; CPU per recovered message has the reconnect in it. What it leaves out: TLS handshakes, and clients that wait as the
server advises before they return, which spreads the storm. For this one an edge admits any number of connections a second.

With `--cut N`, instead: N users lose their connections at once while messages to them go on, and return as the server advises: after the
delays of the welcome, with their jitter, and after `Retry-After` where an edge admits no more. Users that were not cut get messages all
the while, from and to a process of their own; their latency is that of slices before the cut and after it, until all are back. An edge
admits `--admit` connections a second.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

import uvloop
from picows import WSError, WSHandshakeError

from bench import beside
from bench.books import Books, Ledger, Listener, now_s
from bench.processes import CpuMeter
from bench.progress import Phases
from bench.server import Engine, engine
from bench.system import Measurement, System, per_message_us
from bench.workloads import BATCH, connect_all, full_load, open_loop, senders
from engine.config import Config

USERS = 1000
EACH = 20
_DEFAULTS = Config()
_UNTOUCHED = 200
_UNTOUCHED_PER_S = 200.0
_CUT_PER_S = 300.0  # messages to those who are cut, before, meanwhile and after
_SLICE_S = 8.0
_BETWEEN_S = 1.0  # from the end of a slice to the next: its last messages arrive
_SLICES_BEFORE = 3
_START_S = 6.0  # for the process of the untouched users
_CONNECTING_AT_ONCE = 200
_NOTICE_S = 1.0  # for the system to notice that the clients have gone, and to write what it must


async def measure(system: System, users: int, each: int, phases: Phases) -> dict[str, Any]:
    """One result; also for systems other than the engine."""
    books = Books(users)
    with phases.phase("connecting"):
        listeners, _ = await connect_all(system, books, books.ledgers)
    (sender,) = await senders(system, books, 1)
    await full_load([sender], books, users)  # so that every client has a cursor
    await asyncio.sleep(_NOTICE_S)
    for listener in listeners:
        listener.drop()
    await asyncio.sleep(_NOTICE_S)

    meter, missed = CpuMeter(system.processes), users * each
    with phases.phase("storing", missed, lambda: books.sent - users):
        for first in range(0, missed, BATCH):
            await sender.send([now_s()] * min(BATCH, missed - first))
        await system.digested()
        await asyncio.sleep(_NOTICE_S)
    store_us = per_message_us(meter.spent_s(), missed)
    before = books.received

    measurement = await Measurement(system, books).begin()
    began = now_s()
    with phases.phase("returning", missed, lambda: books.received - before):
        listeners, failed = await connect_all(system, books, books.ledgers, at_once=users)
        connected_s = now_s() - began
        await books.reach(before + missed)
    figures = await measurement.end()
    recovered = figures.pop("messages")
    for key in ("lost", "per_s", "latency_ms", "bytes_per_message"):  # of messages that were sent long before they say nothing
        figures.pop(key, None)
    sender.close()
    for listener in listeners:
        listener.drop()
    server_us, generator_us = figures.pop("cpu_us_per_message"), figures.pop("generator_cpu_us_per_message")
    return {
        "bench": "storm",
        "system": system.name,
        "case": {"users": users, "missed_each": each, "recovers": system.recovers or "nothing"},
        "recovered": recovered,
        "lost": missed - recovered,
        "wall_s": round(books.last_s - began, 3) if recovered else None,
        "all_connected_s": round(connected_s, 3),
        "connect_retries": failed,
        "cpu_us_per_recovered": server_us if recovered else None,
        "generator_cpu_us_per_recovered": generator_us if recovered else None,
        "cpu_us_per_stored": store_us,
        **figures,
    }


class _Herd:
    """Users who return as the server advises."""

    def __init__(self, system: System, books: Books) -> None:
        self._system = system
        self._books = books
        self._chance = random.Random(1)
        self.refused = 0  # attempts that an edge did not admit
        self.failed = 0  # attempts that failed otherwise

    async def join(self) -> list[Listener]:
        """All of them, for the first time."""
        gate = asyncio.Semaphore(_CONNECTING_AT_ONCE)

        async def one(ledger: Ledger) -> Listener:
            async with gate:
                return await self._come(ledger, 0)

        return await asyncio.gather(*map(one, self._books.ledgers))

    async def come_back(self) -> list[Listener]:
        """All of them, after they were cut in this moment."""

        async def one(ledger: Ledger) -> Listener:
            await asyncio.sleep(self._delay_s(0))
            return await self._come(ledger, 1)

        return await asyncio.gather(*map(one, self._books.ledgers))

    async def _come(self, ledger: Ledger, attempt: int) -> Listener:
        while True:
            try:
                return await self._system.connect(self._books, ledger)
            except WSHandshakeError as refusal:
                answer = refusal.response
                retry_after = None if answer is None else answer.headers.get("Retry-After")
                self.refused += retry_after is not None
                self.failed += retry_after is None
                wait_s = float(retry_after) + self._chance.random() if retry_after else self._delay_s(attempt)
            except (WSError, OSError, TimeoutError):
                self.failed += 1
                wait_s = self._delay_s(attempt)
            attempt += 1
            await asyncio.sleep(wait_s)

    def _delay_s(self, attempt: int) -> float:
        delays, jitter = _DEFAULTS.reconnect_delays_ms, _DEFAULTS.reconnect_jitter
        return delays[min(attempt, len(delays) - 1)] / 1000 * self._chance.uniform(1 - jitter, 1 + jitter)


async def measure_cut(system: Engine, users: int, admit_per_s: int, phases: Phases) -> dict[str, Any]:
    """One result of `--cut`."""
    books = Books(users)
    herd = _Herd(system, books)
    with phases.phase("connecting"):
        listeners = await herd.join()
    (sender,) = await senders(system, books, 1)
    await full_load([sender], books, users)  # so that every client has a cursor
    herd.refused = herd.failed = 0

    period_s = _SLICE_S + _BETWEEN_S
    storm_s = users / admit_per_s + 2 * max(_DEFAULTS.reconnect_delays_ms) / 1000
    slices = _SLICES_BEFORE + math.ceil(storm_s / period_s)
    start_s = now_s() + _START_S
    cut_s = start_s + _SLICES_BEFORE * period_s
    starts = [start_s + number * period_s for number in range(slices)]
    task = beside.Task(system.pid, system.port, users, _UNTOUCHED, _UNTOUCHED_PER_S, _SLICE_S, starts)
    with phases.phase("messages before, meanwhile and after"):
        measuring = asyncio.ensure_future(beside.measure_elsewhere(task))
        await asyncio.sleep(start_s - now_s())
        loading = asyncio.ensure_future(open_loop([sender], books, _CUT_PER_S, slices * period_s))
        await asyncio.sleep(cut_s - now_s())
        before = books.received, books.repeated
        for listener in listeners:
            listener.drop()
        listeners = await herd.come_back()
        back_s = now_s() - cut_s
        untouched = await measuring
        await loading
    status: dict[str, Any] = await system.status()
    sender.close()
    for listener in listeners:
        listener.drop()
    received, repeated = books.received - before[0], books.repeated - before[1]
    meanwhile = untouched.figures_ms[_SLICES_BEFORE : _SLICES_BEFORE + max(math.ceil(back_s / period_s), 1)]
    alone = untouched.figures_ms[:_SLICES_BEFORE]
    p99_before = statistics.median(ms["p99"] for ms in alone)  # medians: one stall of the machine decides the 99th percentile of a slice
    p99s = sorted(ms["p99"] for ms in meanwhile)
    return {
        "bench": "storm",
        "system": system.name,
        "case": {"cut": users, "admitted_per_s": admit_per_s, "untouched": _UNTOUCHED},
        "all_back_s": round(back_s, 2),
        "untouched_ms": {"before": alone, "meanwhile": meanwhile},
        "untouched_p99_ratio": {"median": round(statistics.median(p99s) / p99_before, 2), "worst": round(p99s[-1] / p99_before, 2)},
        "received": received,
        "repeated": repeated,
        "repeated_pct": round(100 * repeated / max(received, 1), 3),
        "lost": books.sent - books.received + untouched.lost,
        "refused_per_client": round(herd.refused / users, 2),
        "failed_attempts": herd.failed,
        "retried": status["totals"]["retried"],
    }


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--users", type=int, default=USERS, help="who leave and return (default %(default)s)")
    parser.add_argument("--each", type=int, default=EACH, help="messages each misses (default %(default)s)")
    parser.add_argument("--cut", type=int, default=0, metavar="N", help="users who are cut and return as advised, instead of the above")
    parser.add_argument(
        "--admit", type=int, default=_DEFAULTS.connections_per_s, help="with --cut, `connections_per_s` (default %(default)s, the engine's)"
    )


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Start an engine, measure, stop it; one dictionary."""
    if args.cut:
        with engine(connections_per_s=args.admit) as running:
            yield uvloop.run(measure_cut(running, args.cut, args.admit, args.phases))
        return
    with engine() as running:
        yield uvloop.run(measure(running, args.users, args.each, args.phases))
