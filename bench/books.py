"""What was sent and what arrived: every message once, never, twice or out of order, and how long it took.

A payload carries whom it is for, its number among that user's messages and when it was meant to be sent. So the books need
nothing of the system under test: no identifiers of its own, no clock but the generator's, and they are the same for all systems.

Latency counts from the moment a message was meant to be sent, not from when the generator got round to it, so a stalled server
cannot hide behind a stalled generator.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
from picows import WSListener, WSTransport

now_s = time.monotonic


class Data(msgspec.Struct):
    """The payload, about 150 bytes of JSON. `due` is in seconds of the books' clock; `to` is -1 in a broadcast."""

    to: int
    n: int
    due: float
    amount: str = "129.90"
    currency: str = "EUR"
    note: str = "paid by card, thank you for your order"


class Ledger:
    """One user's side of the books; it outlives the user's connections, as a client's memory does."""

    __slots__ = ("missing", "newest", "position", "user")

    def __init__(self, user: int) -> None:
        self.user = user
        self.newest = 0  # the highest number that arrived
        self.missing: set[int] = set()  # lower ones that have not
        self.position = ""  # what the system wants to hear from a client that returns


class Books:
    """All users together.

    Args:
        users: how many; they are numbered from 0.
        clock: seconds; of the machine's monotonic clock unless dues are wall-clock times.
    """

    def __init__(self, users: int, clock: Callable[[], float] = now_s) -> None:
        self.clock = clock
        self.ledgers = [Ledger(user) for user in range(users)]
        self.received = self.repeated = self.out_of_order = self.disconnects = self.refused = 0
        self.sent = self.bytes_published = self.bytes_delivered = 0
        self.latencies_s: list[float] = []
        self.last_s = 0.0
        self._numbers = [0] * users
        self._target = 0
        self._reached: asyncio.Future[None] | None = None

    def write(self, user: int, due: float) -> Data:
        """The user's next message."""
        self._numbers[user] = n = self._numbers[user] + 1
        self.sent += 1
        return Data(user, n, due)

    def write_broadcast(self, due: float) -> Data:
        """Everybody's next message; all users must have been sent the same number of messages before."""
        self._numbers = [n + 1 for n in self._numbers]
        self.sent += len(self._numbers)
        return Data(-1, self._numbers[0], due)

    def take(self, ledger: Ledger, data: Data, now: float) -> None:
        """A message arrived at a client."""
        n = data.n
        if n == ledger.newest + 1:
            ledger.newest = n
        elif n > ledger.newest:
            ledger.missing.update(range(ledger.newest + 1, n))
            ledger.newest = n
        elif n in ledger.missing:
            ledger.missing.discard(n)
            self.out_of_order += 1
        else:
            self.repeated += 1
            return
        self.latencies_s.append(now - data.due)
        self.last_s = now
        self.received += 1
        if self._reached is not None and self.received >= self._target and not self._reached.done():
            self._reached.set_result(None)

    async def reach(self, target: int, patience_s: float = 10.0) -> bool:
        """Wait until `target` messages have arrived; False when nothing has for `patience_s`."""
        while self.received < target:
            before = self.received
            self._target, self._reached = target, asyncio.get_running_loop().create_future()
            done, _ = await asyncio.wait({self._reached}, timeout=patience_s)
            if not done and self.received == before:
                return False
        return True


class Listener(WSListener):
    """One connection of one user. A system's own listener reads its frames, acknowledges, and enters messages in the books."""

    def __init__(self, books: Books, ledger: Ledger) -> None:
        self.books = books
        self.ledger = ledger
        self.transport: WSTransport | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # the system has said that it listens
        self._leaving = False

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if not self.ready.done():
            self.ready.set_exception(ConnectionError("closed before it was ready"))
            self.ready.exception()  # whoever waits hears it too
        elif not self._leaving:
            self.books.disconnects += 1

    def drop(self) -> None:
        """Cut the connection without a closing handshake."""
        self._leaving = True
        if self.transport is not None:
            self.transport.underlying_transport.abort()
