"""The breaker of one peer, with the clock of the test."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.core.edge.circuit_breaker import BreakerLimits, BreakerState, CircuitBreaker

WINDOW_MS, OPEN_MS = 1000, 5000
LIMITS = BreakerLimits(error_ratio=0.5, window_ms=WINDOW_MS, calls_min=4, open_ms=OPEN_MS, probes=3)


def ended(breaker: CircuitBreaker, now_ms: int, *, good: int = 0, bad: int = 0, began_ms: int | None = None) -> BreakerState:
    """So many requests end, and the breaker looks at them."""
    breaker.look(now_ms)
    for _ in range(good):
        breaker.succeeded(1)
    for _ in range(bad):
        breaker.failed(now_ms if began_ms is None else began_ms)
    breaker.look(now_ms)
    return breaker.state


def opened(now_ms: int = 0) -> CircuitBreaker:
    breaker = CircuitBreaker(LIMITS, 0)
    assert ended(breaker, now_ms, bad=4) is BreakerState.OPEN
    return breaker


@pytest.mark.parametrize(
    ("good", "bad", "state"),
    [(2, 2, BreakerState.OPEN), (3, 2, BreakerState.CLOSED), (0, 3, BreakerState.CLOSED), (0, 4, BreakerState.OPEN)],
)
def test_it_opens_when_half_of_enough_requests_failed(good: int, bad: int, state: BreakerState) -> None:
    assert ended(CircuitBreaker(LIMITS, 0), 1, good=good, bad=bad) is state


def test_only_what_ended_within_the_window_counts() -> None:
    breaker = CircuitBreaker(LIMITS, 0)
    for now_ms in range(0, WINDOW_MS, 100):
        ended(breaker, now_ms, good=1)
    assert ended(breaker, WINDOW_MS, bad=3) is BreakerState.CLOSED, "ten succeeded in the window"
    assert ended(breaker, 2 * WINDOW_MS - 200, bad=1) is BreakerState.OPEN, "they have left it"
    breaker = CircuitBreaker(LIMITS, 0)
    ended(breaker, 0, bad=3)
    assert ended(breaker, 2 * WINDOW_MS, bad=1) is BreakerState.CLOSED


def test_open_nothing_passes_until_its_time_is_over_and_a_late_answer_changes_nothing() -> None:
    breaker = opened()
    assert not breaker.admits(0)
    assert (breaker.retry_ms(0), breaker.retry_ms(OPEN_MS - 1)) == (OPEN_MS, 1)
    assert ended(breaker, OPEN_MS - 1, good=100) is BreakerState.OPEN
    assert ended(breaker, OPEN_MS) is BreakerState.HALF_OPEN
    assert breaker.retry_ms(OPEN_MS) == 0


def test_half_open_a_few_pass_and_their_answers_close_it() -> None:
    breaker = opened()
    breaker.look(OPEN_MS)
    assert [breaker.admits(unanswered) for unanswered in range(4)] == [True, True, True, False]
    assert ended(breaker, OPEN_MS + 1, good=2) is BreakerState.HALF_OPEN
    assert ended(breaker, OPEN_MS + 2, good=1) is BreakerState.CLOSED
    assert breaker.admits(1000)


def test_probes_that_fail_open_it_again_for_as_long() -> None:
    breaker = opened()
    breaker.look(OPEN_MS)
    assert ended(breaker, OPEN_MS + 10, good=1, bad=2) is BreakerState.OPEN
    assert breaker.retry_ms(OPEN_MS + 10) == OPEN_MS


def test_a_new_session_that_works_lets_probes_through_at_once() -> None:
    breaker = opened()
    breaker.session_works(7)
    assert breaker.state is BreakerState.HALF_OPEN
    assert ended(breaker, 8, good=3) is BreakerState.CLOSED


def test_what_began_before_the_session_works_is_no_failure_of_it() -> None:
    breaker = opened()
    breaker.session_works(100)
    assert ended(breaker, 101, bad=50, began_ms=99) is BreakerState.HALF_OPEN
    assert ended(breaker, 102, bad=3, began_ms=100) is BreakerState.OPEN
    closed = CircuitBreaker(LIMITS, 0)
    ended(closed, 50, bad=3)
    closed.session_works(100)
    assert ended(closed, 101, bad=50, began_ms=99) is BreakerState.CLOSED
    assert closed.admits(1000), "a session that works is no reason to let fewer through"


def test_requests_that_two_sessions_have_lost_open_it_before_the_next_one_answers() -> None:
    breaker = CircuitBreaker(LIMITS, 0)
    breaker.session_works(10)
    breaker.lost(4, 20)
    assert breaker.state is BreakerState.OPEN
    breaker.session_works(30)
    breaker.lost(3, 40)
    assert breaker.state is BreakerState.OPEN


class Breaker(RuleBasedStateMachine):
    """Any history: it opens for a reason, and no peer is avoided for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.breaker = CircuitBreaker(LIMITS, 0)
        self.open_since_ms = 0
        self.failures_ms: list[int] = []  # that the breaker may count

    def look(self) -> None:
        before = self.breaker.state
        self.breaker.look(self.now_ms)
        self.changed(before)

    def changed(self, before: BreakerState) -> None:
        state = self.breaker.state
        if state is BreakerState.OPEN and before is not BreakerState.OPEN:
            self.open_since_ms = self.now_ms
            assert self.failures_ms, "it opened without a failure"
        if state is not before:
            self.failures_ms = []

    @rule(ms=st.integers(0, WINDOW_MS))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        self.look()

    @rule(count=st.integers(1, 5))
    def requests_are_answered(self, count: int) -> None:
        for _ in range(count):
            self.breaker.succeeded(1)
        self.look()

    @rule(count=st.integers(1, 5), ago_ms=st.integers(0, WINDOW_MS))
    def requests_fail(self, count: int, ago_ms: int) -> None:
        for _ in range(count):
            self.breaker.failed(self.now_ms - ago_ms)
            self.failures_ms.append(self.now_ms)
        self.look()

    @rule(count=st.integers(0, 5))
    def a_session_is_lost(self, count: int) -> None:
        before = self.breaker.state
        self.failures_ms.extend([self.now_ms] * count)
        self.breaker.lost(count, self.now_ms)
        self.changed(before)

    @rule()
    def a_session_works(self) -> None:
        self.breaker.session_works(self.now_ms)
        self.failures_ms = []
        assert self.breaker.admits(0)

    @precondition(lambda self: self.breaker.state is BreakerState.HALF_OPEN)
    @rule()
    def every_probe_is_answered(self) -> None:
        for _ in range(LIMITS.calls_min * 10):
            self.breaker.succeeded(1)
        self.look()
        assert self.breaker.state is BreakerState.CLOSED

    @invariant()
    def it_is_open_for_its_time_at_most(self) -> None:
        if self.breaker.state is BreakerState.OPEN:
            assert 0 < self.breaker.retry_ms(self.now_ms) <= OPEN_MS - (self.now_ms - self.open_since_ms)
        else:
            assert self.breaker.admits(0)


TestBreaker = Breaker.TestCase
