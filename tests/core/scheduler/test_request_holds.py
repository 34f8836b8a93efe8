"""A timer that a request may cancel or move does not fire until the last such request has its outcome."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.config import Config
from engine.core.model.envelope import Envelope
from engine.core.model.routing import partition_of, spread, timer_id
from engine.core.scheduler.claim_horizon import ClaimHorizon
from engine.core.scheduler.firing import Firing
from engine.core.scheduler.request_holds import RequestHolds
from engine.core.scheduler.scheduler_events import Request
from engine.core.wire.records import Cancel, CancelAll, Fire, Inspect, ListTimers, Reschedule, Timer

NOW = 1_790_000_000_000
KEY = "t:u"
PARTITION = partition_of(KEY)


def timer(unique: str) -> Timer:
    return Timer(timer_id(KEY, unique), KEY, NOW + 100, NOW, 1000, Envelope(unique, b"12345678", 1, True, b""))


A, B = timer("a"), timer("b")


def holding(*timers: Timer) -> tuple[RequestHolds, Firing]:
    firing = Firing(Config(), spread(1), ClaimHorizon(Config(), NOW + 10_000, NOW + 10_000, NOW))
    firing.open(0, "shard-0/1", NOW)
    for one in timers:
        firing.add(one, NOW, young=True)
    return RequestHolds(firing), firing


def fired(firing: Firing) -> set[str]:
    return {one.sid for send in firing.due(NOW + 200) if isinstance(send.record, Fire) for one in send.record.timers}


def cancel(one: Timer) -> Cancel:
    return Cancel(1, "t", one.sid)


def reschedule(one: Timer) -> Reschedule:
    return Reschedule(2, "t", one.sid, NOW + 900)


def test_a_request_for_one_timer_holds_that_one_until_its_outcome() -> None:
    holds, firing = holding(A, B)
    holds.begin(cancel(A))
    assert A in holds
    assert B not in holds
    assert fired(firing) == {B.sid}
    holds.end(cancel(A), NOW + 200)
    assert A not in holds
    assert fired(firing) == {A.sid}


def test_a_request_for_a_mailbox_holds_all_its_timers_those_read_meanwhile_too() -> None:
    holds, firing = holding(A)
    holds.begin(CancelAll(1, KEY))
    assert B in holds, "it is to come in frozen"
    firing.add(B, NOW, frozen=B in holds, young=True)
    assert fired(firing) == set()
    holds.end(CancelAll(1, KEY), NOW + 200)
    assert fired(firing) == {A.sid, B.sid}


def test_requests_that_only_look_hold_nothing() -> None:
    holds, firing = holding(A)
    looks: list[Request] = [Inspect(1, "t", A.sid), ListTimers(2, KEY, 10)]
    for look in looks:
        holds.begin(look)
        assert A not in holds
    assert fired(firing) == {A.sid}
    for look in looks:
        holds.end(look, NOW)


def test_a_request_given_up_leaves_its_timers_to_storage_before_they_may_fire() -> None:
    holds, firing = holding(A, B)
    holds.begin(cancel(A))
    holds.forget(cancel(A), NOW)
    assert firing.get(A.sid) is None
    assert fired(firing) == {B.sid}
    holds.begin(CancelAll(1, KEY))
    holds.forget(CancelAll(1, KEY), NOW + 200)
    assert firing.get(B.sid) is B, "it is claimed, so memory alone has it"
    assert B not in holds


@given(st.lists(st.integers(0, 4), max_size=12))
def test_a_timer_is_held_while_any_of_its_requests_is_under_way(order: list[int]) -> None:
    requests: list[Request] = [cancel(A), cancel(B), reschedule(A), CancelAll(3, KEY), cancel(A)]
    holds, firing = holding(A, B)
    under_way: list[int] = []
    for index in order:
        if index in under_way:
            under_way.remove(index)
            holds.end(requests[index], NOW)
        else:
            under_way.append(index)
            holds.begin(requests[index])
        assert (A in holds) == any(index in under_way for index in (0, 2, 3, 4))
        assert (B in holds) == any(index in under_way for index in (1, 3))
    assert fired(firing) == {one.sid for one in (A, B) if one not in holds}
