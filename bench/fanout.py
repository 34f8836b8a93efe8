"""Fan-out: one message to every one of many connections; how long until the last client has it, and what a delivery costs.

2 000 users with one WebSocket each, 20 messages one after the other, each acknowledged by every client. Then, of the engine, the same
broadcasts beside 200 messages/s to 100 other users, whom a process of its own plays, and how long these take with and without them.
What it leaves out: TLS and networks; the generator decodes every frame in one process on the same machine, so the last client's time has
its cost in it, and its process wants a core just when the engine does.
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvloop

from bench import beside
from bench.books import Books, now_s
from bench.figures import latency_ms
from bench.load import HttpPublisher
from bench.progress import Phases
from bench.server import Engine, engine
from bench.system import Measurement, System
from bench.workloads import connect_all

CONNECTIONS = 2000
MESSAGES = 20
WARM_UP = 2
_PAUSE_S = 0.2  # so that one message's ACKs are through before the next
_BESIDE_USERS = 100
_BESIDE_PER_S = 200
_BESIDE_S = 5.0
_CONNECT_S = 4.0  # for a process to start and its clients to connect


async def measure(system: System, connections: int, messages: int, phases: Phases) -> dict[str, Any]:
    """One result; also for systems other than the engine. That one broadcasts beside other messages, too."""
    books = Books(connections)
    with phases.phase("connecting", connections):
        listeners, _ = await connect_all(system, books, books.ledgers)
    publisher = await system.publisher(connections)
    last_ms: list[float] = []

    async def one() -> None:
        due = now_s()
        before = books.received
        size = await publisher.broadcast(books.write_broadcast(due))
        books.bytes_published += size
        if await books.reach(before + connections):
            last_ms.append(books.last_s - due)
        await asyncio.sleep(_PAUSE_S)

    for _ in range(WARM_UP):
        await one()
    last_ms.clear()
    measurement = await Measurement(system, books).begin()
    with phases.phase("broadcasting", messages, lambda: len(last_ms)):
        for _ in range(messages):
            await one()
    figures = await measurement.end()
    if isinstance(system, Engine):
        figures["unicast_ms"] = await _beside(system, connections, one, phases)
    publisher.close()
    for listener in listeners:
        listener.drop()
    figures["cpu_us_per_delivery"] = figures.pop("cpu_us_per_message")
    figures["generator_cpu_us_per_delivery"] = figures.pop("generator_cpu_us_per_message")
    del figures["per_s"]  # of a load with pauses it says nothing
    published_as = publisher.broadcasts_as if isinstance(publisher, HttpPublisher) else "broadcast"
    case = {"connections": connections, "broadcasts": messages, "published_as": published_as}
    return {"bench": "fanout", "system": system.name, "case": case, "last_client_ms": latency_ms(last_ms, 0.5), **figures}


async def _beside(system: Engine, connections: int, broadcast: Callable[[], Awaitable[None]], phases: Phases) -> dict[str, Any]:
    """Latency of messages to others, first alone, then while one broadcast follows the other."""
    alone_s = now_s() + _CONNECT_S
    beside_s = alone_s + _BESIDE_S + _PAUSE_S
    task = beside.Task(system.pid, system.port, connections, _BESIDE_USERS, _BESIDE_PER_S, _BESIDE_S, [alone_s, beside_s])
    with phases.phase("messages to others, alone and beside broadcasts"):
        measuring = asyncio.ensure_future(beside.measure_elsewhere(task))
        await asyncio.sleep(beside_s - now_s())
        while not measuring.done():
            await broadcast()
        told = await measuring
    alone, during = told.figures_ms()
    return {"per_s": _BESIDE_PER_S, "alone": alone, "beside": during, "lost": told.lost}


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="connected users (default %(default)s)")
    parser.add_argument("--messages", type=int, default=MESSAGES, help="messages to all of them (default %(default)s)")
    parser.add_argument("--shards", type=int, default=1, help="shards (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Start an engine, measure, stop it; one dictionary."""
    with engine(shards=args.shards) as running:
        yield uvloop.run(measure(running, args.connections, args.messages, args.phases))
