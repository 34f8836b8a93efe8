"""The retry policy against the figures of its requirement."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.mailbox.retry import PATH_MEMORY_MS, EdgeRoundTrip, RetryPolicy
from engine.core.wire.records import Ack, Deliver
from tests.support.shard_world import EDGE, World, of

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


def test_what_a_path_is_known_to_take_is_the_least_that_is_waited_for_on_it() -> None:
    assert POLICY.wait_ms(10, 1, path_ms=500) == 900
    assert POLICY.wait_ms(600, 1, path_ms=500) == 1080
    assert POLICY.wait_ms(10, 1, path_ms=5000) == 2000


def test_a_path_is_forgotten_when_nobody_has_been_heard_for_a_while() -> None:
    path = EdgeRoundTrip()
    for _ in range(50):
        path.sample(800, 1000)
    assert path.rtt_ms(1000 + PATH_MEMORY_MS - 1) == pytest.approx(800, rel=0.01)
    assert path.rtt_ms(1000 + PATH_MEMORY_MS) == 0
    path.sample(8, 1000 + PATH_MEMORY_MS)
    assert path.rtt_ms(1000 + PATH_MEMORY_MS) == 1


def storm(users: int, answer_ms: int, spread_ms: int) -> int:
    """All return in one moment, 3 missed messages each; the first ACK comes after `answer_ms`, the last `spread_ms` later: repeats?"""
    world = World()
    for user in range(users):
        for _ in range(3):
            world.post(f"u{user}")
    world.settle()
    for user in range(users):
        world.attach(user, f"u{user}")
    world.settle()
    began_ms, answered, armed = world.now_ms, 0, dict[str, int]()
    while answered < users:
        world.now_ms += 5
        while answered < users and began_ms + answer_ms + answered * spread_ms // users <= world.now_ms:
            world.core.handle(EDGE, [Ack(answered, 3)], world.now_ms)
            answered += 1
        armed.update(world.core.delivery.arms(world.now_ms))
        due = [key for key, at_ms in armed.items() if at_ms <= world.now_ms]
        world.core.delivery.due(due, world.now_ms)
        for key in due:
            del armed[key]
    return sum(attempt > 1 for record in of(world.said(), Deliver) for _, attempt, _ in record.messages)


@pytest.mark.parametrize(("answer_ms", "spread_ms", "users_max"), [(300, 1000, 2), (500, 300, 20), (700, 500, 20)])
def test_when_thousands_return_at_once_few_get_what_they_missed_a_second_time(answer_ms: int, spread_ms: int, users_max: int) -> None:
    """Their ACKs take longer than the first timeout, all of them, because everybody waits in the same queues. The first answers tell,
    and where none comes in time, those whose timers are the first to be due."""
    assert storm(1000, answer_ms, spread_ms) <= 3 * users_max


def test_few_that_do_not_answer_make_nobody_else_wait() -> None:
    assert storm(3, 1000, 0) == 3 * 3
