"""What has become of messages, timers, events and connections: the records of the history, and their encoding.

    shard, edge --OutcomeLog--> batch --stream--> archivist --> rows of a relational database

An outcome says what happened, to whom, when and why; never what a message contains. With the history off nobody has a log, and the hot
paths test for that and do nothing else.

Two kinds, told apart by `is_journalled`. What the journal has (a message was accepted, merged, or decided against) is recorded again by a
successor that replays the journal, from the same record, so it is the same outcome: equal outcomes are one. Everything else happened in one
process, and is identified by that process and a number.

Crash: what the process had recorded and not appended is lost, some `history_flush_ms` of sends and acknowledgements. What the journal has
comes again. An append whose answer was lost is repeated, and its rows are the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from engine.core.wire.records import UNREADABLE

OUTCOMES_WAITING_MAX: Final = 100_000
"""Outcomes held while storage is unavailable, about 30 MB. Beyond it the newest are dropped and counted."""

ERASED: Final = "erased"
"""The event after which nothing of the user is kept, this outcome included."""

JOURNALLED: Final = frozenset({"merged", "deferred", "digested", "inboxed", "suppressed", "step_skipped"})
"""Events of `Outcome` that follow from a journal record, beside `AcceptedOutcome`."""


class _Type(Struct):
    type: str = ""


_type: Final = msgspec.json.Decoder(_Type)


def type_of(body: bytes) -> str:
    """The type of a message; "" when it is not JSON. No edge sends such a body, but an exception would recur at each replay."""
    try:
        return _type.decode(b"{%b}" % body).type
    except UNREADABLE:
        return ""


class AcceptedOutcome(Struct, array_like=True, tag=1, gc=False):
    """A message has its number: it is journalled and will be delivered.

    Args:
        kind: its type.
        timer: scheduled id of the timer whose effect it is, "" for none.
    """

    key: str
    at_ms: int
    id: str
    seq: int
    kind: str
    category: str = ""
    priority: int = -1
    timer: str = ""


class SentOutcome(Struct, array_like=True, tag=2, gc=False):
    """A message was sent on a connection: the transport as in `engine.core.wire.records.TRANSPORTS`, `node` is the edge."""

    key: str
    at_ms: int
    id: str
    seq: int
    attempt: int
    session: str
    device: str
    transport: int
    node: str


class AcknowledgedOutcome(Struct, array_like=True, tag=3, gc=False):
    """A message was acknowledged.

    Args:
        sent_ms: when it was first sent on the connection that acknowledged it, 0 when it was not sent there.
        client_ms: the time of the ACK by the client's clock, 0 when the client gave none.
        session: of that connection, "" for an acknowledgement without one (HTTP, a cursor). So are the next three.
    """

    key: str
    at_ms: int
    id: str
    seq: int
    sent_ms: int = 0
    client_ms: int = 0
    session: str = ""
    device: str = ""
    transport: int = -1
    node: str = ""


class Outcome(Struct, array_like=True, tag=4, gc=False):
    """Everything else. Members that do not apply to the event are empty.

    Args:
        kind: the type of the message, or of the event that an application published.
        event: a word, such as `suppressed` or `triggered`; docs/PROTOCOL-OPERATING.md has them all.
        reason: as in the answer to a publisher: a word, a colon and a sentence; or a detail of the event.
        until_ms: of what was deferred or scheduled.
        rule: that was triggered.
        timer: a scheduled id.
    """

    key: str
    at_ms: int
    event: str
    id: str = ""
    seq: int = 0
    kind: str = ""
    reason: str = ""
    until_ms: int = 0
    rule: str = ""
    timer: str = ""
    session: str = ""
    device: str = ""
    transport: int = -1
    node: str = ""


AnyOutcome = AcceptedOutcome | SentOutcome | AcknowledgedOutcome | Outcome

_encoder = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[AnyOutcome])


def is_journalled(outcome: AnyOutcome) -> bool:
    """Whether a replay of the journal records it again."""
    return type(outcome) is AcceptedOutcome or (type(outcome) is Outcome and outcome.event in JOURNALLED)


def is_erasure(outcome: AnyOutcome) -> bool:
    """Whether nothing of the user is kept from then on."""
    return type(outcome) is Outcome and outcome.event == ERASED


def encode_outcomes(outcomes: Sequence[AnyOutcome]) -> bytes:
    """One batch."""
    return _encoder.encode(outcomes)


def decode_outcomes(batch: bytes) -> list[AnyOutcome]:
    """The inverse of `encode_outcomes`. Raises as `engine.core.wire.records.UNREADABLE`."""
    return _decoder.decode(batch)


class OutcomeLog:
    """The outcomes of one process that are not in the stream yet, oldest first.

    Attributes:
        add: records one. Bounded by `trim`, which whoever appends them calls while it cannot.
        dropped: how many found no room, and are not counted in the stream yet.
    """

    __slots__ = ("_waiting", "_waiting_max", "add", "dropped", "extend")

    def __init__(self, waiting_max: int = OUTCOMES_WAITING_MAX) -> None:
        self._waiting: list[AnyOutcome] = []
        self._waiting_max = waiting_max
        self.add = self._waiting.append  # one call, no method of our own: it happens two or three times per message
        self.extend = self._waiting.extend
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, count_max: int) -> list[AnyOutcome]:
        """Remove and return up to `count_max` of the oldest."""
        taken = self._waiting[:count_max]
        del self._waiting[:count_max]
        return taken

    def trim(self) -> None:
        """Drop the newest beyond the limit, but for erasures of users."""
        over = len(self._waiting) - self._waiting_max
        if over > 0:
            self._waiting[self._waiting_max :] = kept = list(filter(is_erasure, self._waiting[self._waiting_max :]))
            self.dropped += over - len(kept)


def client_times(sent_ms: int, client_ms: int, now_ms: int) -> tuple[int, int]:
    """What the client's time of an ACK tells: how long until it was read, and by how much the client's clock is wrong at least, in ms.

    The client made the ACK between the first send and now. A client's time in between counts as right: the message was read then. A time
    outside proves a wrong clock. The skew is its distance to the nearer end, and the time to read is an upper bound: until now.

    Args:
        sent_ms: by this server's clock, as is `now_ms`.
        client_ms: by the client's.

    Returns:
        The time to read, and the skew: positive for a clock that is ahead, 0 for one that may be right.
    """
    if client_ms > now_ms:
        return max(now_ms - sent_ms, 0), client_ms - now_ms
    if client_ms < sent_ms:
        return max(now_ms - sent_ms, 0), client_ms - sent_ms
    return client_ms - sent_ms, 0
