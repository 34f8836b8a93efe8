"""The timing wheel against a sorted list, and its promises about order, time and cost."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from engine.core.model.constants import AT_MAX_MS
from engine.core.scheduler.timer_wheel import NEVER, TimerWheel

START = 1_790_000_000_123
HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS

# Around the widths of the levels, where a wheel goes wrong, as well as anywhere.
_edges = st.sampled_from([0, 1, 255, 256, 257, 511, 512, 513, 65_535, 65_536, 65_537, 131_071, 131_072, 1 << 24, 1 << 32, 40 * YEAR_MS])
_delays = st.one_of(_edges, st.integers(0, 600), st.integers(0, 200_000), st.integers(0, 2 * YEAR_MS))
_steps = st.one_of(_edges.filter(lambda step: step < YEAR_MS), st.integers(0, 600), st.integers(0, 200_000))


class AgainstASortedList(RuleBasedStateMachine):
    keys = Bundle("keys")

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.wheel: TimerWheel[str] = TimerWheel(START)
        self.model: dict[str, tuple[int, int]] = {}
        self.armings = 0

    @rule(target=keys, name=st.sampled_from([f"k{n}" for n in range(12)]))
    def key(self, name: str) -> str:
        return name

    def _arm(self, key: str, at_ms: int) -> None:
        self.armings += 1
        self.wheel.arm(key, at_ms)
        self.model[key] = (at_ms, self.armings)

    @rule(key=keys, delay=_delays)
    def arm(self, key: str, delay: int) -> None:
        self._arm(key, self.now + delay)

    @rule(key=keys, late=st.integers(1, 1000))
    def arm_for_the_past(self, key: str, late: int) -> None:
        self._arm(key, self.now - late)

    @rule(key=keys, boundary=st.integers(-1, 1), bits=st.sampled_from([8, 16, 24]), ahead=st.integers(1, 3))
    def arm_at_a_boundary(self, key: str, boundary: int, bits: int, ahead: int) -> None:
        self._arm(key, max((((self.now >> bits) + ahead) << bits) + boundary, 0))

    @rule(key=keys)
    def cancel(self, key: str) -> None:
        assert self.wheel.cancel(key) == (self.model.pop(key, None) is not None)

    def _due(self) -> list[str]:
        return sorted((key for key, (at_ms, _) in self.model.items() if at_ms <= self.now), key=lambda key: self.model[key])

    @rule(step=_steps)
    def advance(self, step: int) -> None:
        self.now += step
        expected = self._due()
        assert self.wheel.advance(self.now) == expected
        for key in expected:
            del self.model[key]

    @rule(step=_steps, limit=st.integers(0, 4))
    def advance_by_a_few(self, step: int, limit: int) -> None:
        self.now += step
        expected = self._due()[:limit]
        assert self.wheel.advance(self.now, limit) == expected
        for key in expected:
            del self.model[key]

    @rule(step=st.integers(1, 100_000))
    def the_clock_steps_back(self, step: int) -> None:
        self.now -= step

    @rule()
    def sleep_until_told(self) -> None:
        """As the shell does: whatever is due is due at a moment the wheel named."""
        at_ms = self.wheel.next_at()
        if at_ms < NEVER:
            self.now = max(self.now, at_ms)
            self.advance(0)

    @invariant()
    def holds_the_same(self) -> None:
        assert len(self.wheel) == len(self.model)
        for key, (at_ms, _) in self.model.items():
            assert key in self.wheel
            assert self.wheel.due_ms(key) == at_ms

    @invariant()
    def never_sleeps_past_the_first(self) -> None:
        at_ms = self.wheel.next_at()
        if not self.model:
            assert at_ms == NEVER
        else:
            assert at_ms < NEVER
            assert at_ms <= min(self.model.values())[0]


AgainstASortedList.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestTheWheelBehavesLikeASortedList = AgainstASortedList.TestCase


def test_timers_of_one_millisecond_are_due_in_arming_order_even_across_levels() -> None:
    wheel: TimerWheel[str] = TimerWheel(START)
    at_ms = START + 70_000
    wheel.arm("far", at_ms)
    wheel.advance(at_ms - 300)
    wheel.arm("near", at_ms)
    wheel.advance(at_ms - 2)
    wheel.arm("last", at_ms)
    assert wheel.advance(at_ms) == ["far", "near", "last"]


def test_a_timer_armed_again_is_due_once_at_its_new_time() -> None:
    wheel: TimerWheel[str] = TimerWheel(START)
    wheel.arm("a", START + 10)
    wheel.arm("a", START + 500)
    assert wheel.advance(START + 499) == []
    assert wheel.advance(START + 500) == ["a"]


def test_a_cancelled_timer_never_fires() -> None:
    wheel: TimerWheel[str] = TimerWheel(START)
    wheel.arm("a", START + 10)
    assert wheel.cancel("a")
    assert not wheel.cancel("a")
    assert wheel.next_at() == NEVER
    assert wheel.advance(START + YEAR_MS) == []


def test_a_clock_that_steps_back_fires_nothing_early() -> None:
    wheel: TimerWheel[str] = TimerWheel(START)
    wheel.advance(START + 10_000)
    wheel.arm("a", START + 5_000)
    assert wheel.advance(START) == []
    assert wheel.advance(START + 4_999) == []
    assert wheel.advance(START + 5_000) == ["a"]


@pytest.mark.parametrize("at_ms", [-1, AT_MAX_MS + 1])
def test_a_due_time_no_wheel_can_hold_is_an_error(at_ms: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        TimerWheel(START).arm("a", at_ms)


def test_skipping_empty_years_costs_next_to_nothing() -> None:
    wheel: TimerWheel[str] = TimerWheel(START)
    wheel.arm("far", START + 30 * YEAR_MS)
    began_s = time.process_time()
    fired: list[Any] = []
    for hour in range(10_000):
        fired += wheel.advance(START + hour * HOUR_MS)
    assert fired == []
    assert time.process_time() - began_s < 1.0
    assert wheel.advance(START + 30 * YEAR_MS) == ["far"]


def test_asking_for_the_next_moment_leads_to_a_far_timer_in_a_few_wakes() -> None:
    wheel: TimerWheel[str] = TimerWheel(START)
    wheel.arm("far", START + YEAR_MS)
    wakes = 0
    while (at_ms := wheel.next_at()) < NEVER:
        wakes += 1
        wheel.advance(at_ms)
    assert wakes <= 6


class _Counted(int):
    """A time that counts comparisons with others."""

    comparisons = 0

    def __lt__(self, other: int) -> bool:
        _Counted.comparisons += 1
        return int(self) < int(other)

    def __le__(self, other: int) -> bool:
        _Counted.comparisons += 1
        return int(self) <= int(other)


def test_late_timers_that_leave_in_small_parts_are_not_sorted_each_time() -> None:
    """Those that were due while the engine was down, for a shard that takes some hundred at once."""
    wheel: TimerWheel[int] = TimerWheel(START)
    for number in range(4000):
        wheel.arm(number, _Counted(START - 1 - number))
    _Counted.comparisons = 0
    left: list[int] = []
    while part := wheel.advance(START, 20):
        left += part
    assert left == list(range(4000))[::-1]
    assert _Counted.comparisons < 4000 * 50


def test_late_timers_that_are_cancelled_leave_no_memory_behind() -> None:
    wheel: TimerWheel[str] = TimerWheel(START)
    wheel.arm("b", START - 1)
    tracemalloc.start()
    try:
        for late_ms in range(100_000):
            wheel.arm("a", START - 1 - late_ms)
            wheel.cancel("a")
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
    assert wheel.advance(START) == ["b"]


def test_a_timer_takes_less_than_300_bytes() -> None:
    keys = [f"default:user-{n}" for n in range(50_000)]
    tracemalloc.start()
    wheel: TimerWheel[str] = TimerWheel(START)
    for n, key in enumerate(keys):
        wheel.arm(key, START + (n * 7919) % 60_000)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / len(keys) < 300
    assert len(wheel.advance(START + 60_000)) == len(keys)
