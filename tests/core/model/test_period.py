"""Wake-ups that tasks share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.core.model.period import until_next

NOW_S = st.floats(min_value=0, max_value=1e8)
PERIODS_S = st.sampled_from([0.1, 0.25, 0.5, 1.0, 2.0, 30.0])


@given(NOW_S, PERIODS_S)
def test_a_wait_is_about_a_period_at_most(now_s: float, period_s: float) -> None:
    assert 0.09 * period_s <= until_next(now_s, period_s) <= 1.11 * period_s


@given(NOW_S, NOW_S)
def test_tasks_of_one_period_that_wait_at_different_times_wake_at_the_same(one_s: float, other_s: float) -> None:
    ends = [(now_s + until_next(now_s, 1.0)) % 1.0 for now_s in (one_s, other_s)]

    assert all(min(end, 1 - end) < 1e-6 for end in ends)


def test_a_timer_that_rang_early_is_not_set_again_for_the_same_time() -> None:
    assert until_next(41.9996, 1.0) > 1.0
