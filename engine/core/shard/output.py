"""The output of a shard core to its shell, and its counters: one object that all parts of the core share.

The shell drains `to_edges` and `to_schedulers` after every event it feeds the core (`engine.actors.shard.Shard._flush`), and writes
`session_events` in a task of their own. Only the core appends; only the shell clears.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from msgspec import Struct

from engine.core.mailbox.mailbox import Mailbox, Settlement

COUNTERS: Final = (
    "published",
    "delivered",
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

_EXACT_MS: Final = 256
"""Times below it are counted for each millisecond: an index costs a third of a bisection, and nearly every message needs two or three."""


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


class Latencies:
    """How many messages took how long.

    Attributes:
        exact: the number of messages for each whole millisecond below `_EXACT_MS`; where many are counted, their owner counts here.
    """

    __slots__ = ("_other", "_other_ms", "exact")

    def __init__(self) -> None:
        self.exact = [0] * _EXACT_MS
        self._other = [0] * (len(LATENCY_BUCKETS_MS) + 1)
        self._other_ms = 0

    def add_other(self, ms: int) -> None:
        """Count a time that has no place in `exact`; a negative one, after the clock was set back, as 0 ms."""
        self._other[bisect_left(LATENCY_BUCKETS_MS, ms)] += 1
        self._other_ms += max(ms, 0)

    def buckets(self) -> list[int]:
        """One number for each of `LATENCY_BUCKETS_MS`, and one for everything slower."""
        counts = list(self._other)
        for ms, count in enumerate(self.exact):
            counts[bisect_left(LATENCY_BUCKETS_MS, ms)] += count
        return counts

    @property
    def count(self) -> int:
        """The number of messages."""
        return sum(self.exact) + sum(self._other)

    @property
    def sum_ms(self) -> int:
        """All times together; never shrinks."""
        return self._other_ms + sum(ms * count for ms, count in enumerate(self.exact))


class ShardOutput:
    """The output and counters of one shard; see the module's text.

    Attributes:
        to_edges: (link session, record), in the order in which they are sent.
        to_schedulers: (timer partition, record), in the order in which they are sent.
        session_events: connects, disconnects and changes of presence, oldest first.
        counters: one number for each name in `COUNTERS`.
        latency: from acceptance to ACK, of all that were acknowledged. It includes the time in which a user was offline.
        send_latency: from acceptance to the first send, on connections that were open at the acceptance.
        ack_latency: from the first send on a connection to the ACK by that connection.
    """

    __slots__ = (
        "_taken_events",
        "ack_latency",
        "counters",
        "latency",
        "send_latency",
        "session_events",
        "to_edges",
        "to_schedulers",
    )

    def __init__(self) -> None:
        self.to_edges: list[tuple[str, Struct]] = []
        self.to_schedulers: list[tuple[int, Struct]] = []
        self.session_events: deque[SessionEvent] = deque(maxlen=SESSION_EVENTS_MAX)
        self._taken_events: list[SessionEvent] = []
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.latency, self.send_latency, self.ack_latency = Latencies(), Latencies(), Latencies()

    def take_session_events(self, count_max: int) -> list[SessionEvent]:
        """Remove and return up to `count_max` of the oldest session events, to be written before more are taken; pass them to
        `return_session_events` if the write fails."""
        events = self.session_events
        self._taken_events = [events.popleft() for _ in range(min(count_max, len(events)))]
        return self._taken_events

    def told_of(self) -> Iterable[str]:
        """Keys of the users of session events that may not be written yet."""
        return (event.key for event in chain(self._taken_events, self.session_events))

    def return_session_events(self, taken: Sequence[SessionEvent]) -> None:
        """Put back events that were not written, as the oldest. Those above `SESSION_EVENTS_MAX` are dropped, oldest first."""
        room = SESSION_EVENTS_MAX - len(self.session_events)
        self.session_events.extendleft(reversed(taken[max(len(taken) - room, 0) :]))

    def acknowledged(self, settled: Settlement, now_ms: int) -> None:
        """Count acknowledged messages by the times since their acceptance and since they were first sent."""
        latency, ack_latency = self.latency.exact, self.ack_latency.exact
        for accepted_ms, sent_ms in settled.times:
            ms = now_ms - accepted_ms
            if 0 <= ms < _EXACT_MS:
                latency[ms] += 1
            else:
                self.latency.add_other(ms)
            if sent_ms:
                ms = now_ms - sent_ms
                if 0 <= ms < _EXACT_MS:
                    ack_latency[ms] += 1
                else:
                    self.ack_latency.add_other(ms)

    def sent(self, mailbox: Mailbox, messages: Sequence[tuple[int, int, bytes]], open_since_ms: int, now_ms: int) -> None:
        """Count messages of the mailbox, (sequence number, attempt, body), that are sent for the first time on a connection.

        Their time from acceptance until now counts if the connection was open then: otherwise it would be the time offline.
        """
        self.counters["delivered"] += len(messages)
        hot, send_latency = mailbox.hot, self.send_latency.exact
        for seq, attempt, _ in messages:
            accepted_ms = hot[seq].accepted_ms
            if attempt == 1 and open_since_ms <= accepted_ms:
                ms = now_ms - accepted_ms
                if 0 <= ms < _EXACT_MS:
                    send_latency[ms] += 1
                else:
                    self.send_latency.add_other(ms)

    def histograms(self) -> dict[str, list[list[int]] | int]:
        """Return the latencies for `stats`: [upper bound in ms, count] in growing order; the last bound is -1, for everything slower.

        And their sums, each named like its histogram with `_sum_ms`.
        """
        bounds = (*LATENCY_BUCKETS_MS, -1)
        named = {"latency": self.latency, "send_latency": self.send_latency, "ack_latency": self.ack_latency}
        counts = {name: [[bound, count] for bound, count in zip(bounds, times.buckets(), strict=True)] for name, times in named.items()}
        return counts | {f"{name}_sum_ms": times.sum_ms for name, times in named.items()}
