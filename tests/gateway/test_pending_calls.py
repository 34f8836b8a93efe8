"""Records that await answers: each is answered once, sent again where it belongs now, and given up in time."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.config import Config
from engine.core.commit.group import NOBODY_CONNECTED
from engine.core.edge.circuit_breaker import BreakerState
from engine.core.model.constants import HIGH
from engine.core.model.envelope import Envelope
from engine.core.wire import records as wire
from engine.errors import Overloaded, Unavailable
from engine.gateway.pending_calls import PendingCall, PendingCalls, sizes_of
from engine.publish.priority_lanes import PriorityLanes

TIMEOUT_MS = 1000
CONFIG = Config(
    publish_inflight_max=10,
    publish_inflight_bytes_max=1000,
    publish_timeout_ms=TIMEOUT_MS,
    breaker_error_ratio=0.5,
    breaker_window_ms=10_000,
    breaker_calls_min=4,
    breaker_open_ms=60_000,
    breaker_probes=2,
)
WINDOW_BYTES = 5000


class Peers:
    """Calls over routes that keep what they are sent; a record's key is the user whose route `routes` has."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.routes: dict[str, int] = {}
        self.sent: list[tuple[int, int]] = []  # route, ref
        self.calls = PendingCalls(CONFIG, self.clock, self._routes_of, self._lanes)

    def clock(self) -> int:
        return self.now_ms

    def _routes_of(self, records: Sequence[Any]) -> list[int]:
        return [self.routes.get(record.key, 0) for record in records]

    def _lanes(self, route: int) -> PriorityLanes:
        def deliver(records: Sequence[Any]) -> None:
            self.sent.extend((route, record.ref) for record in records)

        return PriorityLanes(4, WINDOW_BYTES, 10, 1.0, 500, deliver, self.clock)

    def ask(self, *users: str) -> PendingCall:
        return self.calls.begin(len(users), lambda base: [wire.Probe(base + n, user, "", 0) for n, user in enumerate(users)])

    def answer(self, ref: int, seq: int = 0) -> None:
        self.calls.answer([wire.Probed(ref, "offline", seq)])

    def newly_sent(self) -> list[tuple[int, int]]:
        sent, self.sent = self.sent, []
        return sent


async def test_a_call_is_done_with_its_last_answer_and_each_answer_is_in_the_place_of_its_record() -> None:
    peers = Peers()
    first, second = peers.ask("a", "b"), peers.ask("c")
    assert peers.newly_sent() == [(0, 0), (0, 1), (0, 2)]
    peers.answer(2, 7)
    peers.answer(1, 6)
    assert (first.done.done(), second.done.done()) == (False, True)
    peers.answer(0, 5)
    assert first.done.done()
    assert [answer.seq for answer in first.answers + second.answers] == [5, 6, 7]
    assert len(peers.calls) == 0


async def test_a_call_without_records_is_done_at_once() -> None:
    assert Peers().ask().done.done()


async def test_a_second_answer_and_one_to_nobody_are_dropped() -> None:
    peers = Peers()
    call = peers.ask("a", "b")
    for ref in (0, 0, 99):
        peers.answer(ref, ref + 5)
    assert not call.done.done()
    assert call.answers[0].seq == 5


async def test_answers_of_one_batch_may_be_of_several_calls_and_the_first_to_a_record_counts() -> None:
    peers = Peers()
    peers.routes = {"c": 1}
    first, second = peers.ask("a", "b", "c"), peers.ask("d")
    peers.calls.answer([wire.Probed(ref, "offline", seq) for ref, seq in ((1, 6), (3, 8), (1, 9), (99, 9), (0, 5))])
    assert [answer and answer.seq for answer in first.answers + second.answers] == [5, 6, None, 8]
    assert (first.done.done(), second.done.done(), len(peers.calls)) == (False, True, 1)
    peers.answer(2, 7)
    assert first.done.done()
    assert all(lanes.flow.waiting == lanes.bytes_sent == 0 for lanes in peers.calls._lanes.values())


