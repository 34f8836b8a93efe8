"""The output of a shard core to its shell, and its counters: one object that all parts of the core share.

The shell drains `to_edges` and `to_schedulers` after every event it feeds the core (`engine.actors.shard.Shard._flush`), and writes
`session_events` and `outcomes` in tasks of their own. Only the core appends; only the shell clears.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final

from msgspec import Struct

from engine.core.mailbox.attachment import Attachment
from engine.core.mailbox.mailbox import Mailbox, Settlement
from engine.core.model.bounded_names import BoundedNames
from engine.core.model.message import TIMER_EFFECT, Message
from engine.core.model.routing import slot_of
from engine.core.model.trace_context import TRACE_BYTES, sampled_trace_id
from engine.core.wire.outcomes import AcknowledgedOutcome, Outcome, OutcomeLog, SentOutcome, client_times

COUNTERS: Final = (
    "published",
    "delivered",
    "retried",
    "exhausted",
    "dead_lettered",
    "expired",
    "trimmed",
    "duplicates",
    "adopted",
    "conflated",
    "suppressed",
    "deferred",
    "digested",
    "inboxed",
    "step_skipped",
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

_EXACT_BUCKETS: Final = tuple(pairwise([0, *(bound + 1 for bound in LATENCY_BUCKETS_MS if bound + 1 < _EXACT_MS), _EXACT_MS]))
"""Of each bucket that has such times: the first of them, and the one after the last."""

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


Seen = tuple[str, bytes, int]
"""A message that was counted: its id, the beginning of its body, which tells its trace, and when, ms since the epoch."""


class Latencies:
    """How many messages took how long, and for each time one of them as an exemplar.

    Attributes:
        exact: the number of messages for each whole millisecond below `_EXACT_MS`; where many are counted, their owner counts here.
        seen: the last message of each of these times, None before the first, likewise.
    """

    __slots__ = ("_other", "_other_ms", "_other_seen", "exact", "seen")

    def __init__(self) -> None:
        self.seen: list[Seen | None] = [None] * _EXACT_MS
        self._other_seen: list[tuple[Seen, int] | None] = [None] * (len(LATENCY_BUCKETS_MS) + 1)
        self.exact = [0] * _EXACT_MS
        self._other = [0] * (len(LATENCY_BUCKETS_MS) + 1)
        self._other_ms = 0

    def add_other(self, ms: int, seen: Seen | None = None) -> None:
        """Count a time that has no place in `exact`; a negative one, after the clock was set back, as 0 ms."""
        bucket, ms = bisect_left(LATENCY_BUCKETS_MS, ms), max(ms, 0)
        self._other[bucket] += 1
        self._other_ms += ms
        if seen is not None:
            self._other_seen[bucket] = seen, ms

    def add(self, ms: int) -> None:
        """Count a time."""
        if 0 <= ms < _EXACT_MS:
            self.exact[ms] += 1
        else:
            self.add_other(ms)

    def buckets(self) -> list[int]:
        """One number for each of `LATENCY_BUCKETS_MS`, and one for everything slower."""
        counts = list(self._other)
        for bucket, (first, end) in enumerate(_EXACT_BUCKETS):
            counts[bucket] += sum(self.exact[first:end])
        return counts

    def exemplars(self) -> list[Exemplar]:
        """The newest message of each bucket that has one."""
        newest: dict[int, Exemplar] = {}
        found = [(seen, ms) for ms, seen in enumerate(self.seen) if seen is not None]
        for (id, beginning, at_ms), ms in [*found, *filter(None, self._other_seen)]:
            bucket = bisect_left(LATENCY_BUCKETS_MS, ms)
            if bucket not in newest or newest[bucket][3] <= at_ms:
                newest[bucket] = bucket, id, ms, at_ms, sampled_trace_id(beginning)
        return list(newest.values())

    @property
    def count(self) -> int:
        """The number of messages."""
        return sum(self.exact) + sum(self._other)

    @property
    def sum_ms(self) -> int:
        """All times together; never shrinks."""
        return self._other_ms + sum(map(int.__mul__, self.exact, range(_EXACT_MS)))


Exemplar = tuple[int, str, int, int, str]
"""A message of a bucket: the bucket, its id, how long it took in ms, when in ms since the epoch, its trace, "" for none."""

Place = tuple[str, str, int, str]
"""Where an outcome happened: session, device, transport and node of a connection."""

NOWHERE: Final[Place] = ("", "", -1, "")


def place_of(connection: Attachment) -> Place:
    """The connection, as outcomes name it."""
    return connection.session, connection.device, connection.kind, connection.conn[0].partition("/")[0]


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
        read_latency: from there to the time that the client gave with its ACK.
        clock_skew: by how much the clocks of clients are wrong at least, of all ACKs with a time (`engine.core.wire.outcomes`).
        outcomes: for the history; None: there is none.
    """

    def __init__(self, outcomes: OutcomeLog | None = None) -> None:
        self.outcomes = outcomes
        self.to_edges: list[tuple[str, Struct]] = []
        self.to_schedulers: list[tuple[int, Struct]] = []
        self.session_events: deque[SessionEvent] = deque(maxlen=SESSION_EVENTS_MAX)
        self._taken_events: list[SessionEvent] = []
        self.counters = dict.fromkeys(COUNTERS, 0)
        self._decisions: Counter[tuple[str, str, str]] = Counter()
        self._categories = BoundedNames()
        self.latency, self.send_latency, self.ack_latency = Latencies(), Latencies(), Latencies()
        self.read_latency, self.clock_skew = Latencies(), Latencies()

    def take_session_events(self, count_max: int) -> list[SessionEvent]:
        """Remove and return up to `count_max` of the oldest session events, to be written before more are taken; pass them to
        `return_session_events` if the write fails."""
        events = self.session_events
        self._taken_events = [events.popleft() for _ in range(min(count_max, len(events)))]
        return self._taken_events

    def written_of(self) -> Iterable[str]:
        """Keys of the users of session events that are being written."""
        return (event.key for event in self._taken_events)

    def waits_to_tell(self, keys: Container[str]) -> bool:
        """Whether session events of one of these users wait, or are being written."""
        return any(key in keys for key in chain(self.written_of(), (event.key for event in self.session_events)))

    def release_session_events(self, slots: Container[int]) -> list[SessionEvent]:
        """Remove and return the events of users of these slots, oldest first. None of them is being written."""
        released = [event for event in self.session_events if slot_of(event.key) in slots]
        if released:
            kept = [event for event in self.session_events if slot_of(event.key) not in slots]
            self.session_events.clear()
            self.session_events.extend(kept)
        return released

    def return_session_events(self, taken: Sequence[SessionEvent]) -> None:
        """Put back events that were not written, as the oldest. Those above `SESSION_EVENTS_MAX` are dropped, oldest first."""
        self._taken_events = []
        room = SESSION_EVENTS_MAX - len(self.session_events)
        self.session_events.extendleft(reversed(taken[max(len(taken) - room, 0) :]))

    def acknowledged(self, mailbox: Mailbox, settled: Settlement, by: Attachment | None, now_ms: int, client_ms: int = 0) -> None:
        """Count acknowledged messages by the times since their acceptance and since they were first sent.

        `client_ms`: the time of the ACK by the client's clock, 0 when it gave none.
        """
        latency, ack_latency = self.latency, self.ack_latency
        mailbox.tally.acknowledged += len(settled.messages)
        for message, sent_ms in settled.messages:
            envelope = message.envelope
            ms, seen = now_ms - message.accepted_ms, (envelope.id, envelope.body[:TRACE_BYTES], now_ms)
            if 0 <= ms < _EXACT_MS:
                latency.exact[ms] += 1
                latency.seen[ms] = seen
            else:
                latency.add_other(ms, seen)
            if sent_ms:
                ms = now_ms - sent_ms
                if 0 <= ms < _EXACT_MS:
                    ack_latency.exact[ms] += 1
                    ack_latency.seen[ms] = seen
                else:
                    ack_latency.add_other(ms, seen)
                if client_ms:
                    read_ms, skew_ms = client_times(sent_ms, client_ms, now_ms)
                    self.read_latency.add(read_ms)
                    self.clock_skew.add(abs(skew_ms))
        if self.outcomes is not None:
            key, where = mailbox.key, NOWHERE if by is None else place_of(by)
            for message, sent_ms in settled.messages:
                self.outcomes.add(AcknowledgedOutcome(key, now_ms, message.envelope.id, message.seq, sent_ms, client_ms, *where))
            for seq, id in _cold(mailbox, settled):
                self.outcomes.add(AcknowledgedOutcome(key, now_ms, id, seq, 0, client_ms, *where))

    def sent(self, mailbox: Mailbox, messages: Sequence[tuple[int, int, bytes]], connection: Attachment, now_ms: int) -> None:
        """Count messages of the mailbox, (sequence number, attempt, body), that are sent for the first time on a connection.

        Their time from acceptance until now counts if the connection was open then: otherwise it would be the time offline.
        """
        self.counters["delivered"] += len(messages)
        mailbox.tally.sent[connection.kind] += len(messages)
        hot, send_latency, open_since_ms = mailbox.hot, self.send_latency, connection.since_ms
        for seq, attempt, _ in messages:
            message = hot[seq]
            if attempt == 1 and open_since_ms <= message.accepted_ms:
                envelope = message.envelope
                ms, seen = now_ms - message.accepted_ms, (envelope.id, envelope.body[:TRACE_BYTES], now_ms)
                if 0 <= ms < _EXACT_MS:
                    send_latency.exact[ms] += 1
                    send_latency.seen[ms] = seen
                else:
                    send_latency.add_other(ms, seen)
        if self.outcomes is not None:
            self.record_sent(mailbox, messages, connection, now_ms)

    def record_sent(self, mailbox: Mailbox, messages: Iterable[tuple[int, int, bytes]], connection: Attachment, now_ms: int) -> None:
        """Record sends, first ones and repeats, in the history."""
        if self.outcomes is not None:
            where = place_of(connection)
            for seq, attempt, _ in messages:
                self.outcomes.add(SentOutcome(mailbox.key, now_ms, mailbox.hot[seq].envelope.id, seq, attempt, *where))

    def expired(self, mailbox: Mailbox, messages: Iterable[Message], now_ms: int) -> None:
        """Count messages whose time to live ended."""
        self._dropped("expired", mailbox, messages, now_ms)

    def trimmed(self, mailbox: Mailbox, messages: Iterable[Message], now_ms: int) -> None:
        """Count messages that are beyond what a user may have waiting."""
        self._dropped("trimmed", mailbox, messages, now_ms)

    def _dropped(self, event: str, mailbox: Mailbox, messages: Iterable[Message], now_ms: int) -> None:
        for message in messages:
            self.counters[event] += 1
            mailbox.tally.add(event)
            if self.outcomes is not None:
                self.outcomes.add(Outcome(mailbox.key, now_ms, event, message.envelope.id, message.seq))

    def decided(self, event: str, reason: str, category: str, count: int = 1) -> None:
        """Count decisions about messages: what, the code of the reason, and the messages' category."""
        self._decisions[event, reason, self._categories.of(category)] += count

    def decisions(self) -> list[tuple[str, str, str, int]]:
        """(decision, reason, category, number)."""
        return [(*labels, count) for labels, count in self._decisions.items()]

    def exemplars(self) -> dict[str, list[Exemplar]]:
        """Of the histograms of messages, by the names of these."""
        return {name: getattr(self, name).exemplars() for name in ("latency", "send_latency", "ack_latency")}

    def histograms(self) -> dict[str, list[list[int]] | int]:
        """Return the latencies for `stats`: [upper bound in ms, count] in growing order; the last bound is -1, for everything slower.

        And their sums, each named like its histogram with `_sum_ms`.
        """
        bounds = (*LATENCY_BUCKETS_MS, -1)
        names = ("latency", "send_latency", "ack_latency", "read_latency", "clock_skew")
        named: dict[str, Latencies] = {name: getattr(self, name) for name in names}
        counts = {name: [[bound, count] for bound, count in zip(bounds, times.buckets(), strict=True)] for name, times in named.items()}
        return counts | {f"{name}_sum_ms": times.sum_ms for name, times in named.items()}


def _cold(mailbox: Mailbox, settled: Settlement) -> Iterator[tuple[int, str]]:
    """Number and id of the settled messages that were not in memory, as far as their ids are."""
    if settled.cold:
        ids = {seq: id for id, (seq, _) in mailbox.recent.items() if not id.startswith(TIMER_EFFECT)}
        for first, last, before in settled.cold:
            yield from ((seq, ids[seq]) for seq in range(first, last + 1) if seq in ids and seq not in before)
