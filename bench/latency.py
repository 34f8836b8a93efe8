"""Latency: acknowledged, durable messages to connected users at fixed rates, from the moment each was meant to be sent.

500 users with one WebSocket each, an open loop: what is due is published every millisecond, whatever has come back. What it leaves out:
TLS, networks, clients slower than the server; generator and system share the machine, so at high rates part of the latency is
the generator's.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvloop

from bench.books import Books
from bench.delivery import USERS, WARM_UP
from bench.progress import Phases
from bench.server import engine
from bench.system import Measurement, System
from bench.workloads import PUBLISHERS, connect_all, full_load, open_loop, senders

RATES = "500,2000,5000,10000"


async def measure(
    system: System, rates: list[int], seconds: float, phases: Phases, warm_up: int = WARM_UP
) -> AsyncIterator[dict[str, Any]]:
    """One result per rate; also for systems other than the engine."""
    books = Books(USERS)
    with phases.phase("connecting"):
        listeners, _ = await connect_all(system, books, books.ledgers)
    sending = await senders(system, books, PUBLISHERS)
    with phases.phase("warming up"):
        await full_load(sending, books, warm_up)
    for rate in rates:
        measurement, before = await Measurement(system, books).begin(), books.received
        with phases.phase(f"{rate} messages/s", rate * seconds, lambda before=before: books.received - before):  # type: ignore[misc]
            await open_loop(sending, books, rate, seconds)
        figures = await measurement.end()
        yield {"bench": "latency", "system": system.name, "case": {"users": USERS, "rate": rate}, **figures}
    for sender in sending:
        sender.close()
    for listener in listeners:
        listener.drop()


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rates", default=RATES, help="messages per second, separated by commas (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each rate (default %(default)s)")
    parser.add_argument("--shards", type=int, default=1, help="shards (default %(default)s)")
    parser.add_argument("--edges", type=int, default=1, help="edges (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Start an engine, measure, stop it; one dictionary per result."""

    async def all_rates() -> list[dict[str, Any]]:
        rates = [int(rate) for rate in args.rates.split(",")]
        return [result async for result in measure(running, rates, args.seconds, args.phases)]

    with engine(shards=args.shards, edges=args.edges) as running:
        yield from uvloop.run(all_rates())