async def test_what_is_left_of_a_request_that_nobody_awaits_any_more_ends_with_its_time() -> None:
    peers = Peers()
    call = peers.calls.begin(2, lambda base: [message(base, "t:a"), message(base + 1, "t:a")], (HIGH, HIGH))
    call.done.cancel()  # as the publisher's disconnect does
    peers.calls.answer([wire.Posted(call.base, wire.ACCEPTED, 1)])
    for now_ms, left in ((TIMEOUT_MS - 1, 1), (TIMEOUT_MS, 0)):
        peers.now_ms = now_ms
        peers.calls.expire(now_ms)
        assert len(peers.calls) == left
    assert peers.calls.bytes == 0


async def test_more_records_than_may_wait_are_refused_and_none_of_them_is_sent() -> None:
    peers = Peers()
    peers.ask(*"abcdefgh")
    peers.newly_sent()
    with pytest.raises(Overloaded):
        peers.ask("x", "y", "z")
    assert peers.newly_sent() == []
    assert len(peers.calls) == 8
    peers.ask("x", "y")
    assert len(peers.newly_sent()) == 2


def message(ref: int, user: str, size: int = 500) -> wire.Post:
    return wire.Post(ref, user, True, 0, Envelope(f"m{ref}", b"", HIGH, True, bytes(size - 500)))


async def test_bytes_on_links_are_limited_a_body_for_many_users_counts_for_each_of_them() -> None:
    peers = Peers()
    body = message(0, "t:a", 550)
    call = peers.calls.begin(2, lambda base: [replace(body, ref=base), replace(body, ref=base + 1)], (HIGH, HIGH))
    assert peers.calls.bytes == 1100
    with pytest.raises(Overloaded):
        peers.ask("t:b")
    assert len(peers.calls) == 2
    peers.calls.answer([wire.Posted(call.base, wire.ACCEPTED, 1)])
    assert peers.calls.bytes == 1100, "counted until the last of the call is there"
    peers.calls.answer([wire.Posted(call.base + 1, wire.ACCEPTED, 2)])
    assert peers.calls.bytes == 0
    peers.ask("t:b")


async def test_a_tenant_that_fills_its_part_of_the_bytes_leaves_the_others_theirs() -> None:
    peers = Peers()
    peers.ask()  # nothing, of nobody
    peers.calls.begin(1, lambda base: [message(base, "t:a", 1100)], (HIGH,))
    other = peers.calls.begin(1, lambda base: [message(base, "other:a", 505)], (HIGH,))
    for tenant in ("t", "other"):
        with pytest.raises(Overloaded) as refused:
            peers.ask(f"{tenant}:b")
        assert "500 are its part now" in str(refused.value)
    peers.ask("third:a")
    peers.calls.answer([wire.Posted(other.base, wire.ACCEPTED, 1)])
    peers.ask("other:a")


async def test_what_is_counted_of_a_record_is_about_its_size_on_a_link() -> None:
    timer = wire.Timer("0-a", "t:u", 1, 1, 1, message(0, "t:u", 1500).envelope)
    for record in (message(1, "t:u", 1500), wire.Schedule(1, True, timer), wire.Explain(1, "t:u", 0, message(1, "t:u", 1500))):
        assert sizes_of([record]) == [1500]
        assert 1000 < len(wire.encode([record])) < 1500
    assert sizes_of([wire.SetProfile(1, "t:u", None)]) == [len(wire.encode([wire.SetProfile(1, "t:u", None)]))]


async def failing(peers: Peers, *users: str) -> None:
    """So many requests that their shards do not answer in time."""
    peers.ask(*users)
    peers.now_ms += TIMEOUT_MS
    peers.calls.expire(peers.now_ms)
    peers.newly_sent()


