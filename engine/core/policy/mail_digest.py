"""The times at which a user wants a digest by mail: a local time on some days of the week, so daily, weekly, or anything between.

Pure: the zone is passed in. A time that a clock change skips is the moment of the change, one that it repeats is the first of the two
(`engine.core.policy.quiet_hours`), so each chosen day has one digest; a day that a zone skips altogether has its at the change.
"""

from __future__ import annotations

from datetime import timedelta, tzinfo
from typing import Annotated, Final

from msgspec import Meta, Struct

from engine.core.policy.quiet_hours import ALL_DAYS, DAY_MINUTES, instant, local

_NEAR_DAYS: Final = 9
"""A week, and a day at each end for the zone."""


class MailDigest(Struct, frozen=True, array_like=True):
    """When.

    Args:
        at: minutes since midnight, 0..1439.
        days: bit 0 is Monday; not 0.
    """

    at: Annotated[int, Meta(ge=0, lt=DAY_MINUTES)]
    days: Annotated[int, Meta(ge=1, le=ALL_DAYS)] = ALL_DAYS


def next_due(wanted: MailDigest, zone: tzinfo, after_ms: int) -> int:
    """The first time after this one, ms."""
    return min(due_ms for due_ms in _near(wanted, zone, after_ms) if due_ms > after_ms)


def last_due(wanted: MailDigest, zone: tzinfo, before_ms: int) -> int:
    """The last time before this one, ms."""
    return max(due_ms for due_ms in _near(wanted, zone, before_ms) if due_ms < before_ms)


def _near(wanted: MailDigest, zone: tzinfo, at_ms: int) -> list[int]:
    today = local(at_ms, zone).date()
    days = (today + timedelta(days=offset) for offset in range(-_NEAR_DAYS, _NEAR_DAYS + 1))
    return [instant(day, wanted.at, zone) for day in days if wanted.days >> day.weekday() & 1]
