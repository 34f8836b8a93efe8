"""Fan-out: one message to every one of many connections; how long until the last client has it, and what a delivery costs.

2 000 users with one WebSocket each, 20 messages one after the other, each acknowledged by every client. Then, of the engine, the same
broadcasts beside 200 messages/s to 100 other users, and how long these take with and without them. What it leaves out: TLS and
networks; the generator decodes every frame in one process on the same machine, so the last client's time has its cost in it, and so
have the messages beside: what is broadcast at one moment passes through the generator before them.
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvloop

from bench.books import Books, Data, Ledger, now_s
from bench.figures import latency_ms
from bench.load import HttpPublisher
from bench.progress import Phases
from bench.server import engine
from bench.system import Measurement, Sender, System
from bench.workloads import connect_all, open_loop

CONNECTIONS = 2000
MESSAGES = 20
WARM_UP = 2
_PAUSE_S = 0.2  # so that one message's ACKs are through before the next
_BESIDE_USERS = 100
_BESIDE_PER_S = 200
_BESIDE_S = 5.0


class _Unicast(Books):
    """Of users who get messages of their own; the broadcasts, which come to them too, are not counted."""

    def take(self, ledger: Ledger, data: Data, now: float) -> None:
        """See `Books`."""
        if data.to >= 0:
            super().take(ledger, data, now)


async def measure(system: System, connections: int, messages: int, phases: Phases, *, beside: bool = False) -> dict[str, Any]:
    """One result; also for systems other than the engine. `beside`: broadcast beside other messages, too."""
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
    if beside:
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


async def _beside(system: System, connections: int, broadcast: Callable[[], Awaitable[None]], phases: Phases) -> dict[str, Any]:
    """Latency of messages to others, first alone, then while one broadcast follows the other."""
    books = _Unicast(connections + _BESIDE_USERS)
    listeners, _ = await connect_all(system, books, books.ledgers[connections:])
    sender = Sender(await system.publisher(_BESIDE_USERS), books, range(connections, connections + _BESIDE_USERS))

    async def keep_on() -> None:
        while True:
            await broadcast()

    async def latencies(name: str) -> dict[str, float]:
        books.latencies_s.clear()
        with phases.phase(f"messages to others, {name}"):
            await open_loop([sender], books, _BESIDE_PER_S, _BESIDE_S)
        return latency_ms(books.latencies_s)

    alone = await latencies("alone")
    broadcasting = asyncio.ensure_future(keep_on())
    try:
        during = await latencies("beside broadcasts")
    finally:
        broadcasting.cancel()
        await asyncio.gather(broadcasting, return_exceptions=True)
    for listener in listeners:
        listener.drop()
    lost = books.sent - books.received
    return {"per_s": _BESIDE_PER_S, "alone": alone, "beside": during, "lost": lost}


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="connected users (default %(default)s)")
    parser.add_argument("--messages", type=int, default=MESSAGES, help="messages to all of them (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Start an engine, measure, stop it; one dictionary."""
    with engine() as running:
        yield uvloop.run(measure(running, args.connections, args.messages, args.phases, beside=True))
