"""Durations with units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.model.constants import AT_MAX_MS
from engine.core.model.duration import parse_duration_ms
from engine.errors import Invalid


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250ms", 250),
        ("5s", 5000),
        ("1.5s", 1500),
        ("15m", 900_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("1h30m", 5_400_000),
        (" 2H ", 7_200_000),
    ],
)
def test_durations_are_read(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5 s", "5w", "1e3s", "٣s", "5s!", "1" * 70 + "s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_duration_ms(text)


@given(st.integers(0, 99), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_the_parts_of_a_duration_add_up(days: int, hours: int, minutes: int, seconds: int, ms: int) -> None:
    written = f"{days}d{hours}h{minutes}m{seconds}s{ms}ms"
    assert parse_duration_ms(written) == (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + ms


def test_no_duration_exceeds_the_timer_wheel() -> None:
    assert 4 * parse_duration_ms("365000d") < AT_MAX_MS
    with pytest.raises(Invalid, match="at most 365000d"):
        parse_duration_ms("365000d1ms")
    with pytest.raises(Invalid, match="at most"):
        parse_duration_ms("9" * 60 + "d")


def test_a_rejected_duration_is_quoted_and_cut() -> None:
    with pytest.raises(Invalid) as raised:
        parse_duration_ms("9" * 200 + "x")
    assert "9" * 64 in str(raised.value)
    assert "9" * 65 not in str(raised.value)
