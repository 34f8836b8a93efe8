"""The open aggregation windows of a user, as page and journal have them. The judge of a shard (`engine.core.commit.judge`) changes them."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from engine.core.mailbox.judge_state import JudgeKinds, JudgeRecord
from engine.core.model.envelope import Envelope, Merge
from engine.core.wire.records import OpenWindow

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


class Counted(JudgeRecord, frozen=True, array_like=True, tag=11, gc=False):
    """Record: a message counts in a window, which it opens when there is none.

    `seq` is the message's own number when it is delivered too (it opened a leading window), else 0.
    """

    number: int
    item: WindowItem
    seq: int = 0


class Ended(JudgeRecord, frozen=True, array_like=True, tag=12, gc=False):
    """Record: a window is closed; the notification it sends is in the same group."""

    number: int
    collapse: str


class Extended(JudgeRecord, frozen=True, array_like=True, tag=14, gc=False):
    """Record: a window past its end stays open until `closes_ms`, since its notification must not be sent yet."""

    number: int
    collapse: str
    closes_ms: int


class AggregationWindow(Struct, frozen=True, array_like=True):
    """An open window of `count` messages.

    `envelope` is that of the first message, except the body (of the newest), the priority (the highest), `retain` (set when any has it),
    the category (of a mandatory one, if any) and `unless_active` (the latest time, none when one message has none).
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
    def held(self) -> int:
        """The number of open windows."""
        return len(self.open)

    @property
    def next_ms(self) -> int:
        """The time the next window closes, ms since the epoch; 0 when none is open."""
        return min((window.closes_ms for window in self.open.values()), default=0)

    @property
    def size(self) -> int:
        """Approximate bytes of the open windows in memory."""
        return sum(window.size for window in self.open.values())

    def listed(self) -> list[OpenWindow]:
        """See `JudgeState`."""
        return [OpenWindow(collapse, window.count, window.closes_ms) for collapse, window in self.open.items()]

    def whole(self, key: str) -> Kept:
        """See `JudgeState`."""
        return Kept(key, self)


class Kept(JudgeRecord, frozen=True, array_like=True, tag=13, gc=False):
    """Record: all windows of a user; written by `engine.core.journal.rebuild` only."""

    windows: Windows


KINDS: Final = JudgeKinds((Counted, Ended, Extended, Kept), Windows)
"""What journal and pages have of windows."""
