"""The link's two state machines over a network that reorders, and calls that never come back."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.wire.link import RESET, Callee, Caller, LinkLimits, LinkOverflow
from engine.core.wire.pacing import CallBudget
from engine.core.wire.records import Ack, AckIds, encode

LIMITS = LinkLimits(
    pacing_ms=2,
    pacing_max_ms=8,
    pacing_records=64,
    lazy_pacing_ms=20,
    call_ms=0.05,
    budget_pacing_max_ms=8,
    park_ms=1000,
    timeout_ms=3000,
    inflight_max=8,
    batch_bytes_max=200,
    queue_bytes_max=100_000,
)


def unlimited() -> CallBudget:
    """A budget that is never exceeded."""
    return CallBudget(1e9)


def decoded(batches: list[bytes]) -> list[Any]:
    return [record for batch in batches for record in msgspec.msgpack.decode(batch, type=list[Ack])]


def only(due: list[tuple[int, bytes]]) -> tuple[int, bytes]:
    """The one call or reply that is due."""
    assert len(due) == 1
    return due[0]


def opened(now_ms: float = 0) -> tuple[Caller, Callee]:
    """A session whose first exchange is over, and one call parked."""
    caller, callee = Caller("edge-0/x", LIMITS, now_ms, unlimited()), Callee("edge-0/x", LIMITS, now_ms, unlimited())
    seq, batch = only(caller.calls(now_ms))
    callee.request(seq, batch, now_ms)
    answered, data = only(callee.replies(now_ms))
    caller.reply(answered, data, now_ms)
    seq, batch = only(caller.calls(now_ms))
    callee.request(seq, batch, now_ms)
    return caller, callee


@given(seed=st.integers(0, 2**32), count=st.integers(1, 60))
def test_records_arrive_once_and_in_order_both_ways_whatever_order_calls_take(seed: int, count: int) -> None:
    dice = random.Random(seed)
    caller, callee = Caller("s", LIMITS, 0, unlimited()), Callee("s", LIMITS, 0, unlimited())
    requests: list[tuple[int, bytes]] = []
    replies: list[tuple[int, bytes]] = []
    up: list[Any] = []
    down: list[Any] = []
    now_ms, sent_up, sent_down = 0.0, 0, 0
    while len(up) < count or len(down) < count:
        now_ms += dice.choice([0, 0.5, 3, 30])
        assert now_ms < 1_000_000, "the link has come to rest with records still waiting"
        if sent_up < count and dice.random() < 0.5:
            caller.outbox.push([Ack(1, sent_up)], now_ms)
            sent_up += 1
        if sent_down < count and dice.random() < 0.5:
            callee.outbox.push([Ack(2, sent_down)], now_ms)
            sent_down += 1
        requests += caller.calls(now_ms)
        if requests and dice.random() < 0.7:
            up += decoded(callee.request(*requests.pop(dice.randrange(len(requests))), now_ms))
        replies += callee.replies(now_ms)
        if replies and dice.random() < 0.7:
            down += decoded(caller.reply(*replies.pop(dice.randrange(len(replies))), now_ms))
        assert len(caller._inflight) <= LIMITS.inflight_max
    assert [record.seq for record in up] == list(range(count))
    assert [record.seq for record in down] == list(range(count))


def test_the_first_record_leaves_at_once_and_later_ones_wait_for_the_pacing() -> None:
    caller, _ = opened()
    caller.outbox.push([Ack(1, 1)], 10)
    assert caller.calls(10)
    caller.outbox.push([Ack(1, 2)], 10.5)
    assert not caller.calls(10.5)
    assert caller.wake_ms == 12
    assert caller.calls(12)


def test_a_record_due_within_half_a_millisecond_leaves_at_once() -> None:
    caller, callee = opened()
    caller.outbox.push([Ack(1, 1)], 10)
    callee.request(*only(caller.calls(10)), 10)
    caller.outbox.push([Ack(1, 2)], 11)
    assert not caller.calls(11.4)
    assert caller.wake_ms == 12
    assert caller.calls(11.5)
    callee.outbox.push([Ack(1, 1)], 10)
    only(callee.replies(10))
    callee.outbox.push([Ack(1, 2)], 11)
    assert not callee.replies(13.4)
    assert callee.wake_ms == 14
    assert callee.replies(13.5)


def test_lazy_records_wait_longer_but_ride_with_whatever_leaves_earlier_and_only_the_latest_goes() -> None:
    caller, callee = opened()
    caller.outbox.push_latest(7, Ack(7, 1), 10)
    caller.outbox.push_latest(7, Ack(7, 2), 11)
    assert not caller.calls(12)
    caller.outbox.push([Ack(1, 1)], 13)
    call = only(caller.calls(13))
    assert decoded(callee.request(*call, 13)) == [Ack(1, 1), Ack(7, 2)]


def test_a_lazy_record_that_is_promoted_leaves_before_what_follows() -> None:
    caller, callee = opened()
    caller.outbox.push_latest(7, Ack(7, 1), 10)
    caller.outbox.promote(7, 11)
    caller.outbox.push([Ack(7, 9)], 11)
    call = only(caller.calls(12))
    assert decoded(callee.request(*call, 12)) == [Ack(7, 1), Ack(7, 9)]


def test_request_0_is_answered_at_once_so_that_the_session_opens() -> None:
    caller, callee = Caller("s", LIMITS, 0, unlimited()), Callee("s", LIMITS, 0, unlimited())
    call = only(caller.calls(0))
    callee.request(*call, 0)
    assert callee.replies(0)


def test_a_parked_call_is_answered_when_its_lease_ends() -> None:
    _, callee = opened()
    assert not callee.replies(999)
    assert callee.replies(1000)


def requested(caller: Caller, callee: Callee, now_ms: float) -> None:
    """One more call with a record arrives."""
    caller.outbox.push([Ack(1, 1)], now_ms)
    callee.request(*only(caller.calls(now_ms)), now_ms)


def told(callee: Callee, now_ms: float) -> tuple[int, bytes]:
    """The callee says something, at once."""
    callee.outbox.push([Ack(2, 1)], now_ms)
    return only(callee.replies(now_ms))


def test_what_a_request_brings_about_leaves_at_once_with_the_call_before_it() -> None:
    caller, callee = opened()
    requested(caller, callee, 10)
    assert not callee.replies(10), "no empty reply"
    answered, data = told(callee, 11)
    assert answered == 1, "with the oldest call"
    assert decoded(caller.reply(answered, data, 12)) == [Ack(2, 1)]


def heard(second_ms: float) -> Caller:
    """A caller with one call under way, that got replies with records at 11 ms and at this time."""
    caller, callee = opened()
    caller.reply(*told(callee, 10), 11)
    callee.request(*only(caller.calls(11)), 11)
    caller.reply(*told(callee, second_ms - 1), second_ms)
    return caller


def test_two_calls_are_kept_under_way_for_a_lease_while_replies_with_records_follow_each_other() -> None:
    assert len(heard(10 + LIMITS.park_ms / 10).calls(10 + LIMITS.park_ms / 10)) == 2
    assert len(heard(20).calls(20 + LIMITS.park_ms)) == 1, "one is enough for a caller that hears nothing"


def test_one_call_is_kept_under_way_while_replies_with_records_are_rare() -> None:
    assert len(heard(11 + LIMITS.park_ms / 10).calls(11 + LIMITS.park_ms / 10)) == 1


def test_a_fourth_parked_call_is_answered_without_a_word_so_that_the_caller_may_go_on() -> None:
    caller, callee = opened()
    requested(caller, callee, 10)
    requested(caller, callee, 20)
    assert not callee.replies(20)
    requested(caller, callee, 30)
    assert len(callee.replies(30)) == 1


def test_replies_are_an_interval_apart_and_the_last_parked_call_is_kept_for_two() -> None:
    caller, callee = opened()
    requested(caller, callee, 10)
    requested(caller, callee, 20)
    told(callee, 20)
    callee.outbox.push([Ack(2, 2)], 21)
    assert not callee.replies(21)
    assert callee.wake_ms == 22
    assert callee.replies(22)
    callee.outbox.push([Ack(2, 3)], 22)
    assert not callee.replies(24)
    assert callee.wake_ms == 26
    assert callee.replies(26)


def test_what_is_pushed_later_leaves_when_it_was_said_to() -> None:
    caller, callee = opened()
    requested(caller, callee, 10)
    requested(caller, callee, 20)
    assert callee.open_at(20) <= 20
    callee.outbox.push([Ack(2, 1)], 20)
    assert callee.open_at(20) == 22
    assert callee.replies(20)
    assert callee.open_at(21) == 22
    callee.outbox.push([Ack(2, 2)], 21)
    assert callee.open_at(21) == 22
    assert callee.replies(22)


@pytest.mark.parametrize(("records", "interval_ms"), [(1, 2), (33, 2.5), (65, 3), (1000, 8)])
def test_the_interval_grows_with_the_batch_that_left_last(records: int, interval_ms: float) -> None:
    caller = Caller("s", msgspec.structs.replace(LIMITS, batch_bytes_max=1 << 20), 0, unlimited())
    seq, _ = only(caller.calls(0))
    caller.reply(seq, bytes(8) + encode([]), 0)
    for n in range(records):
        caller.outbox.push([Ack(1, n)], 10)
    assert caller.calls(10)
    caller.outbox.push([Ack(1, records)], 10)
    assert not caller.calls(10)
    assert caller.wake_ms == 10 + interval_ms


def test_an_empty_reply_does_not_count_for_the_pacing() -> None:
    caller, callee = opened()
    for now_ms in (10, 20, 30):
        requested(caller, callee, now_ms)
    assert callee.replies(30), "empty: a fourth call is parked"
    told(callee, 30)


def test_a_repeated_request_is_applied_once_and_answered_once() -> None:
    caller, callee = Caller("s", LIMITS, 0, unlimited()), Callee("s", LIMITS, 0, unlimited())
    caller.outbox.push([Ack(1, 1)], 0)
    call = only(caller.calls(0))
    assert len(callee.request(*call, 0)) == 1
    assert callee.request(*call, 0) == []
    assert len(callee.replies(LIMITS.park_ms)) == 1


def test_request_0_is_empty_and_nothing_follows_it_before_its_reply() -> None:
    caller, later = Caller("s", LIMITS, 0, unlimited()), Callee("s", LIMITS, 0, unlimited())
    caller.outbox.push([Ack(1, 1)], 0)
    (opening,) = caller.calls(0)
    assert later.request(*opening, 0) == [encode([])], "held up for long, it asks a later process for nothing"
    caller.outbox.push([Ack(1, 2)], 0)
    assert not caller.calls(100)


def test_a_reset_ends_the_session() -> None:
    caller = Caller("s", LIMITS, 0, unlimited())
    assert caller.calls(0)
    assert caller.reply(0, RESET, 1) == []
    assert caller.over
    assert not caller.calls(1)


def test_a_call_without_an_answer_ends_the_session() -> None:
    caller = Caller("s", LIMITS, 0, unlimited())
    assert caller.calls(0)
    assert not caller.calls(4000)
    assert not caller.over
    assert not caller.calls(4001)
    assert caller.over


def test_a_silent_caller_is_noticed() -> None:
    _, callee = opened()
    callee.replies(4000)
    assert not callee.over
    assert not callee.replies(4001)
    assert callee.over


def test_a_batch_has_a_size_and_an_oversized_record_still_goes() -> None:
    caller, callee = opened()
    big = "x" * 500
    caller.outbox.push([msgspec.json.decode(b"[4,1,1]", type=Ack)], 10)
    record = type("Big", (msgspec.Struct,), {"__annotations__": {"text": str}})(big)
    caller.outbox.push([record], 10)
    first = only(caller.calls(10))
    assert len(decoded(callee.request(*first, 10))) == 1
    second = only(caller.calls(20))
    assert len(second[1]) > 500


@given(counts=st.lists(st.integers(1, 40), max_size=6), many=st.sampled_from([1, 15, 16, 99, 100, 101, 250]))
def test_records_pushed_together_arrive_like_records_pushed_one_by_one(counts: list[int], many: int) -> None:
    limits = msgspec.structs.replace(LIMITS, batch_bytes_max=1 << 20)
    caller, callee = Caller("s", limits, 0, unlimited()), Callee("s", limits, 0, unlimited())
    callee.request(*only(caller.calls(0)), 0)
    sent = 0
    for count in [*counts, many]:
        callee.outbox.push([Ack(1, sent + n) for n in range(count)], 0)
        callee.outbox.push([Ack(2, sent)], 0)
        sent += count
    arrived = decoded(caller.reply(*only(callee.replies(0)), 0))
    assert [record.seq for record in arrived if record.conn == 1] == list(range(sent))
    assert len(arrived) == sent + len(counts) + 1


def test_large_records_pushed_together_leave_in_batches_of_the_allowed_size() -> None:
    limits = msgspec.structs.replace(LIMITS, batch_bytes_max=8 << 20, queue_bytes_max=256 << 20)
    caller, callee = Caller("s", limits, 0, unlimited()), Callee("s", limits, 0, unlimited())
    callee.request(*only(caller.calls(0)), 0)
    caller.reply(*only(callee.replies(0)), 0)
    caller.outbox.push([AckIds(1, ["x" * (64 << 10)])] * 250, 1)
    calls = [call for now_ms in range(1, 1000) for call in caller.calls(now_ms)]
    sizes = [len(batch) for _, batch in calls if len(batch) > 5]
    assert sum(sizes) > 250 * (64 << 10)
    assert max(sizes) <= limits.batch_bytes_max


def test_more_than_the_queue_may_hold_is_refused() -> None:
    caller, _ = opened()
    fits = LIMITS.queue_bytes_max // len(msgspec.msgpack.encode(Ack(1, 1)))
    for _ in range(fits):
        caller.outbox.push([Ack(1, 1)], 0)
    with pytest.raises(LinkOverflow):
        caller.outbox.push([Ack(1, 1)], 0)
