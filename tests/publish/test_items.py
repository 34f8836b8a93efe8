"""Times of published items."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import Invalid
from engine.publish.items import rfc3339_ms


@given(
    st.datetimes(datetime(1900, 1, 2), datetime(2200, 1, 1)),  # noqa: DTZ001 -- the zone is added below
    st.integers(-23 * 60, 23 * 60),
)
def test_a_time_is_whole_milliseconds_since_the_epoch_whatever_its_offset(naive: datetime, offset_min: int) -> None:
    time = naive.replace(tzinfo=timezone(timedelta(minutes=offset_min)))
    assert rfc3339_ms(time.isoformat(), "$.at") == (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@pytest.mark.parametrize("text", ["", "yesterday", "2031-05-17", "2031-05-17T09:30:00", "1700000000000", "2031-13-17T09:30:00Z"])
def test_a_text_that_is_no_time_with_an_offset_is_refused_at_its_path(text: str) -> None:
    with pytest.raises(Invalid, match="not an RFC 3339 time") as caught:
        rfc3339_ms(text, "$.at")
    assert caught.value.path == "$.at"
