"""When a digest by mail is due (`engine.core.policy.profile.MailDigest`).

Pure: the zone is passed in. A time that a clock change skips is the moment of the change, one that it repeats is the first of the two
(`engine.features.policy.core.local_times`), so each chosen day has one digest; a day that a zone skips altogether has its at the change.
"""

from __future__ import annotations

from datetime import timedelta, tzinfo
from typing import Final

from engine.core.policy.profile import MailDigest
from engine.features.policy.core.local_times import instant, local

_NEAR_DAYS: Final = 9
"""A week, and a day at each end for the zone."""


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
