"""Quiet hours and local times in every zone, on every day on which clocks change."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from engine.core.policy.profile import ALL_DAYS, DAY_MINUTES, QuietHours
from engine.errors import Invalid
from engine.features.policy.core.local_times import instant, local, never_end, quiet_until
from engine.features.policy.time_zones import zone

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
BERLIN = ZoneInfo("Europe/Berlin")
ZONES = sorted(available_timezones() - {"localtime"})  # which is another one on each machine


def at(text: str, zone_name: str = "Europe/Berlin", fold: int = 0) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone_name), fold=fold).timestamp() * 1000)


@cache
def changes(zone_name: str, year: int) -> tuple[int, ...]:
    """The moments of a year at which the zone's offset changes, ms; found by looking at every half hour of the days they are on."""
    found = []
    where = ZoneInfo(zone_name)
    start_ms = int(datetime(year, 1, 1, tzinfo=UTC).timestamp() * 1000)
    for day in range(366):
        day_ms = start_ms + day * DAY_MS
        if local(day_ms, where).utcoffset() != local(day_ms + DAY_MS, where).utcoffset():
            found += [
                at_ms
                for at_ms in range(day_ms, day_ms + DAY_MS, 30 * MINUTE_MS)
                if local(at_ms, where).utcoffset() != local(at_ms - 1, where).utcoffset()
            ]
    return tuple(found)


def first_reading(day: date, minute: int, zone_name: str) -> int:
    """The first minute at which a wall clock of the zone reads this or later: what `instant` must be, found by looking at clocks."""
    where = ZoneInfo(zone_name)
    wanted = datetime.combine(day, time()) + timedelta(minutes=minute)
    start_ms = int(wanted.replace(tzinfo=UTC).timestamp() * 1000) - 26 * HOUR_MS
    reads = lambda at_ms: local(at_ms, where).replace(tzinfo=None) >= wanted  # noqa: E731
    coarse_ms = next(at_ms for at_ms in range(start_ms, start_ms + 60 * HOUR_MS, 15 * MINUTE_MS) if reads(at_ms))
    return next(at_ms for at_ms in range(coarse_ms - 15 * MINUTE_MS, coarse_ms + 1, MINUTE_MS) if reads(at_ms))


YEARS = (2011, 2026)
"""In 2011 Samoa lost a day."""


@cache
def kinds_of_change(year: int) -> tuple[tuple[str, int], ...]:
    """A zone for every way in which clocks changed in a year, with the moment in ms."""
    seen: dict[object, tuple[str, int]] = {}
    for name in ZONES:
        for change_ms in changes(name, year):
            where = ZoneInfo(name)
            seen.setdefault((change_ms, local(change_ms - 1, where).utcoffset(), local(change_ms, where).utcoffset()), (name, change_ms))
    return tuple(sorted(seen.values()))


def offset(name: str, at_ms: int) -> float:
    found = local(at_ms, ZoneInfo(name)).utcoffset()
    assert found is not None
    return found.total_seconds()


def test_there_are_changes_of_many_kinds() -> None:
    found = [change for year in YEARS for change in kinds_of_change(year)]
    assert len(found) > 50
    assert any(name.startswith("Pacific/") for name, _ in found)
    steps = {abs(offset(name, change_ms) - offset(name, change_ms - 1)) for name, change_ms in found}
    assert steps >= {30 * 60, 60 * 60, 24 * 60 * 60}


@pytest.mark.parametrize("year", YEARS)
def test_a_local_time_means_the_first_moment_a_clock_reads_it_or_later(year: int) -> None:
    for name, change_ms in kinds_of_change(year):
        where = ZoneInfo(name)
        before, after = local(change_ms - 1, where), local(change_ms, where)
        minutes = {0, before.hour * 60 + before.minute, after.hour * 60 + after.minute, after.hour * 60 + after.minute + 1, 90, 150, 720}
        for day in {before.date(), after.date()}:
            for minute in minutes:
                assert instant(day, minute % DAY_MINUTES, where) == first_reading(day, minute % DAY_MINUTES, name), (name, day, minute)


def test_quiet_hours_until_a_skipped_time_end_with_the_change() -> None:
    window = [QuietHours(22 * 60, 2 * 60 + 30)]
    assert quiet_until(window, BERLIN, at("2026-03-28T23:00")) == at("2026-03-29T03:00")
    assert quiet_until(window, BERLIN, at("2026-03-29T03:00")) == 0


def test_quiet_hours_that_begin_at_a_time_that_comes_twice_have_no_hole() -> None:
    window = [QuietHours(2 * 60 + 30, 7 * 60)]
    for moment in (at("2026-10-25T02:30"), at("2026-10-25T02:59"), at("2026-10-25T02:00", fold=1), at("2026-10-25T02:45", fold=1)):
        assert quiet_until(window, BERLIN, moment) == at("2026-10-25T07:00")
    assert quiet_until(window, BERLIN, at("2026-10-25T02:29")) == 0


def test_a_day_that_does_not_exist_has_no_quiet_hours() -> None:
    window = [QuietHours(10 * 60, 12 * 60, 1 << 4)]  # Fridays; 30 December 2011 was one, and Samoa skipped it
    samoa = ZoneInfo("Pacific/Apia")
    start_ms = at("2011-12-29T00:00", "Pacific/Apia")
    assert not any(quiet_until(window, samoa, start_ms + step * 15 * MINUTE_MS) for step in range(4 * 48))


