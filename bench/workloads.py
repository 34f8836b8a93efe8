"""What is done to a system: connecting, full load, an open loop. The same for the engine and its peers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from picows import WSError

from bench.books import Books, Ledger, Listener, now_s
from bench.system import Publisher, Sender, System

WINDOW: Final = 1000
"""Messages undelivered at most, at full load."""

BATCH: Final = 250
"""Messages per publish request, at most."""

PUBLISHERS: Final = 4
"""Connections of an open loop: a request that waits for its answer must not hold up the next."""

_CONNECTING_AT_ONCE: Final = 50
_CONNECT_TRIES_S: Final = 120.0
_CONNECT_PAUSE_S: Final = 0.25
_PATIENCE_S: Final = 5.0  # without any arrival; then what is missing is lost


async def connect_all(
    system: System, books: Books, ledgers: Sequence[Ledger], at_once: int = _CONNECTING_AT_ONCE
) -> tuple[list[Listener], int]:
    """A ready connection for each ledger, and how many attempts failed and were made again.

    Raises:
        WSError, OSError, TimeoutError: one could not be made for two minutes.
    """
    gate = asyncio.Semaphore(at_once)
    give_up_s = now_s() + _CONNECT_TRIES_S
    failed = 0

    async def one(ledger: Ledger) -> Listener:
        nonlocal failed
        async with gate:
            while True:
                try:
                    return await system.connect(books, ledger)
                except (WSError, OSError, TimeoutError):  # refused, or reset: a client comes again
                    failed += 1
                    if now_s() > give_up_s:
                        raise
                    await asyncio.sleep(_CONNECT_PAUSE_S)

    return await asyncio.gather(*map(one, ledgers)), failed


async def senders(system: System, books: Books, count: int) -> list[Sender]:
    """So many publishers, each with its share of the users."""
    users = range(len(books.ledgers))
    publishers: list[Publisher] = [await system.publisher(len(users)) for _ in range(count)]
    return [Sender(publisher, books, users[n::count]) for n, publisher in enumerate(publishers)]


class _Requests:
    """The requests under way, one of each sender; leaving the block waits for all."""

    def __init__(self, sending: Sequence[Sender]) -> None:
        self._free: asyncio.Queue[Sender] = asyncio.Queue()
        for sender in sending:
            self._free.put_nowait(sender)
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> _Requests:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._group.__aexit__(*error)

    async def free(self) -> Sender:
        """A sender without a request."""
        return await self._free.get()

    def send(self, sender: Sender, dues_s: list[float]) -> None:
        """Let it send one, and be free afterwards."""
        self._group.create_task(self._send(sender, dues_s))

    async def _send(self, sender: Sender, dues_s: list[float]) -> None:
        try:
            await sender.send(dues_s)
        finally:
            self._free.put_nowait(sender)


async def full_load(sending: Sequence[Sender], books: Books, messages: int, window: int = WINDOW, batch: int = BATCH) -> None:
    """Publish so many with at most `window` undelivered, one request of each sender at a time, of `batch` messages at most. What does not
    arrive for a while is given up, and counts as lost."""
    written_off, end = books.sent - books.received, books.sent + messages
    async with _Requests(sending) as requests:
        while books.sent < end:
            sender = await requests.free()
            take = min(batch, end - books.sent)
            target = books.sent + take - window - written_off
            if not await books.reach(target, _PATIENCE_S):
                written_off += target - books.received
            requests.send(sender, [books.clock()] * take)
            await asyncio.sleep(0)  # it writes them into the books
    await books.reach(books.sent - written_off, _PATIENCE_S)


async def open_loop(sending: Sequence[Sender], books: Books, rate: float, seconds: float) -> None:
    """Publish at a fixed rate whatever comes back, then wait for what is on its way. Due times are those of the rate."""
    missing, total, sent = books.sent - books.received, int(rate * seconds), 0
    start = now_s()
    async with _Requests(sending) as requests:
        while sent < total:
            if min(int((now_s() - start) * rate) + 1, total) > sent:
                sender = await requests.free()
                due = min(int((now_s() - start) * rate) + 1, total, sent + BATCH)
                requests.send(sender, [start + n / rate for n in range(sent, due)])
                sent = due
            await asyncio.sleep(0 if (now_s() - start) * rate > sent + BATCH else 0.001)
    await books.reach(books.sent - missing, _PATIENCE_S)
