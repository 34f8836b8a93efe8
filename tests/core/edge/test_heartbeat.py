"""The heartbeat asks, waits, asks again, and gives up; a jittery path is asked less often."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.config import Config
from engine.core.edge.heartbeat import CALM_PONGS, MISSES_MAX, Heartbeat, HeartbeatAction

CONFIG = Config(heartbeat_ms=30_000, heartbeat_max_ms=120_000, pong_timeout_ms=5000)


def asked(beat: Heartbeat) -> int:
    """Let the next ping come; returns when it was sent."""
    now_ms = beat.due_ms
    assert beat.check(now_ms) is HeartbeatAction.PING
    return now_ms


def answered(beat: Heartbeat, after_ms: int) -> None:
    now_ms = asked(beat)
    beat.pong(beat.payload, now_ms + after_ms)


def test_nothing_is_asked_before_the_interval_is_over() -> None:
    beat = Heartbeat(CONFIG, 1000)
    assert beat.due_ms == 31_000
    assert beat.check(30_999) is HeartbeatAction.WAIT
    assert beat.check(31_000) is HeartbeatAction.PING


def test_a_pong_in_time_waits_for_the_next_interval_from_the_ping() -> None:
    beat = Heartbeat(CONFIG, 0)
    answered(beat, 40)
    assert beat.due_ms == 60_000
    assert beat.check(35_000) is HeartbeatAction.WAIT


def test_a_miss_asks_again_at_once_and_the_second_miss_is_the_end() -> None:
    beat = Heartbeat(CONFIG, 0)
    assert asked(beat) == 30_000
    assert beat.check(34_999) is HeartbeatAction.WAIT
    assert beat.check(35_000) is HeartbeatAction.PING
    assert beat.check(40_000) is HeartbeatAction.DEAD


def test_any_life_after_a_ping_counts_as_its_answer() -> None:
    beat = Heartbeat(CONFIG, 0)
    asked(beat)
    beat.alive()
    assert beat.check(35_000) is HeartbeatAction.WAIT
    assert beat.misses == 0


def test_life_between_two_pings_changes_nothing() -> None:
    beat = Heartbeat(CONFIG, 0)
    beat.alive()
    beat.pong(b"unasked", 10)
    assert beat.due_ms == 30_000


def test_a_miss_that_recovers_doubles_the_interval_up_to_the_maximum() -> None:
    beat = Heartbeat(CONFIG, 0)
    for expected in (60_000, 120_000, 120_000):
        asked(beat)
        again = asked(beat)
        beat.pong(beat.payload, again + 10)
        assert beat.interval_ms == expected


def test_a_late_pong_of_an_earlier_ping_recovers_but_does_not_measure() -> None:
    beat = Heartbeat(CONFIG, 0)
    asked(beat)
    late = beat.payload
    again = asked(beat)
    assert beat.payload != late
    beat.pong(late, again + 1)
    assert beat.misses == 0
    assert beat.interval_ms == 60_000


def test_a_round_trip_far_from_the_usual_doubles_the_interval() -> None:
    beat = Heartbeat(CONFIG, 0)
    answered(beat, 50)
    answered(beat, 55)
    assert beat.interval_ms == 30_000
    answered(beat, 900)
    assert beat.interval_ms == 60_000


def test_small_absolute_differences_are_not_jitter() -> None:
    beat = Heartbeat(CONFIG, 0)
    answered(beat, 1)
    answered(beat, 90)
    assert beat.interval_ms == 30_000


def test_calm_pongs_bring_the_interval_back() -> None:
    beat = Heartbeat(CONFIG, 0)
    for _ in range(2):
        asked(beat)
        again = asked(beat)
        beat.pong(beat.payload, again + 20)
    assert beat.interval_ms == 120_000
    for _ in range(2 * CALM_PONGS):
        answered(beat, 20)
    assert beat.interval_ms == 30_000


@given(st.lists(st.one_of(st.none(), st.integers(0, 4999)), max_size=60))
def test_the_interval_stays_in_bounds_and_only_silence_kills(delays: list[int | None]) -> None:
    """None: the ping is not answered; a number: the pong comes after so many milliseconds."""
    beat = Heartbeat(CONFIG, 0)
    unanswered = 0
    for delay in delays:
        now_ms = beat.due_ms
        verdict = beat.check(now_ms)
        assert verdict is not HeartbeatAction.WAIT
        if verdict is HeartbeatAction.DEAD:
            assert unanswered == MISSES_MAX
            return
        assert unanswered < MISSES_MAX
        if delay is None:
            unanswered += 1
        else:
            unanswered = 0
            beat.pong(beat.payload, now_ms + delay)
        assert CONFIG.heartbeat_ms <= beat.interval_ms <= CONFIG.heartbeat_max_ms
        assert beat.due_ms > now_ms
