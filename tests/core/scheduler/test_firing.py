"""Handing out what is due: claims, room, retries and compensation, without storage."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import Config
from engine.core.model.envelope import Envelope
from engine.core.model.routing import partition_of, spread, timer_id
from engine.core.scheduler.claim_horizon import ClaimHorizon
from engine.core.scheduler.firing import Firing
from engine.core.scheduler.timer_wheel import NEVER
from engine.core.wire.records import Fire, Timer

NOW = 1_790_000_000_000
KEY = "t:u"
PARTITION = partition_of(KEY)
SESSION = "shard-0/1"


def timer(unique: str, delay_ms: int = 100, body: bytes = b"") -> Timer:
    return Timer(timer_id(KEY, unique), KEY, NOW + delay_ms, NOW, 1000, Envelope(unique, b"12345678", 1, True, body))


A, B, C = timer("a"), timer("b", 200), timer("c", 300)


def firing_of(*timers: Timer, reach_ms: int = NOW + 10**9, opened: bool = True, **settings: Any) -> Firing:
    config = Config(**settings)
    firing = Firing(config, spread(1), ClaimHorizon(config, NOW, reach_ms, NOW))
    if opened:
        firing.open(0, SESSION, NOW)
    for one in timers:
        firing.add(one, NOW)
    return firing


def handed(firing: Firing, now_ms: int) -> list[str]:
    """As the scheduler asks: only when `next_ms` has come."""
    out = firing.due(now_ms) if firing.next_ms <= now_ms else []
    assert all(send.session == SESSION for send in out)
    return [one.sid for send in out if isinstance(send.record, Fire) for one in send.record.timers]


def test_a_timer_is_handed_out_at_its_time_once_and_is_claimed_from_then_on() -> None:
    firing = firing_of(B, A)
    assert handed(firing, A.due_ms - 1) == []
    assert (firing.next_ms, firing.due_ms) == (A.due_ms, A.due_ms)
    assert not firing.is_claimed(A.sid)
    assert handed(firing, B.due_ms) == [A.sid, B.sid]
    assert handed(firing, B.due_ms) == []
    assert firing.claimed_of(KEY) == list(firing.of(KEY))
    assert firing.done(A.sid) is A
    assert firing.get(A.sid) is None


def test_a_timer_that_is_added_brings_the_next_look_forward() -> None:
    firing = firing_of(B)
    assert handed(firing, NOW) == []
    firing.add(A, NOW)
    assert (firing.next_ms, firing.due_ms) == (A.due_ms, A.due_ms)


def test_nothing_is_handed_out_beyond_the_reach_of_the_claims() -> None:
    firing = firing_of(A, B, reach_ms=A.due_ms, timer_refire_ms=1_000_000)
    assert handed(firing, B.due_ms) == [A.sid]
    assert (firing.next_ms, firing.due_ms) == (B.due_ms + 1_000_000, B.due_ms)


def test_a_timer_due_before_the_take_over_counts_as_claimed_unless_it_is_young() -> None:
    firing = firing_of()
    old, young = timer("old", -5), timer("young", -5)
    firing.add(old, NOW)
    firing.add(young, NOW, young=True)
    assert firing.is_claimed(old.sid)
    assert not firing.is_claimed(young.sid)


def test_a_frozen_timer_fires_only_after_it_was_thawed_and_a_claimed_one_cannot_be_frozen() -> None:
    firing = firing_of(A)
    firing.freeze(A.sid)
    assert handed(firing, A.due_ms) == []
    firing.thaw(A.sid, A.due_ms + 50)
    assert handed(firing, A.due_ms + 50) == [A.sid]
    firing.close(0, A.due_ms + 60)
    firing.freeze(A.sid)
    firing.open(0, SESSION, A.due_ms + 70)
    assert handed(firing, A.due_ms + 70) == [A.sid], "it may have taken effect: it is handed out again"


def test_a_shard_without_a_session_gets_nothing_and_then_everything_due_in_order() -> None:
    firing = firing_of(C, A, B, opened=False)
    assert firing.due(C.due_ms) == []
    assert (firing.next_ms, firing.due_ms) == (NEVER, NEVER)
    firing.open(0, SESSION, C.due_ms)
    assert handed(firing, C.due_ms) == [A.sid, B.sid, C.sid]


def test_a_shard_has_no_more_unconfirmed_timers_than_its_limit() -> None:
    many = [timer(f"{n:03}", n) for n in range(1, 301)]
    firing = firing_of(*many, timer_claims_max=100)
    assert handed(firing, NOW + 400) == [one.sid for one in many[:100]]
    firing.done(many[0].sid)
    assert handed(firing, NOW + 400) == [many[100].sid]


def test_what_failed_is_handed_out_again_after_a_wait_that_doubles() -> None:
    firing = firing_of(A, timer_retry_first_ms=100, timer_retry_cap_ms=100_000, timer_failures_max=10)
    now_ms = A.due_ms
    assert handed(firing, now_ms) == [A.sid]
    for wait_ms in (100, 200, 400):
        firing.failed_sids([A.sid, "0-unknown"], now_ms)
        assert handed(firing, now_ms + wait_ms - 1) == []
        now_ms += wait_ms
        assert handed(firing, now_ms) == [A.sid]
    assert (firing.failed, firing.refired) == (3, 3)


def test_a_timer_of_which_nothing_is_heard_has_failed_after_the_refire_time() -> None:
    firing = firing_of(A, timer_refire_ms=5000, timer_retry_first_ms=100)
    handed(firing, A.due_ms)
    assert firing.next_ms == A.due_ms + 5000
    assert handed(firing, A.due_ms + 4999) == []
    assert firing.failed == 0
    assert handed(firing, A.due_ms + 5000) == []
    assert firing.failed == 1
    assert handed(firing, A.due_ms + 5100) == [A.sid]


def test_a_timer_that_failed_often_waits_for_a_compensation_batch_and_is_never_given_up() -> None:
    firing = firing_of(A, timer_failures_max=1, timer_compensate_ms=7000)
    handed(firing, A.due_ms)
    for round_number in range(1, 4):
        failed_ms = A.due_ms + (round_number - 1) * 7000
        firing.failed_sids([A.sid], failed_ms)
        assert (firing.degraded, firing.compensated) == (1, round_number)
        assert handed(firing, failed_ms + 6999) == []
        assert handed(firing, failed_ms + 7000) == [A.sid]
        assert firing.degraded == 0


def test_a_postponed_timer_is_not_claimed_and_fires_no_more() -> None:
    firing = firing_of(A, B)
    assert firing.postpone(A.sid, 0) is None, "it was not handed out"
    handed(firing, A.due_ms)
    assert firing.postpone(A.sid, 1) is None, "another shard has it, which may be about to make it take effect"
    assert firing.is_claimed(A.sid)
    assert firing.postpone(A.sid, 0) is A
    assert not firing.is_claimed(A.sid)
    assert handed(firing, A.due_ms + 10**6) == [B.sid]


def test_timers_of_a_shard_that_is_away_are_left_to_storage_except_those_only_memory_has_as_claimed() -> None:
    firing = firing_of(A, B)
    handed(firing, A.due_ms)
    firing.close(0, A.due_ms)
    firing.evict_unreachable()
    assert firing.of(KEY) == {A.sid}
    assert firing.is_left_to_storage(KEY)
    assert firing.open(0, SESSION, B.due_ms), "they have to be read again"
    assert not firing.is_left_to_storage(KEY)


def test_memory_is_given_back_when_timers_leave_it() -> None:
    firing = firing_of(A, timer("large", 400, b"x" * 5000))
    assert firing.bytes > 5000
    firing.evict_from(NOW + 400)
    assert firing.of(KEY) == {A.sid}
    assert firing.bytes < 5000
    firing.forget(A.sid)
    assert (len(firing), firing.bytes) == (0, 0)
    assert firing.forget(A.sid) is None


@pytest.mark.parametrize("frozen", [False, True])
def test_another_due_time_in_storage_is_followed_unless_a_request_decides_about_the_timer(frozen: bool) -> None:
    firing = firing_of(A)
    if frozen:
        firing.freeze(A.sid)
    firing.correct(timer("a", 900), NOW, young=False)
    found = firing.get(A.sid)
    assert found is not None
    assert found.due_ms == (A.due_ms if frozen else NOW + 900)
