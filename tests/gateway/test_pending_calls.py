"""Records that await answers: each is answered once, sent again where it belongs now, and given up in time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.wire.records import OVERLOADED, Probe, Probed
from engine.errors import Overloaded
from engine.gateway.pending_calls import PendingCall, PendingCalls
from engine.publish.priority_lanes import PriorityLanes

TIMEOUT_MS = 1000
RECORDS_MAX = 10


class Peers:
    """Calls over routes that keep what they are sent; a record's key is the user whose route `routes` has."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.routes: dict[str, int] = {}
        self.sent: list[tuple[int, int]] = []  # route, ref
        self.calls = PendingCalls(RECORDS_MAX, TIMEOUT_MS, self.clock, lambda record: self.routes.get(record.key, 0), self._lanes)

    def clock(self) -> int:
        return self.now_ms

    def _lanes(self, route: int) -> PriorityLanes:
        return PriorityLanes(4, 10, 1.0, 500, lambda record: self.sent.append((route, record.ref)), self.clock)  # type: ignore[attr-defined]

    def ask(self, *users: str) -> PendingCall:
        return self.calls.begin(len(users), lambda base: [Probe(base + n, user, "", 0) for n, user in enumerate(users)])

    def answer(self, ref: int, seq: int = 0) -> None:
        self.calls.answer(ref, Probed(ref, "offline", seq))

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
    call = peers.calls.begin(5, lambda base: [Probe(base + n, "a", "", 0) for n in range(5)], [1] * 5)
    assert [ref for _, ref in peers.newly_sent()] == [0, 1, 2, 3]
    peers.calls.expire(500)
    assert call.answers[4].status == OVERLOADED
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
    assert all(lanes.flow.waiting == 0 for lanes in peers.calls._lanes.values())
