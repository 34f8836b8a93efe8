"""Delivery: acknowledged, durable messages to connected users at full load.

500 users with one WebSocket each, messages round robin, at most 1 000 undelivered, 250 messages per request. A publisher waits for the
answer to a request before its next: one spends most of its time waiting for commits, four keep the processors busy. `--batch 1
--publishers 128` publishes as most applications do, one message per request. What it leaves out: TLS, networks, clients slower than the
server, users who are away; the generator shares the machine.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import uvloop

from bench.books import Books
from bench.collector import collector
from bench.progress import Phases
from bench.server import engine
from bench.system import Measurement, System
from bench.workloads import BATCH, WINDOW, connect_all, full_load, senders

USERS = 500
WARM_UP = 2000


async def measure(
    system: System, messages: int, window: int, phases: Phases, warm_up: int = WARM_UP, publishers: int = 1, batch: int = BATCH
) -> dict[str, Any]:
    """One result; also for systems other than the engine."""
    books = Books(USERS)
    with phases.phase("connecting"):
        listeners, _ = await connect_all(system, books, books.ledgers)
    sending = await senders(system, books, publishers)
    with phases.phase("warming up"):
        await full_load(sending, books, warm_up, window, batch)
    measurement, before = await Measurement(system, books).begin(), books.received
    with phases.phase("full load", messages, lambda: books.received - before):
        await full_load(sending, books, messages, window, batch)
    figures = await measurement.end()
    for sender in sending:
        sender.close()
    for listener in listeners:
        listener.drop()
    case = {"users": USERS, "window": window, "batch": batch, "publishers": publishers}
    return {"bench": "delivery", "system": system.name, "case": case, "acknowledged_by": system.acknowledges, **figures}


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=100_000, help="messages at full load (default %(default)s)")
    parser.add_argument("--window", type=int, default=WINDOW, help="undelivered at most (default %(default)s)")
    parser.add_argument(
        "--publishers",
        default="1",
        help="connections that publish; several numbers, separated by commas, are measured one after the other (default %(default)s)",
    )
    parser.add_argument("--batch", type=int, default=BATCH, help="messages per request (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="measurements on one engine (default %(default)s)")
    parser.add_argument("--shards", type=int, default=1, help="shards (default %(default)s)")
    parser.add_argument("--history", default="", metavar="URL", help="`history_url`, to measure with a history (default: none)")
    parser.add_argument("--traces", type=float, metavar="RATIO", help="share of messages that are traced, to a collector that takes all")
    parser.add_argument("--edges", type=int, default=1, help="edges (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Start an engine, measure, stop it; one dictionary per result."""
    for publishers in map(int, args.publishers.split(",")):
        with (
            nullcontext("") if args.traces is None else collector() as trace_url,
            engine(
                shards=args.shards, edges=args.edges, history_url=args.history, trace_url=trace_url, trace_ratio=args.traces or 0.0
            ) as running,
        ):
            for _ in range(args.rounds):
                yield uvloop.run(measure(running, args.messages, args.window, args.phases, publishers=publishers, batch=args.batch))
