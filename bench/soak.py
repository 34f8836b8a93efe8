"""Soak: a steady rate for a long time, clients that lose their connection and come back; memory of every process over time.

500 users, an open loop; the users in turns are cut off and connect again with their cursor. Growth per message is the slope of a
least-squares line through the readings after the warm-up, so a few readings decide nothing. Growth by quarter, each the difference of two
medians, shows whether it ends. What it leaves out: users who never come back, and what grows by design until a limit or a time to live
(idempotency keys, the session stream), which shows as growth of Redis here.
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

import uvloop

from bench.books import Books, Listener, now_s
from bench.delivery import USERS
from bench.figures import by_quarter, slope
from bench.progress import Phases
from bench.server import engine
from bench.system import Measurement, System, rss_mib
from bench.workloads import PUBLISHERS, connect_all, open_loop, senders

WARM_UP_SHARE = 0.2
READINGS = 180


class Reconnects:
    """Cuts the clients off, one after the other, so many times a second; each connects again at once.

    Args:
        listeners: of the users, in the order of the ledgers; a client's next connection takes the place of its last.
    """

    def __init__(self, system: System, books: Books, listeners: list[Listener], per_s: float) -> None:
        self._system = system
        self._books = books
        self._listeners = listeners
        self._per_s = per_s
        self.count = 0

    async def run(self) -> None:
        """Until cancelled."""
        began = now_s()
        while self._per_s:
            user = self.count % len(self._listeners)
            self._listeners[user].drop()
            (self._listeners[user],), _ = await connect_all(self._system, self._books, [self._books.ledgers[user]])
            self.count += 1
            await asyncio.sleep(max(began + self.count / self._per_s - now_s(), 0))


async def measure(system: System, rate: int, seconds: float, phases: Phases, reconnects_per_s: float = 0) -> dict[str, Any]:
    books = Books(USERS)
    with phases.phase("connecting"):
        listeners, _ = await connect_all(system, books, books.ledgers)
    sending = await senders(system, books, PUBLISHERS)
    readings: list[tuple[float, int, dict[str, int]]] = []
    worst_ms = 0.0
    reconnects = Reconnects(system, books, listeners, reconnects_per_s)

    async def read() -> None:
        nonlocal worst_ms
        while True:
            readings.append((now_s() - began, books.received, system.processes.rss_bytes()))
            worst_ms = max(worst_ms, 1000 * max(books.latencies_s, default=0.0))
            books.latencies_s.clear()  # the generator must not grow either
            await asyncio.sleep(seconds / READINGS)

    measurement, began = await Measurement(system, books).begin(), now_s()
    with phases.phase(f"{rate} messages/s", seconds, lambda: now_s() - began):
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(read()), tasks.create_task(reconnects.run())]
            await open_loop(sending, books, rate, seconds)
            for task in running:
                task.cancel()
    figures = await measurement.end()
    for sender in sending:
        sender.close()
    for listener in listeners:
        listener.drop()
    figures.pop("latency_ms", None)  # of the last seconds only
    steady = [reading for reading in readings if reading[0] >= seconds * WARM_UP_SHARE]
    growth = {role: round(slope([(received, rss[role]) for _, received, rss in steady]), 2) for role in sorted(steady[-1][2])}
    every = max(1, len(readings) // 30)
    return {
        "bench": "soak",
        "system": system.name,
        "case": {"users": USERS, "rate": rate, "minutes": round(seconds / 60, 2), "reconnects_per_s": reconnects_per_s},
        "reconnects": reconnects.count,
        "growth_bytes_per_message": {**growth, "total": round(sum(growth.values()), 2)},
        "growth_mib_by_quarter": {role: by_quarter([rss[role] / (1 << 20) for _, _, rss in readings if role in rss]) for role in growth},
        "latency_max_ms": round(worst_ms, 2),
        "rss_mib_over_time": [
            {"s": round(at), **{role: round(size / (1 << 20), 1) for role, size in sorted(rss.items())}} for at, _, rss in readings[::every]
        ],
        **figures,
        "rss_mib": rss_mib(system.processes),
    }


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (default %(default)s)")
    parser.add_argument("--rate", type=int, default=2000, help="messages per second (default %(default)s)")
    parser.add_argument("--reconnects", type=float, default=20.0, help="clients cut off per second (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Start an engine, measure, stop it; one dictionary."""
    with engine() as running:
        yield uvloop.run(measure(running, args.rate, args.minutes * 60, args.phases, args.reconnects))