def test_an_interval_belongs_to_the_day_it_begins_on() -> None:
    saturday_night = [QuietHours(23 * 60, 9 * 60, 1 << 5)]
    assert quiet_until(saturday_night, BERLIN, at("2026-06-06T23:30")) == at("2026-06-07T09:00")
    assert quiet_until(saturday_night, BERLIN, at("2026-06-07T08:59")) == at("2026-06-07T09:00")
    assert quiet_until(saturday_night, BERLIN, at("2026-06-06T08:59")) == 0
    assert quiet_until(saturday_night, BERLIN, at("2026-06-07T23:30")) == 0


def test_intervals_that_touch_or_overlap_are_one() -> None:
    windows = [QuietHours(22 * 60, 6 * 60), QuietHours(6 * 60, 8 * 60), QuietHours(7 * 60, 9 * 60)]
    assert quiet_until(windows, BERLIN, at("2026-06-06T23:30")) == at("2026-06-07T09:00")


def test_who_is_quiet_for_ever_is_heard_in_a_fortnight_at_the_latest() -> None:
    windows = [QuietHours(0, 12 * 60), QuietHours(12 * 60, 0)]
    now_ms = at("2026-06-06T23:30")
    assert now_ms < quiet_until(windows, BERLIN, now_ms) < now_ms + 14 * DAY_MS


def windows_at_most_a_day() -> st.SearchStrategy[list[QuietHours]]:
    """One or two intervals that leave some of the day."""
    begin, length = st.integers(0, DAY_MINUTES - 1), st.integers(1, 11 * 60)
    one = st.builds(
        lambda start, span, days: QuietHours(start, (start + span) % DAY_MINUTES, days), begin, length, st.integers(1, ALL_DAYS)
    )
    return st.lists(one, min_size=1, max_size=2)


moments = st.integers(at("2010-01-01T00:00"), at("2035-01-01T00:00"))
near_changes = st.tuples(
    st.sampled_from(YEARS).flatmap(lambda year: st.sampled_from(kinds_of_change(year))), st.integers(-30 * HOUR_MS, 30 * HOUR_MS)
).map(lambda pair: (pair[0][0], pair[0][1] + pair[1]))
places = st.one_of(st.tuples(st.sampled_from(ZONES), moments), near_changes)


@settings(max_examples=500, deadline=None)
@given(windows_at_most_a_day(), places, st.floats(0, 1))
@example([QuietHours(22 * 60, 150)], ("Europe/Berlin", at("2026-03-29T01:59")), 0.5)
def test_quiet_hours_end_once_and_at_the_same_time_for_everyone_in_them(
    windows: list[QuietHours], place: tuple[str, int], share: float
) -> None:
    name, now_ms = place
    where = ZoneInfo(name)
    until_ms = quiet_until(windows, where, now_ms)
    if until_ms:
        assert now_ms < until_ms <= now_ms + 3 * DAY_MS
        assert quiet_until(windows, where, until_ms) == 0, "it has ended when it ends"
        between_ms = now_ms + int((until_ms - now_ms) * share)
        assert quiet_until(windows, where, min(between_ms, until_ms - 1)) == until_ms


@settings(max_examples=500, deadline=None)
@given(windows_at_most_a_day(), st.sampled_from(ZONES), moments)
def test_away_from_changes_quiet_hours_are_what_the_clock_reads(windows: list[QuietHours], name: str, now_ms: int) -> None:
    where = ZoneInfo(name)
    offsets = {local(now_ms + hours * HOUR_MS, where).utcoffset() for hours in range(-54, 55)}
    if len(offsets) > 1:
        return
    wall = local(now_ms, where)
    minute, today = wall.hour * 60 + wall.minute, wall.weekday()
    quiet = False
    for window in windows:
        starts_today, started_yesterday = window.days >> today & 1, window.days >> (today - 1) % 7 & 1
        if window.begin < window.end:
            quiet |= bool(starts_today) and window.begin <= minute < window.end
        else:
            quiet |= (bool(starts_today) and minute >= window.begin) or (bool(started_yesterday) and minute < window.end)
    assert bool(quiet_until(windows, where, now_ms)) is quiet


@given(windows_at_most_a_day())
def test_quiet_hours_that_end_leave_a_minute_of_the_week(windows: list[QuietHours]) -> None:
    monday_ms = at("2026-06-01T00:00", "UTC")
    minutes = (monday_ms + minute * MINUTE_MS for window in windows for day in range(7) for minute in [day * DAY_MINUTES + window.end])
    assert never_end(windows) is (bool(windows) and all(quiet_until(windows, ZoneInfo("UTC"), at_ms) for at_ms in minutes))


@pytest.mark.parametrize(("until", "days", "endless"), [(0, ALL_DAYS, True), (1439, ALL_DAYS, False), (0, 0b101_1111, False)])
def test_quiet_hours_of_all_minutes_never_end(until: int, days: int, endless: bool) -> None:
    assert never_end([QuietHours(0, 720), QuietHours(720, until, days)]) is endless


@pytest.mark.parametrize(
    "name", ["", "Nowhere", "Europe", "../../etc/passwd", "/etc/passwd", "a" * 5000, "Europe/Berlin\x00", "é", "\ud800"]
)
def test_what_is_no_zone_is_refused(name: str) -> None:
    with pytest.raises(Invalid):
        zone(name)


def test_every_zone_of_this_machine_is_one() -> None:
    for name in ZONES:
        assert zone(name).utcoffset(None) is None or name
