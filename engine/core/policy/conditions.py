"""Conditions of the timers that rules arm and of steps of messages, and what a shard makes of them when the timer fires.

The judge of a shard (`engine.core.commit.judge`) evaluates them. They travel with the timer.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from engine.core.model.category import Instant, Span
from engine.core.model.step import StepTerms


class Conditions(Struct, frozen=True, array_like=True, omit_defaults=True):
    """What must hold when the timer fires. Part of the timer.

    Args:
        since_ms: time of the event that armed it.
        unless_active: not when the user has been active since.
        unless_events: not when one of these events of the user has come since.
        member_of: only while the user is in this group; "" for no such condition.
        inactive_ms: only after so long without activity; until then it is moved, not dropped. 0 for no such condition.
        delay_ms: after that.
        step: it is a step of a message: what it needs to know of it.
    """

    since_ms: Instant
    unless_active: bool = False
    unless_events: tuple[str, ...] = ()
    member_of: str = ""
    inactive_ms: Span = 0
    delay_ms: Span = 0
    step: StepTerms | None = None

    @property
    def any(self) -> bool:
        return self.unless_active or bool(self.unless_events) or bool(self.member_of) or self.inactive_ms > 0


class Go(Struct, frozen=True):
    """All conditions hold: send it."""


GO: Final = Go()


class Drop(Struct, frozen=True):
    """It is not sent: the timer has had its effect. `reason` is a word for programs, `detail` for people.

    `of_step`: it was a step of a message, not the message itself.
    """

    reason: str
    detail: str
    of_step: bool = False


class Again(Struct, frozen=True):
    """Not yet: the timer is moved to `at_ms`."""

    at_ms: int
