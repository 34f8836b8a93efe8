"""How fast something works off what enters it, how long who enters will wait, and how much to have under way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.core.flow import Flow, Latency

TICK_MS = 100


def work(flow: Flow, now_ms: int, ticks: int, per_tick: int, backlog: int) -> int:
    """So many ticks of a server that passes `per_tick` and always has `backlog` left."""
    for _ in range(ticks):
        flow.enter(max(backlog + per_tick - flow.waiting, 0))
        flow.leave(per_tick)
        now_ms += TICK_MS
        flow.look(now_ms)
    return now_ms


def test_the_delay_is_what_waits_over_the_rate() -> None:
    flow = Flow(2.0, 0)
    flow.enter(500)
    assert flow.delay_ms == 250
    flow.leave(400)
    assert flow.delay_ms == 50


def test_a_busy_server_s_rate_is_found_from_above_and_from_below() -> None:
    for believed in (0.1, 100.0):
        flow = Flow(believed, 0)
        work(flow, 0, 60, per_tick=500, backlog=20_000)
        assert abs(flow.rate_per_ms - 5) < 0.1


def test_an_idle_server_is_not_taken_for_a_slow_one() -> None:
    flow = Flow(10.0, 0)
    work(flow, 0, 100, per_tick=3, backlog=0)
    assert flow.rate_per_ms == 10.0


def test_a_server_that_passes_nothing_is_believed_in_less_and_less_and_found_again() -> None:
    flow = Flow(10.0, 0)
    now_ms = work(flow, 0, 60, per_tick=0, backlog=5000)
    assert 0 < flow.rate_per_ms < 0.1
    work(flow, now_ms, 20, per_tick=1000, backlog=5000)
    assert flow.rate_per_ms > 9


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 500)), max_size=50))
def test_the_rate_stays_between_what_was_believed_and_what_was_seen(steps: list[tuple[int, int, int]]) -> None:
    flow = Flow(3.0, 0)
    now_ms, fastest, passed = 0, 3.0, 0
    for entering, leaving, elapsed_ms in steps:
        flow.enter(entering)
        leaves = min(leaving, flow.waiting)
        passed += leaves
        flow.leave(leaves)
        now_ms += elapsed_ms
        flow.look(now_ms)
        if elapsed_ms:
            fastest, passed = max(fastest, passed / elapsed_ms), 0
        assert 0 < flow.rate_per_ms <= fastest
        assert flow.waiting >= 0
        assert flow.delay_ms >= 0


def test_the_window_is_twice_what_the_shortest_time_needs_and_never_below_its_floor() -> None:
    latency = Latency(0)
    assert latency.window(10.0, 500) == 500
    for ref, (sent_ms, answered_ms) in enumerate(((0, 80), (100, 140), (200, 290))):
        latency.sent(ref, sent_ms)
        latency.over(answered_ms, answered=True)
    assert latency.window(10.0, 500) == 2 * 10 * 40
    assert latency.window(1.0, 500) == 500


def test_an_item_that_was_sent_again_or_given_up_tells_no_time() -> None:
    latency = Latency(0)
    latency.sent(1, 0)
    latency.over(5, answered=False)
    assert latency.window(10.0, 7) == 7


def test_a_time_is_forgotten_after_twenty_seconds() -> None:
    latency = Latency(0)
    latency.sent(1, 0)
    latency.over(10, answered=True)
    for second in (11, 22, 33):
        latency.sent(2, second * 1000)
        latency.over(second * 1000 + 200, answered=True)
    assert latency.window(10.0, 1) == 2 * 10 * 200
