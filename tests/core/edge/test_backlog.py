"""How fast something works off what enters it, how long who enters will wait, and how much to have under way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.core.edge.backlog import Backlog, ConcurrencyLimit

TICK_MS = 100


def work(flow: Backlog, now_ms: int, ticks: int, per_tick: int, backlog: int) -> int:
    """So many ticks of a server that passes `per_tick` and always has `backlog` left."""
    for _ in range(ticks):
        flow.enter(max(backlog + per_tick - flow.waiting, 0))
        flow.leave(per_tick)
        now_ms += TICK_MS
        flow.look(now_ms)
    return now_ms


def test_the_delay_is_what_waits_over_the_rate() -> None:
    flow = Backlog(2.0, 0)
    flow.enter(500)
    assert flow.delay_ms == 250
    flow.leave(400)
    assert flow.delay_ms == 50


def test_a_busy_server_s_rate_is_found_from_above_and_from_below() -> None:
    for believed in (0.1, 100.0):
        flow = Backlog(believed, 0)
        work(flow, 0, 60, per_tick=500, backlog=20_000)
        assert abs(flow.rate_per_ms - 5) < 0.1


def test_an_idle_server_is_not_taken_for_a_slow_one() -> None:
    flow = Backlog(10.0, 0)
    work(flow, 0, 100, per_tick=3, backlog=0)
    assert flow.rate_per_ms == 10.0


def test_a_server_that_passes_nothing_is_believed_in_less_and_less_and_found_again() -> None:
    flow = Backlog(10.0, 0)
    now_ms = work(flow, 0, 60, per_tick=0, backlog=5000)
    assert 0 < flow.rate_per_ms < 0.1
    work(flow, now_ms, 20, per_tick=1000, backlog=5000)
    assert flow.rate_per_ms > 9


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 500)), max_size=50))
def test_the_rate_stays_between_what_was_believed_and_what_was_seen(steps: list[tuple[int, int, int]]) -> None:
    flow = Backlog(3.0, 0)
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
    window = ConcurrencyLimit(500, 10, 0)
    window.look(10.0)
    assert window.size == 500
    for took_ms, now_ms in ((80, 80), (40, 140), (90, 290)):
        window.took(took_ms, now_ms)
    window.look(10.0)
    assert window.size == 2 * 10 * 40
    window.look(1.0)
    assert window.size == 500


def test_a_time_is_forgotten_after_twenty_seconds() -> None:
    window = ConcurrencyLimit(1, 10, 0)
    window.took(10, 10)
    for second in (11, 22, 33):
        window.took(200, second * 1000 + 200)
    window.look(10.0)
    assert window.size == 2 * 10 * 200


def test_the_window_shrinks_while_urgent_items_wait_and_grows_back_when_they_do_not() -> None:
    window = ConcurrencyLimit(400, 10, 0)
    window.took(5, 0)
    sizes = []
    for urgent_ms in [100] * 20 + [4] * 60:
        window.urgent_took(urgent_ms)
        window.look(1.0)
        sizes.append(window.size)
    assert sizes[0] < 400
    assert sizes[19] == 200, "half of it is left to the others"
    assert sizes[:20] == sorted(sizes[:20], reverse=True)
    assert sizes[19:] == sorted(sizes[19:])
    assert sizes[-1] == 400


def test_the_window_grows_back_when_nothing_is_urgent_any_more() -> None:
    window = ConcurrencyLimit(400, 10, 0)
    window.took(5, 0)
    for _ in range(20):
        window.urgent_took(1000)
        window.look(1.0)
    for _ in range(60):
        window.look(1.0)
    assert window.size == 400


@given(st.lists(st.tuples(st.integers(1, 500), st.lists(st.integers(0, 10_000), max_size=3), st.floats(0.001, 1000)), max_size=40))
def test_the_window_never_closes(looks: list[tuple[int, list[int], float]]) -> None:
    window = ConcurrencyLimit(250, 10, 0)
    for number, (took_ms, urgent, rate_per_ms) in enumerate(looks):
        window.took(took_ms, number * TICK_MS)
        for urgent_ms in urgent:
            window.urgent_took(urgent_ms)
        window.look(rate_per_ms)
        assert window.size >= 250 // 2
