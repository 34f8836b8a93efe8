"""Local times of a user: quiet hours, and the instant that a local time means.

A zone is data that is passed in (`datetime.tzinfo`, an IANA zone of `engine.features.policy.time_zones`); nothing here looks one up or
reads a clock. Instants are milliseconds since the epoch, local times are minutes since midnight.

What a local time means when clocks are changed:

    skipped (spring)         the moment of the change: quiet hours until 02:30 end when 02:00 becomes 03:00
    happens twice (autumn)   the first time: quiet hours from 01:30 begin at the first 01:30 and go on through the second

So an interval of local times is one interval of instants without holes, on every day: the half hour between two 01:30s is quiet too.
A change can make it up to a few hours shorter or longer. On a day that a zone skips altogether it is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final

from engine.core.policy.profile import DAY_MINUTES, QuietHours

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_WEEK_MINUTES: Final = 7 * DAY_MINUTES
_ROUNDS_MAX: Final = 16
"""Adjoining quiet intervals that are followed: what waits for the end of more is decided again then, and waits on."""

QUIET_MAX: Final = 14
"""Intervals of one user: two for each day of the week."""


def quiet_until(windows: Sequence[QuietHours], zone: tzinfo, now_ms: int) -> int:
    """When the quiet hours end that `now_ms` lies in, ms; 0 when it lies in none."""
    until_ms = 0
    for _ in range(_ROUNDS_MAX):
        end_ms = _end(windows, zone, until_ms or now_ms)
        if not end_ms:
            break
        until_ms = end_ms
    return until_ms


def never_end(windows: Sequence[QuietHours]) -> bool:
    """Whether they leave no minute of the week."""
    quiet = 0
    for window in windows:
        length = (window.end - window.begin) % DAY_MINUTES
        for day in range(7):
            if window.days >> day & 1:
                quiet |= (1 << length) - 1 << day * DAY_MINUTES + window.begin
    week = (1 << _WEEK_MINUTES) - 1
    return (quiet | quiet >> _WEEK_MINUTES) & week == week


def _end(windows: Sequence[QuietHours], zone: tzinfo, at_ms: int) -> int:
    """The latest end of the intervals that hold this moment; 0 when none does."""
    today = local(at_ms, zone).date()
    latest_ms = 0
    for offset in (-2, -1, 0, 1):  # a change can put today's moment into yesterday's interval, or a day can be missing
        day = today + timedelta(days=offset)
        for window in windows:
            if window.days >> day.weekday() & 1:
                begin_ms = instant(day, window.begin, zone)
                end_ms = instant(day if window.end > window.begin else day + timedelta(days=1), window.end, zone)
                if begin_ms <= at_ms < end_ms:
                    latest_ms = max(latest_ms, end_ms)
    return latest_ms


def local(at_ms: int, zone: tzinfo) -> datetime:
    """The wall clock of the zone at an instant."""
    return (_EPOCH + at_ms * _MILLISECOND).astimezone(zone)


def instant(day: date, minute: int, zone: tzinfo) -> int:
    """The instant of a local time, ms; of one that is skipped or happens twice, see the module's text."""
    wall = datetime(day.year, day.month, day.day, tzinfo=zone) + timedelta(minutes=minute)
    first = wall.astimezone(UTC)
    if first.astimezone(zone).replace(tzinfo=None) == wall.replace(tzinfo=None):
        return (first - _EPOCH) // _MILLISECOND
    return _change(wall, zone)


def _change(wall: datetime, zone: tzinfo) -> int:
    """The moment of the change that skips this local time: by bisection between the instants of both offsets (PEP 495)."""
    late_s = (wall.replace(fold=0).astimezone(UTC) - _EPOCH) // timedelta(seconds=1)
    early_s = (wall.replace(fold=1).astimezone(UTC) - _EPOCH) // timedelta(seconds=1)
    before = local(early_s * 1000, zone).utcoffset()
    while late_s - early_s > 1:
        middle_s = (early_s + late_s) // 2
        if local(middle_s * 1000, zone).utcoffset() == before:
            early_s = middle_s
        else:
            late_s = middle_s
    return late_s * 1000