async def test_a_shard_that_does_not_answer_in_time_is_avoided_and_no_other() -> None:
    peers = Peers()
    peers.routes = {"a": 0, "b": 1, "s": ~0}
    await failing(peers, *"aaaa")
    assert peers.calls.breaker_states == {0: BreakerState.OPEN}
    with pytest.raises(Unavailable) as refused:
        peers.ask("a")
    assert 0 < refused.value.retry_ms <= 5000
    assert peers.newly_sent() == []
    peers.ask("b")
    peers.ask("s")
    assert [route for route, _ in peers.newly_sent()] == [1, ~0]


async def test_of_a_request_for_several_shards_only_what_needs_the_avoided_one_is_refused_each_record_in_its_kind() -> None:
    peers = Peers()
    peers.routes = {"a": 0, "b": 1}
    await failing(peers, *"aaaa")
    call = peers.calls.begin(
        4,
        lambda base: [message(base, "a"), message(base + 1, "b"), wire.Probe(base + 2, "a", "", 0), wire.Probe(base + 3, "b", "", 0)],
        (HIGH,) * 4,
    )
    assert peers.newly_sent() == [(1, call.base + 1), (1, call.base + 3)]
    post, _, probe, _ = call.answers
    assert (type(post), post.ref, post.status) == (wire.Posted, call.base, wire.UNAVAILABLE)
    assert (type(probe), probe.ref, probe.status) == (wire.Rejected, call.base + 2, wire.UNAVAILABLE)
    assert "shard-0" in post.detail
    assert post.retry_ms > 0
    peers.answer(call.base + 1)
    peers.answer(call.base + 3)
    assert call.done.done()
    assert (len(peers.calls), peers.calls.bytes) == (0, 0)


async def test_a_scheduler_that_does_not_answer_is_asked_again() -> None:
    peers = Peers()
    peers.routes = {"s": ~0}
    await failing(peers, *"ssssssss")
    peers.ask("s")
    assert len(peers.newly_sent()) == 1


async def test_an_answer_that_refuses_is_an_answer() -> None:
    peers = Peers()
    for _ in range(20):
        call = peers.calls.begin(1, lambda base: [message(base, "a")], (HIGH,))
        peers.calls.answer([wire.Posted(call.base, wire.UNAVAILABLE)])
        peers.calls.expire(peers.now_ms)
    assert peers.calls.breaker_states == {0: BreakerState.CLOSED}


async def test_what_was_never_sent_is_no_failure_of_the_shard() -> None:
    peers = Peers()
    peers.calls.begin(10, lambda base: [wire.Probe(base + n, "a", "", 0) for n in range(10)], (1,) * 10)
    assert len(peers.newly_sent()) == 4
    for ref in range(3):
        peers.answer(ref)  # three more are sent
    peers.now_ms = TIMEOUT_MS
    peers.calls.expire(TIMEOUT_MS)
    assert peers.calls.breaker_states == {0: BreakerState.OPEN}, "four of seven that were sent failed"
    peers = Peers()
    peers.calls.begin(10, lambda base: [wire.Probe(base + n, "a", "", 0) for n in range(10)], (1,) * 10)
    for ref in range(5):
        peers.answer(ref)
    peers.now_ms = TIMEOUT_MS
    peers.calls.expire(TIMEOUT_MS)
    assert peers.calls.breaker_states == {0: BreakerState.CLOSED}, "four of nine; the tenth was never sent"


def waiting_for_a_map() -> Peers:
    """Calls that were sent twice, and wait for the slot map after the one by which they were."""
    peers = Peers()
    peers.ask(*"aaaa")
    for _ in range(2):
        peers.calls.send_parked()
        for ref in range(4):
            peers.calls.moved(ref, 0, known=False)
    peers.newly_sent()
    return peers


async def test_what_waits_for_a_newer_slot_map_when_its_time_is_over_is_no_failure_of_the_shard() -> None:
    waiting = waiting_for_a_map()
    waiting.now_ms = TIMEOUT_MS
    waiting.calls.expire(TIMEOUT_MS)
    assert waiting.calls.breaker_states == {0: BreakerState.CLOSED}
    assert len(waiting.calls) == 0
    assert not waiting.calls._parked, "none waits for a map any more"


