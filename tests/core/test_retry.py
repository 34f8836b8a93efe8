"""The retry policy against the figures of its requirement."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.retry import RetryPolicy

POLICY = RetryPolicy(rtt_initial_ms=250, factor=1.8, first_ms=100, cap_ms=2000, tries=3)


def test_the_timeout_is_1_8_round_trips_and_doubles_with_every_try() -> None:
    assert [POLICY.wait_ms(200, tries) for tries in (1, 2, 3)] == [360, 720, 1440]


def test_the_timeout_has_a_floor_and_a_cap() -> None:
    assert POLICY.wait_ms(1, 1) == 100
    assert POLICY.wait_ms(5000, 3) == 2000


def test_before_the_first_measurement_a_careful_guess_counts() -> None:
    assert POLICY.wait_ms(0, 1) == 450


def test_one_quick_answer_does_not_make_the_next_message_impatient() -> None:
    rtt = POLICY.smooth(0, 1)
    assert POLICY.wait_ms(rtt, 1) > 390
    for _ in range(40):
        rtt = POLICY.smooth(rtt, 1)
    assert POLICY.wait_ms(rtt, 1) == 100, "many do"


def test_what_was_repeated_makes_the_next_first_timeout_as_long_as_its_last_one() -> None:
    assert POLICY.wait_ms(POLICY.backed_off(1, 3), 1) == pytest.approx(POLICY.wait_ms(1, 3))
    assert POLICY.wait_ms(POLICY.backed_off(900, 3), 1) == pytest.approx(2000)
    assert POLICY.backed_off(5000, 2) == 5000, "it never makes an estimate smaller"


@given(st.lists(st.floats(0, 10_000), min_size=1))
def test_the_estimate_stays_between_the_guess_and_the_samples(samples: list[float]) -> None:
    rtt = 0.0
    for sample in samples:
        rtt = POLICY.smooth(rtt, sample)
    assert min(*samples, POLICY.rtt_initial_ms) - 1e-6 <= rtt <= max(*samples, POLICY.rtt_initial_ms) + 1e-6
