"""What a shard core hands to its shell, and what it counts: one object that each part of the core gets.

The shell drains `to_edges` and `to_schedulers` after every event it feeds the core (`engine.actors.shard.Shard._flush`), and writes
`session_events` when storage has time for them. Only the core appends; only the shell clears.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from engine.core.model.message import Message

COUNTERS: Final = (
    "published",
    "delivered",
    "acknowledged",
    "retried",
    "stalled",
    "dead_lettered",
    "expired",
    "trimmed",
    "duplicates",
    "adopted",
    "conflated",
    "merged",
    "windows_closed",
    "suppressed",
    "deferred",
    "digested",
    "postponed",
    "refused_high",
    "refused_normal",
    "refused_low",
    "commits",
)
"""What a shard counts since its start."""

LATENCY_BUCKETS_MS: Final = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000, 10_000, 60_000)
"""Upper bounds of the accept-to-ACK histogram; the last bucket is everything slower."""


class SessionEvent(Struct):
    """A connection began or ended, for `session:stream`."""

    event: str  # connect | disconnect
    key: str
    session: str
    device: str
    edge: str
    transport: int
    at_ms: int
    code: int


class ShardOutput:
    """See the module's text.

    Attributes:
        to_edges: (link session, record), in the order in which they are sent.
        to_schedulers: (timer partition, record), likewise.
        session_events: connects and disconnects, oldest first.
        counters: one number for each name in `COUNTERS`.
        latency: the accept-to-ACK histogram, one number for each bucket.
    """

    __slots__ = ("counters", "latency", "session_events", "to_edges", "to_schedulers")

    def __init__(self) -> None:
        self.to_edges: list[tuple[str, Struct]] = []
        self.to_schedulers: list[tuple[int, Struct]] = []
        self.session_events: list[SessionEvent] = []
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.latency = [0] * (len(LATENCY_BUCKETS_MS) + 1)

    def acknowledged(self, messages: Iterable[Message], now_ms: int) -> None:
        """Count acknowledged messages, and the time from their acceptance until now."""
        latency = self.latency
        count = 0
        for message in messages:
            latency[bisect_left(LATENCY_BUCKETS_MS, now_ms - message.accepted_ms)] += 1
            count += 1
        self.counters["acknowledged"] += count
