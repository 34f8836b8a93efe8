"""The retry policy against the figures of its requirement."""

from __future__ import annotations

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


@given(st.lists(st.floats(0, 10_000), min_size=1))
def test_the_estimate_stays_between_the_samples(samples: list[float]) -> None:
    rtt = 0.0
    for sample in samples:
        rtt = POLICY.smooth(rtt, sample)
    assert min(samples) - 1e-6 <= rtt <= max(*samples, 0.001) + 1e-6