async def test_what_waits_for_a_newer_slot_map_when_the_session_ends_is_no_failure_and_is_sent_again() -> None:
    waiting = waiting_for_a_map()
    waiting.calls.repeat(0)
    assert waiting.calls.breaker_states == {0: BreakerState.CLOSED}
    assert waiting.newly_sent() == [(0, ref) for ref in range(4)]
    waiting.calls.send_parked()
    assert waiting.newly_sent() == [], "once"


async def test_a_session_that_works_lets_probes_through_and_their_answers_everything() -> None:
    peers = Peers()
    await failing(peers, *"aaaa")
    peers.calls.repeat(0)
    peers.calls.session_works(0)
    peers.ask("a")
    peers.ask("a")
    with pytest.raises(Unavailable):
        peers.ask("a")
    for _, ref in peers.newly_sent():
        peers.answer(ref)
    peers.calls.expire(peers.now_ms)
    assert peers.calls.breaker_states == {0: BreakerState.CLOSED}
    peers.ask(*"aaaa")


async def test_one_lost_session_costs_nothing_the_second_one_that_loses_the_same_records_opens_the_breaker() -> None:
    peers = Peers()
    call = peers.ask(*"aaaa")
    peers.calls.repeat(0)
    peers.calls.session_works(0)
    assert peers.calls.breaker_states == {0: BreakerState.CLOSED}
    peers.calls.repeat(0)
    assert peers.calls.breaker_states == {0: BreakerState.OPEN}
    peers.calls.session_works(0)
    for ref in range(4):
        peers.answer(ref)
    peers.calls.expire(peers.now_ms)
    assert call.done.done()
    assert peers.calls.breaker_states == {0: BreakerState.CLOSED}


async def test_a_new_session_is_sent_what_its_route_has_not_answered_under_the_same_refs() -> None:
    peers = Peers()
    peers.routes = {"a": 0, "b": 1, "c": 1}
    call = peers.ask("a", "b", "c")
    peers.answer(1)
    peers.newly_sent()
    assert not call.repeated
    peers.calls.repeat(1)
    assert peers.newly_sent() == [(1, 2)]
    assert call.repeated


async def test_a_repeated_record_goes_where_its_slot_is_now_and_a_later_session_there_repeats_it() -> None:
    peers = Peers()
    peers.ask("a")
    peers.routes["a"] = 1
    peers.newly_sent()
    peers.calls.repeat(0)
    assert peers.newly_sent() == [(1, 0)]
    peers.calls.repeat(0)
    assert peers.newly_sent() == []
    peers.calls.repeat(1)
    assert peers.newly_sent() == [(1, 0)]


async def test_a_record_whose_slot_has_moved_is_sent_on_by_a_map_as_new_as_the_peers() -> None:
    peers = Peers()
    call = peers.ask("a")
    peers.newly_sent()
    peers.routes["a"] = 1
    peers.calls.moved(0, 0, known=True)
    assert peers.newly_sent() == [(1, 0)]
    peers.calls.moved(0, 0, known=True)  # the old route once more: it is no longer there
    assert peers.newly_sent() == []
    peers.answer(0)
    assert call.done.done()


@pytest.mark.parametrize(("known", "route"), [(False, 1), (True, 0)])
async def test_a_moved_record_waits_for_a_newer_map_where_ours_is_older_or_still_names_the_peer(known: bool, route: int) -> None:
    peers = Peers()
    peers.ask("a", "b")
    peers.newly_sent()
    peers.routes = {"a": route, "b": route}
    for ref in (0, 1):
        peers.calls.moved(ref, 0, known=known)
    assert peers.newly_sent() == []
    peers.answer(1)  # nobody awaits it any more
    assert list(peers.calls._parked) == [0]
    peers.routes = {"a": 1}
    peers.calls.send_parked()
    assert peers.newly_sent() == [(1, 0)]
    peers.calls.send_parked()
    assert peers.newly_sent() == []


