"""What the judge of a shard (`engine.core.commit.judge`) stores beside messages: its state of a user, and its records in the journal.

A feature extends these. The page has the state; replay applies the records to it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from msgspec import Struct

from engine.core.wire.records import OpenWindow


class JudgeRecord(Struct, frozen=True, array_like=True, gc=False):
    """A record of the journal that the judge makes, and applies at commit and at replay. `key` is the mailbox's."""

    key: str


class JudgeState(Protocol):
    """The judge's state of one user."""

    @property
    def held(self) -> int:
        """The number of things that the judge holds back; while there is one, the mailbox is not idle."""

    @property
    def next_ms(self) -> int:
        """The time at which the judge has something to do for the user, ms since the epoch; 0 for never."""

    @property
    def size(self) -> int:
        """Approximate bytes in memory."""

    def listed(self) -> list[OpenWindow]:
        """What it holds back, for reports about the user."""

    def whole(self, key: str) -> JudgeRecord:
        """The record that puts this state in place of any other; `engine.core.journal.rebuild` writes it."""


class JudgeKinds(NamedTuple):
    """What the judge of a shard stores: kinds of records in the journal, and the state in the page. By default nothing."""

    records: tuple[type[JudgeRecord], ...] = ()
    state: type[JudgeState] | None = None
