"""What a workload sees of a system under test, and what a measurement reads of it."""

from __future__ import annotations

import asyncio
import resource
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from bench.books import Books, Data, Ledger, Listener, now_s
from bench.figures import latency_ms
from bench.processes import CpuMeter, Processes

SETTLE_S = 0.5
"""The last ACKs reach the server; their cost belongs to the messages."""

REFUSED_S_MAX = 30.0
"""A publisher that is refused for this long gives up."""


class Refused(Exception):
    """Nothing of a request was taken."""

    def __init__(self, detail: str, retry_after_s: float | None) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s  # None: repeating it will not help


class Publisher(ABC):
    """One publisher's connection; one request at a time."""

    @abstractmethod
    async def publish(self, messages: Sequence[Data]) -> int:
        """Send messages to their users; returns the bytes sent, once the system has taken them.

        Raises:
            Refused: it took none of them.
        """

    @abstractmethod
    async def broadcast(self, data: Data) -> int:
        """Send one message to every connected user; as `publish`."""

    @abstractmethod
    def close(self) -> None: ...


class System(ABC):
    """A running system: the engine, or a peer."""

    name: str
    acknowledges: str  # how clients acknowledge
    recovers: str  # how a returning client gets what it missed; empty: it does not

    @property
    @abstractmethod
    def processes(self) -> Processes:
        """Everything that serves: the system, its workers, its storage. Not the generator, not the publishers."""

    @abstractmethod
    async def connect(self, books: Books, ledger: Ledger) -> Listener:
        """A connection of the ledger's user, ready to receive; says `ledger.position` when there is one."""

    @abstractmethod
    async def publisher(self, users: int) -> Publisher:
        """A publisher to so many users."""

    async def counters(self) -> Mapping[str, int]:
        """What the system counts itself, ever growing: `exchanges`, `redis_commands`, `redis_bytes`; none by default."""
        return {}

    async def digested(self) -> None:
        """Returns when what was published is stored or delivered; at once where a publisher is only answered then."""
        return


class Sender:
    """A publisher and the users it writes to, in turn. Every user has one sender, so that its messages keep their order."""

    def __init__(self, publisher: Publisher, books: Books, users: Sequence[int]) -> None:
        self._publisher = publisher
        self._books = books
        self._users = users
        self._turn = 0

    async def send(self, dues_s: Sequence[float]) -> None:
        """One request with a message per due time; a refused one is repeated as the system asks, as a good publisher does.

        Raises:
            Refused: for `REFUSED_S_MAX` on end, or for good.
        """
        messages = []
        for due in dues_s:
            messages.append(self._books.write(self._users[self._turn], due))
            self._turn = (self._turn + 1) % len(self._users)
        patient_until = now_s() + REFUSED_S_MAX
        while True:
            try:
                size = await self._publisher.publish(messages)
            except Refused as refused:
                if refused.retry_after_s is None or now_s() > patient_until:
                    raise
                self._books.refused += len(messages)
                await asyncio.sleep(refused.retry_after_s)
            else:
                self._books.bytes_published += size
                return

    def close(self) -> None:
        self._publisher.close()


class Measurement:
    """From `begin` to `end`: what some messages cost, whom, and how they fared."""

    def __init__(self, system: System, books: Books) -> None:
        self._system = system
        self._books = books

    async def begin(self) -> Measurement:
        """Read everything once. Latencies in the books are forgotten."""
        books = self._books
        books.latencies_s.clear()
        self._counts = await self._system.counters()
        self._marks = (books.sent, books.received, books.repeated, books.out_of_order, books.disconnects, books.refused)
        self._bytes = books.bytes_published, books.bytes_delivered
        self._began_s = books.last_s = now_s()
        self._own = _own_cpu_s()
        self._cpu = CpuMeter(self._system.processes)
        return self

    async def end(self) -> dict[str, Any]:
        """Let the last ACKs arrive, and read everything again. Rates are over the whole measurement, quantiles from the intended time."""
        books, took_s = self._books, max(self._books.last_s - self._began_s, 1e-9)
        await asyncio.sleep(SETTLE_S)
        spent, own = self._cpu.spent_s(), _own_cpu_s() - self._own
        whole_s = now_s() - self._began_s
        counts = await self._system.counters()
        names = "sent", "received", "repeated", "out_of_order", "disconnects", "refused"
        now = books.sent, books.received, books.repeated, books.out_of_order, books.disconnects, books.refused
        counted = {name: after - before for name, after, before in zip(names, now, self._marks, strict=True)}
        messages = counted.pop("received")
        sent = counted.pop("sent")
        result: dict[str, Any] = {
            "messages": messages,
            "lost": sent - messages,
            **counted,
            "per_s": round(messages / took_s),
            "cpu_us_per_message": per_message_us(spent, messages),
            "generator_cpu_us_per_message": round(own * 1e6 / max(messages, 1), 1),
            "rss_mib": rss_mib(self._system.processes),
            "bytes_per_message": {
                "published": round((books.bytes_published - self._bytes[0]) / max(messages, 1)),
                "delivered": round((books.bytes_delivered - self._bytes[1]) / max(messages, 1)),
            },
            **{f"{name}_per_s": round((counts[name] - self._counts.get(name, 0)) / whole_s, 1) for name in counts},
        }
        if latencies := latency_ms(books.latencies_s):
            result["latency_ms"] = latencies
        return result


def per_message_us(spent_s: Mapping[str, float], messages: int) -> dict[str, float]:
    """Microseconds of CPU per message by role, and `total`."""
    shares = {role: round(seconds * 1e6 / max(messages, 1), 1) for role, seconds in spent_s.items()}
    return {**shares, "total": round(sum(spent_s.values()) * 1e6 / max(messages, 1), 1)}


def rss_mib(processes: Processes) -> dict[str, float]:
    """Resident memory by role, and `total`."""
    held = {role: round(size / (1 << 20), 1) for role, size in sorted(processes.rss_bytes().items())}
    return {**held, "total": round(sum(held.values()), 1)}


def _own_cpu_s() -> float:
    """Of the generator; where publishers are processes of their own, theirs is not in it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
