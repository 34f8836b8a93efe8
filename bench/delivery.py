"""Delivery: acknowledged, durable messages to connected users at full load, and latency at fixed rates.

500 users with one WebSocket each, messages round robin, at most 1 000 undelivered; then an open loop at each rate. What it
leaves out: TLS, networks, clients slower than the server; generator and engine share the machine.
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from bench.load import Books, Publisher, connect_all, now_s
from bench.processes import Meter
from bench.server import Engine, engine

USERS = 500
WINDOW = 1000
BATCH = 250
SETTLE_S = 0.5  # the last ACKs reach the shards


def quantile_ms(samples_s: list[float], q: float) -> float:
    ordered = sorted(samples_s)
    return round(ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1000, 2) if ordered else 0.0


async def full_load(publisher: Publisher, books: Books, messages: int) -> None:
    """Publish with at most WINDOW undelivered."""
    base, end = books.received - publisher.sent, publisher.sent + messages
    while publisher.sent < end:
        take = min(BATCH, end - publisher.sent)
        if not await books.reach(base + publisher.sent + take - WINDOW):
            break
        await publisher.publish([now_s()] * take)
    await books.reach(base + publisher.sent)


async def open_loop(publishers: list[Publisher], books: Books, rate: int, seconds: float) -> int:
    """Publish at a fixed rate whatever comes back; returns how many were sent. Latency counts from the intended time."""
    start = now_s()
    free: asyncio.Queue[Publisher] = asyncio.Queue()
    for publisher in publishers:
        free.put_nowait(publisher)
    tasks: set[asyncio.Task[None]] = set()
    total, sent = int(rate * seconds), 0

    async def send(publisher: Publisher, dues: list[float]) -> None:
        try:
            await publisher.publish(dues)
        finally:
            free.put_nowait(publisher)

    while sent < total:
        due = min(int((now_s() - start) * rate) + 1, total) - sent
        if due > 0:
            publisher = await free.get()
            due = min(int((now_s() - start) * rate) + 1, total) - sent
            for first in range(sent, sent + due, BATCH):
                count = min(BATCH, sent + due - first)
                task = asyncio.ensure_future(send(publisher, [start + (first + k) / rate for k in range(count)]))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                if first + count < sent + due:
                    publisher = await free.get()
            sent += due
        await asyncio.sleep(0.001)
    while tasks:
        await asyncio.wait(tasks)
    return total


async def measure(running: Engine, messages: int, rates: list[int], seconds: float) -> list[dict[str, Any]]:
    users = [f"u{n}" for n in range(USERS)]
    books = Books()
    clients = await connect_all(books, running.port, users, running.token)
    # One publisher per share of the users keeps every user's messages in order.
    shares = [users[n::4] for n in range(4)]
    publisher = await Publisher(users, running.token("bench", "publish")).open(running.port)
    await full_load(publisher, books, 2000)
    await asyncio.sleep(SETTLE_S)

    results = []
    meter, before, started = Meter(running.pid), books.received, now_s()
    books.last_s = started
    await full_load(publisher, books, messages)
    took = books.last_s - started
    await asyncio.sleep(SETTLE_S)
    results.append(_line("delivery", books, books.received - before, messages, meter) | {"per_s": round(messages / took)})
    publisher.close()

    publishers = [await Publisher(share, running.token("bench", "publish")).open(running.port) for share in shares]
    for rate in rates:
        books.latencies_s.clear()
        meter, before = Meter(running.pid), books.received
        sent = await open_loop(publishers, books, rate, seconds)
        await books.reach(before + sent, 5.0)
        await asyncio.sleep(SETTLE_S)
        line = _line("latency", books, books.received - before, sent, meter)
        results.append(
            line
            | {
                "rate": rate,
                **{name: quantile_ms(books.latencies_s, q) for name, q in (("p50_ms", 0.5), ("p99_ms", 0.99), ("max_ms", 1.0))},
            }
        )
    for each in publishers:
        each.close()
    for client in clients:
        client.drop()
    return results


def _line(name: str, books: Books, received: int, sent: int, meter: Meter) -> dict[str, Any]:
    return {
        "bench": name,
        "users": USERS,
        "messages": received,
        "lost": sent - received,
        "repeated": books.repeated,
        "out_of_order": books.out_of_order,
        "disconnects": books.disconnects,
        "cpu_us_per_message": meter.per_message_us(received),
    }


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=50_000, help="messages at full load (default %(default)s)")
    parser.add_argument("--rates", default="500,2000,5000,10000", help="messages per second for the latency runs (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each latency run (default %(default)s)")
    parser.add_argument("--shards", type=int, default=1, help="shards (default %(default)s)")
    parser.add_argument("--edges", type=int, default=1, help="edges (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Start an engine, measure, stop it; one dictionary per result."""
    import uvloop

    rates = [int(rate) for rate in args.rates.split(",") if rate]
    with engine(shards=args.shards, edges=args.edges) as running:
        yield from uvloop.run(measure(running, args.messages, rates, args.seconds))
