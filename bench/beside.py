"""`python -m bench.beside`: messages to some users at a fixed rate, from a process of its own, and how long they take.

Whoever measures what broadcasts do to other messages must not be the one who receives the broadcasts: 2 000 frames pass through a
generator before what comes behind them. Reads a `Task` from standard input as JSON, prints `Latencies` as JSON. Times are of the machine's
monotonic clock, which all its processes share.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import chain
from pathlib import Path

import msgspec
import uvloop
from msgspec import Struct

from bench.books import Books, Data, Ledger, now_s
from bench.figures import latency_ms
from bench.server import Engine
from bench.system import Sender
from bench.workloads import connect_all, open_loop


class Task(Struct):
    """Users `first` to `first + users - 1` get `per_s` messages a second, for `seconds` from each of `starts` on (monotonic seconds)."""

    pid: int
    port: int
    first: int
    users: int
    per_s: float
    seconds: float
    starts: list[float]


class Latencies(Struct):
    """Of every message, in seconds, in a list for each start; and what was lost in all."""

    slices_s: list[list[float]]
    lost: int

    def figures_ms(self, first: int = 0, last: int | None = None) -> list[dict[str, float]]:
        """Of each slice from `first` on, up to `last`, which is not among them."""
        return [latency_ms(slice_s) for slice_s in self.slices_s[first:last]]

    def pooled_ms(self, first: int = 0, last: int | None = None) -> dict[str, float]:
        """Of all messages of these slices."""
        return latency_ms(chain.from_iterable(self.slices_s[first:last]))


class _Unicast(Books):
    """Of users who get messages of their own; the broadcasts, which come to them too, are not counted."""

    def take(self, ledger: Ledger, data: Data, now: float) -> None:
        """See `Books`."""
        if data.to >= 0:
            super().take(ledger, data, now)


async def measure(task: Task) -> Latencies:
    """Connect, then send at each of the starts."""
    system = Engine(task.pid, task.port, Path())
    books = _Unicast(task.first + task.users)
    listeners, _ = await connect_all(system, books, books.ledgers[task.first :])
    sender = Sender(await system.publisher(task.users), books, range(task.first, task.first + task.users))
    slices_s = []
    for start in task.starts:
        await asyncio.sleep(start - now_s())
        books.latencies_s.clear()
        await open_loop([sender], books, task.per_s, task.seconds)
        slices_s.append([round(latency_s, 5) for latency_s in books.latencies_s])
    for listener in listeners:
        listener.drop()
    return Latencies(slices_s, books.sent - books.received)


async def measure_elsewhere(task: Task) -> Latencies:
    """As `measure`, in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.beside", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate(msgspec.json.encode(task))
    if process.returncode:
        raise RuntimeError(f"the messages beside ended with {process.returncode}")
    return msgspec.json.decode(output, type=Latencies)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(measure(msgspec.json.decode(sys.stdin.buffer.read(), type=Task)))))
