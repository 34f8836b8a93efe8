"""Storm: many users lose their connections, miss messages, and return all at once, each with its cursor.

1 000 users get one message each, drop TCP without a word, 20 messages each are stored while they are away, and all reconnect in the
same moment; CPU per recovered message has the reconnect in it. What it leaves out: TLS handshakes, and clients that wait as the
server advises before they return, which spreads the storm.
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

import uvloop

from bench.books import Books, now_s
from bench.processes import CpuMeter
from bench.progress import Phases
from bench.server import engine
from bench.system import Measurement, System, per_message_us
from bench.workloads import BATCH, connect_all, full_load, senders

USERS = 1000
EACH = 20
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


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--users", type=int, default=USERS, help="who leave and return (default %(default)s)")
    parser.add_argument("--each", type=int, default=EACH, help="messages each misses (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Start an engine, measure, stop it; one dictionary."""
    with engine() as running:
        yield uvloop.run(measure(running, args.users, args.each, args.phases))
