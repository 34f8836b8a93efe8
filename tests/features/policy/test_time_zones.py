"""Names of time zones: those of the IANA database, and nothing that only looks like a file of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from engine.errors import Invalid
from engine.features.policy.time_zones import zone, zone_here


def test_a_name_of_the_database_gives_its_zone() -> None:
    summer = datetime(2030, 7, 1, tzinfo=UTC)
    assert summer.astimezone(zone("Europe/Berlin")).utcoffset() == timedelta(hours=2)
    assert summer.astimezone(zone_here("Asia/Kolkata")).utcoffset() == timedelta(hours=5, minutes=30)


OF_THE_MACHINE = ["localtime", "posixrules", "right/UTC", "posix/Europe/Berlin"]


@pytest.mark.parametrize(
    "name", ["", "Europe", "Mars/Olympus", "../etc/passwd", "/etc/passwd", "a\0b", "x" * 65, "Europe/Berlin\n", *OF_THE_MACHINE]
)
def test_any_other_name_is_invalid_and_utc_where_it_was_accepted_elsewhere(name: str) -> None:
    with pytest.raises(Invalid, match="IANA time zone"):
        zone(name)
    assert zone_here(name) is UTC
