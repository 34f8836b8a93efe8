"""The output of a shard core to its shell, and its counters: one object that all parts of the core share.

The shell drains `to_edges` and `to_schedulers` after every event it feeds the core (`engine.actors.shard.Shard._flush`), and writes
`session_events` in a task of their own. Only the core appends; only the shell clears.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from engine.core.mailbox.mailbox import Mailbox, Settlement

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
    "refused_questions",
    "commits",
)
"""Names of the counters of a shard; each counts from its start."""

LATENCY_BUCKETS_MS: Final = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000, 10_000, 60_000)
"""Upper bounds of the latency histograms; one more bucket counts everything slower."""

_BUCKET_OF: Final = bytes(bisect_left(LATENCY_BUCKETS_MS, ms) for ms in range(256))
"""The bucket of each time below 256 ms: an index costs a third of a bisection, and nearly every message needs two or three."""


SESSION_EVENTS_MAX: Final = 100_000
"""Session events held while storage is unavailable, about 30 MB. Beyond it the oldest are dropped: their delivery is not guaranteed."""


class SessionEvent(Struct):
    """The start or end of a connection, or a change of its user's presence, for `session:stream`.

    `online`: the user came online (true) or is offline by this event (false), and a successor of the shard has to know; else None.
    """

    event: str  # connect | disconnect | suspect | back | offline
    key: str
    session: str
    device: str
    edge: str
    transport: int
    at_ms: int
    code: int
    online: bool | None = None


class ShardOutput:
    """The output and counters of one shard; see the module's text.

    Attributes:
        to_edges: (link session, record), in the order in which they are sent.
        to_schedulers: (timer partition, record), in the order in which they are sent.
        session_events: connects, disconnects and changes of presence, oldest first.
        counters: one number for each name in `COUNTERS`.
        latency: histogram of acceptance to ACK, one number for each bucket. It includes the time in which a user was offline.
        send_latency: of acceptance to the first send, on connections that were open at the acceptance.
        ack_latency: of the first send on a connection to the ACK by that connection.
        latency_sum_ms, send_latency_sum_ms, ack_latency_sum_ms: of the times that each counts; none shrinks when the clock is set back.
    """

    __slots__ = (
        "ack_latency",
        "ack_latency_sum_ms",
        "counters",
        "latency",
        "latency_sum_ms",
        "send_latency",
        "send_latency_sum_ms",
        "session_events",
        "to_edges",
        "to_schedulers",
    )

    def __init__(self) -> None:
        self.to_edges: list[tuple[str, Struct]] = []
        self.to_schedulers: list[tuple[int, Struct]] = []
        self.session_events: deque[SessionEvent] = deque(maxlen=SESSION_EVENTS_MAX)
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.latency, self.send_latency, self.ack_latency = ([0] * (len(LATENCY_BUCKETS_MS) + 1) for _ in range(3))
        self.latency_sum_ms = self.send_latency_sum_ms = self.ack_latency_sum_ms = 0

    def take_session_events(self, count_max: int) -> list[SessionEvent]:
        """Remove and return up to `count_max` of the oldest session events; pass them to `return_session_events` if the write fails."""
        events = self.session_events
        return [events.popleft() for _ in range(min(count_max, len(events)))]

    def return_session_events(self, taken: Sequence[SessionEvent]) -> None:
        """Put back events that were not written, as the oldest. Those above `SESSION_EVENTS_MAX` are dropped, oldest first."""
        room = SESSION_EVENTS_MAX - len(self.session_events)
        self.session_events.extendleft(reversed(taken[max(len(taken) - room, 0) :]))

    def acknowledged(self, settled: Settlement, now_ms: int) -> None:
        """Count acknowledged messages, and the times since their acceptance and since they were first sent."""
        latency, ack_latency = self.latency, self.ack_latency
        latency_sum_ms = ack_latency_sum_ms = 0
        for message in settled.messages:
            ms = now_ms - message.accepted_ms
            latency[_BUCKET_OF[ms] if 0 <= ms < 256 else bisect_left(LATENCY_BUCKETS_MS, ms)] += 1
            latency_sum_ms += ms
        for sent_ms in settled.sent_ms:
            ms = now_ms - sent_ms
            ack_latency[_BUCKET_OF[ms] if 0 <= ms < 256 else bisect_left(LATENCY_BUCKETS_MS, ms)] += 1
            ack_latency_sum_ms += ms
        if latency_sum_ms > 0:
            self.latency_sum_ms += latency_sum_ms
        if ack_latency_sum_ms > 0:
            self.ack_latency_sum_ms += ack_latency_sum_ms
        self.counters["acknowledged"] += len(settled.messages)

    def sent(self, mailbox: Mailbox, messages: Sequence[tuple[int, int, bytes]], open_since_ms: int, now_ms: int) -> None:
        """Count messages of the mailbox, (sequence number, attempt, body), that are sent for the first time on a connection.

        Their time from acceptance until now counts if the connection was open then: otherwise it would be the time offline.
        """
        self.counters["delivered"] += len(messages)
        hot, send_latency, sum_ms = mailbox.hot, self.send_latency, 0
        for seq, attempt, _ in messages:
            accepted_ms = hot[seq].accepted_ms
            if attempt == 1 and open_since_ms <= accepted_ms:
                ms = now_ms - accepted_ms
                send_latency[_BUCKET_OF[ms] if 0 <= ms < 256 else bisect_left(LATENCY_BUCKETS_MS, ms)] += 1
                sum_ms += ms
        if sum_ms > 0:
            self.send_latency_sum_ms += sum_ms

    def histograms(self) -> dict[str, list[list[int]] | int]:
        """Return the latencies for `stats`: [upper bound in ms, count] in growing order; the last bound is -1, for everything slower.

        And their sums, each named like its histogram with `_sum_ms`.
        """
        bounds = (*LATENCY_BUCKETS_MS, -1)
        named = {"latency": self.latency, "send_latency": self.send_latency, "ack_latency": self.ack_latency}
        sums_ms = {f"{name}_sum_ms": getattr(self, f"{name}_sum_ms") for name in named}
        return {name: [[bound, count] for bound, count in zip(bounds, counts, strict=True)] for name, counts in named.items()} | sums_ms
