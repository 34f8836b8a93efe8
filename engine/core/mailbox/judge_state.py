"""What the judge of a shard (`engine.core.commit.judge`) stores beside messages: its state of a user, and its records in the journal.

A feature extends these. The page has the state; replay applies the records to it.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


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

    def whole(self, key: str) -> JudgeRecord:
        """The record that puts this state in place of any other; `engine.core.journal.rebuild` writes it."""
