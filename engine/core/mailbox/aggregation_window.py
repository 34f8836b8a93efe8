"""The open aggregation windows of a user, as page and journal have them. The judge of a shard (`engine.core.commit.judge`) changes them."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from engine.core.model.envelope import Envelope, Merge
from engine.core.wire.records import UNREADABLE

DIGEST: Final = "\ndigest"
"""The collapse key of a user's digest; no publisher can use it. Its summary is a message with the number of messages of each type."""

_WINDOW_BYTES: Final = 900
"""Bytes of an open window in memory without its contents: the object, its lists, its table entry."""


def merge_of(envelope: Envelope) -> Merge:
    """Return the merge settings of a message. Raises ValueError when it names no window."""
    if envelope.merge is None:
        raise ValueError("the message names no window")
    return envelope.merge


class WindowItem(Struct, frozen=True, array_like=True, gc=False):
    """A message on its way into a window.

    Args:
        envelope: has a collapse key and `merge`; see `in_digest` for a user's digest.
        expires_ms: as in `Post`.
        at_ms: time of acceptance, ms since the epoch.
        timer: scheduled id of the durable timer that caused it, or "".
    """

    envelope: Envelope
    expires_ms: int
    at_ms: int
    timer: str = ""

    def __post_init__(self) -> None:
        merge_of(self.envelope)  # a stored record without it is corrupt, and decoding must detect that


class Counted(Struct, frozen=True, array_like=True, tag=11, gc=False):
    """Record: a message counts in a window, which it opens when there is none. `key` is the mailbox's.

    `seq` is the message's own number when it is delivered too (it opened a leading window), else 0.
    """

    key: str
    number: int
    item: WindowItem
    seq: int = 0


class Ended(Struct, frozen=True, array_like=True, tag=12, gc=False):
    """Record: a window is closed; the notification it sends is in the same group."""

    key: str
    number: int
    collapse: str


class Extended(Struct, frozen=True, array_like=True, tag=14, gc=False):
    """Record: a window past its end stays open until `closes_ms`, since its notification must not be sent yet."""

    key: str
    number: int
    collapse: str
    closes_ms: int


class AggregationWindow(Struct, frozen=True, array_like=True):
    """An open window of `count` messages.

    `envelope` is that of the first message, except the body (of the newest), the priority (the highest) and `retain` (set when any has it).
    """

    opened_ms: int
    closes_ms: int
    envelope: Envelope
    expires_ms: int  # the last
    first_seq: int  # of a leading one's first message
    count: int
    first_ms: int
    last_ms: int
    actors: list[bytes]  # JSON
    marks: list[bytes]  # newest last
    types: dict[str, int] = {}  # of a digest: messages by type, `TYPES_MAX` of them, and those of all others under OTHER_TYPES

    def __post_init__(self) -> None:
        merge_of(self.envelope)

    @property
    def merge(self) -> Merge:
        """The merge settings of its first message."""
        return merge_of(self.envelope)

    @property
    def size(self) -> int:
        """Approximate bytes in memory."""
        return _WINDOW_BYTES + len(self.envelope.body) + 50 * len(self.marks) + sum(map(len, self.actors))


class Windows(Struct, array_like=True):
    """The open windows of one user, by collapse key, in the order of their opening; part of the user's page.

    `applied` is the number of the last record applied.
    """

    applied: int = 0
    open: dict[str, AggregationWindow] = {}

    @property
    def next_ms(self) -> int:
        """The time the next window closes, ms since the epoch; 0 when none is open."""
        return min((window.closes_ms for window in self.open.values()), default=0)

    @property
    def size(self) -> int:
        """Approximate bytes of the open windows in memory."""
        return sum(window.size for window in self.open.values())


class _Type(Struct):
    type: str = ""


_type: Final = msgspec.json.Decoder(_Type)


def type_of(body: bytes) -> str:
    """The type of a message; "" when it is not JSON. No edge sends such a body, but an exception would recur at each replay."""
    try:
        return _type.decode(b"{%b}" % body).type
    except UNREADABLE:
        return ""
