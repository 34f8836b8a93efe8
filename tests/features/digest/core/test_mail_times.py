"""The times of digests by mail: one on each chosen day, at the local time, through every change of clocks."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import hypothesis.strategies as st
from hypothesis import given

from engine.core.policy.profile import ALL_DAYS, MailDigest
from engine.features.digest.core.mail_times import last_due, next_due
from engine.features.policy.core.local_times import instant, local
from engine.features.policy.time_zones import zone

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Apia")
digests = st.builds(MailDigest, st.integers(0, 1439), st.integers(1, ALL_DAYS))
moments = st.integers(946_684_800_000, 4_102_444_800_000)
DAY_MS = 86_400_000


@given(digests, st.sampled_from(ZONES), moments)
def test_the_next_time_is_on_a_chosen_day_at_the_local_time_and_within_eight_days(wanted: MailDigest, name: str, now_ms: int) -> None:
    due_ms = next_due(wanted, zone(name), now_ms)
    assert now_ms < due_ms <= now_ms + 8 * DAY_MS + 2 * 3_600_000
    assert next_due(wanted, zone(name), due_ms - 1) == due_ms
    assert last_due(wanted, zone(name), due_ms + 1) == due_ms
    shown = local(due_ms, zone(name))
    if shown.hour * 60 + shown.minute == wanted.at:
        assert wanted.days >> shown.weekday() & 1
    else:
        assert any(instant(shown.date() + timedelta(days=back), wanted.at, zone(name)) == due_ms for back in (0, -1)), "clocks skip it"


@given(digests, st.sampled_from(ZONES), st.dates(date(2011, 1, 1), date(2037, 1, 1)))
def test_each_chosen_day_of_a_year_has_one(wanted: MailDigest, name: str, first: date) -> None:
    begin_ms = instant(first, 0, zone(name)) - 1
    days = [first + timedelta(days=number) for number in range(366)]
    expected = sorted({instant(day, wanted.at, zone(name)) for day in days if wanted.days >> day.weekday() & 1})
    found, at_ms = [], begin_ms
    while len(found) < len(expected):
        previous, at_ms = at_ms, next_due(wanted, zone(name), at_ms)
        assert not found or last_due(wanted, zone(name), at_ms) == previous
        found.append(at_ms)
    assert found == expected


def test_a_skipped_time_is_the_change_and_a_repeated_one_the_first() -> None:
    berlin = zone("Europe/Berlin")
    spring = next_due(MailDigest(150), berlin, int(datetime(2026, 3, 29, tzinfo=UTC).timestamp() * 1000))
    autumn = next_due(MailDigest(150), berlin, int(datetime(2026, 10, 24, 12, tzinfo=UTC).timestamp() * 1000))
    assert datetime.fromtimestamp(spring / 1000, UTC) == datetime(2026, 3, 29, 1, tzinfo=UTC)
    assert datetime.fromtimestamp(autumn / 1000, UTC) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