async def test_a_call_ends_at_its_deadline_with_the_answers_it_has() -> None:
    peers = Peers()
    call = peers.ask("a", "b")
    peers.now_ms = 1
    later = peers.ask("c")
    peers.answer(0, 5)
    peers.calls.expire(TIMEOUT_MS - 1)
    assert not call.done.done()
    peers.calls.expire(TIMEOUT_MS)
    assert call.done.done()
    assert [answer and answer.seq for answer in call.answers] == [5, None]
    assert not later.done.done()
    assert len(peers.calls) == 1
    peers.calls.repeat(0)
    assert peers.newly_sent()[3:] == [(0, 2)]  # what ended is not sent again


async def test_a_record_that_was_never_sent_is_refused_with_the_time_of_the_backlog() -> None:
    peers = Peers()
    call = peers.calls.begin(5, lambda base: [wire.Probe(base + n, "a", "", 0) for n in range(5)], [1] * 5)
    assert [ref for _, ref in peers.newly_sent()] == [0, 1, 2, 3]
    peers.calls.expire(500)
    assert (type(call.answers[4]), call.answers[4].status) == (wire.Rejected, wire.OVERLOADED)
    assert call.answers[:4] == [None] * 4
    assert not call.done.done()


@given(st.lists(st.tuples(st.sampled_from(["answer", "repeat", "moved", "known", "parked", "map"]), st.integers(0, 5)), max_size=40))
async def test_whatever_happens_each_record_is_answered_where_it_was_sent_last_and_none_is_forgotten(steps: list[tuple[str, int]]) -> None:
    peers = Peers()
    users = "abcdef"
    call = peers.ask(*users)
    actions: dict[str, Any] = {
        "answer": lambda n: peers.answer(n, n),
        "repeat": lambda n: peers.calls.repeat(n % 2),
        "moved": lambda n: peers.calls.moved(n, n % 2, known=False),
        "known": lambda n: peers.calls.moved(n, n % 2, known=True),
        "parked": lambda _: peers.calls.send_parked(),
        "map": lambda n: peers.routes.update({users[n]: 1 - peers.routes.get(users[n], 0)}),
    }
    for action, n in steps:
        actions[action](n)
        last = {ref: route for route, ref in peers.sent}
        assert call.routes == [last[ref] for ref in range(6)]
        assert len(peers.calls) == sum(answer is None for answer in call.answers)
    for ref in range(6):
        peers.answer(ref, ref)
    assert call.done.done()
    assert [answer.seq for answer in call.answers] == list(range(6))
    assert all(lanes.flow.waiting == lanes.bytes_sent == 0 for lanes in peers.calls._lanes.values())
    assert peers.calls.bytes == 0


async def test_nobody_at_a_former_owner_is_no_answer_to_a_record_sent_on() -> None:
    peers = Peers()
    call = peers.calls.begin(1, lambda base: [wire.Post(base, "a", True, 60_000, Envelope("m", b"d" * 8, HIGH, False, b"1"))])
    peers.routes = {"a": 1}
    peers.calls.moved(0, 0, known=True)
    assert peers.newly_sent() == [(0, 0), (1, 0)]
    peers.calls.answer([wire.Posted(0, wire.SUPPRESSED, 0, NOBODY_CONNECTED)], 0)
    assert not call.done.done()
    peers.calls.answer([wire.Posted(0, wire.ACCEPTED, 7)], 1)
    assert call.answers[0].seq == 7
    assert len(peers.calls) == 0


async def test_an_unanswered_call_keeps_no_answered_one_in_memory() -> None:
    peers = Peers()
    before = {id(one) for one in gc.get_objects() if type(one) is PendingCall}
    stuck = peers.ask("ann")
    for ref in range(1, 50):
        peers.ask("bob")
        peers.answer(ref)
    peers.calls.expire(TIMEOUT_MS - 1)
    assert [one for one in gc.get_objects() if type(one) is PendingCall and id(one) not in before] == [stuck]
