"""What an edge sends to a route, in which order, and what it refuses; with the clock of the test."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import Config
from engine.core.model.constants import HIGH, LOW, NORMAL
from engine.core.model.envelope import Envelope
from engine.core.wire.records import ACCEPTED, OVERLOADED, Post, Posted
from engine.errors import Overloaded
from engine.gateway.pending_calls import PendingCalls
from engine.http.problems import retry_after_s
from engine.publish.priority_lanes import SHARES, PriorityLanes

TARGET_MS = 500


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


class Edge:
    """Calls over lanes to routes that record what they are sent and answer when told."""

    def __init__(self, *, window: int = 4, window_bytes: int = 32 << 20, rate_per_ms: float = 1.0) -> None:
        self.clock = Clock()
        self.sent: dict[int, list[Post]] = {}
        self.owner = 0

        def lanes(route: int) -> PriorityLanes:
            sent = self.sent.setdefault(route, [])
            return PriorityLanes(window, window_bytes, 10, rate_per_ms, TARGET_MS, sent.extend, self.clock)  # type: ignore[arg-type]

        self.calls = PendingCalls(
            Config(),
            self.clock,
            lambda records: [int(record.key) if record.key else self.owner for record in records],
            lanes,
        )

    def post(self, *priorities: int, route: int | None = None) -> list[int]:
        """One request; returns its refs."""
        key = "" if route is None else str(route)
        call = self.calls.begin(
            len(priorities),
            lambda base: [Post(base + n, key, True, 0, Envelope(f"i{base + n}", b"", p, True, b"")) for n, p in enumerate(priorities)],
            priorities,
        )
        return list(range(call.base, call.base + len(priorities)))

    def post_bytes(self, size: int, *priorities: int) -> list[int]:
        """One request, each of its records so large on a link."""
        envelopes = [Envelope("i", b"", priority, True, bytes(size - 500)) for priority in priorities]
        call = self.calls.begin(
            len(priorities), lambda base: [Post(base + n, "", True, 0, envelope) for n, envelope in enumerate(envelopes)], priorities
        )
        return list(range(call.base, call.base + len(priorities)))

    def answer(self, ref: int) -> None:
        self.calls.answer([Posted(ref, ACCEPTED, 1)])

    def refs(self, route: int = 0) -> list[int]:
        return [post.ref for post in self.sent[route]]


async def test_a_window_goes_out_and_the_others_wait_for_answers() -> None:
    edge = Edge(window=2)
    edge.post(*[NORMAL] * 5)
    assert edge.refs() == [0, 1]
    edge.answer(0)
    assert edge.refs() == [0, 1, 2]
    edge.answer(2)
    edge.answer(1)
    assert edge.refs() == [0, 1, 2, 3, 4]


async def test_high_passes_everything_that_waits_and_normal_passes_low() -> None:
    edge = Edge(window=1)
    edge.post(LOW, LOW, NORMAL)
    assert edge.refs() == [0]
    edge.post(HIGH)
    assert edge.refs() == [0, 3]
    edge.answer(0)
    edge.answer(3)
    edge.answer(2)
    edge.answer(1)
    assert edge.refs() == [0, 3, 2, 1]


async def test_high_ones_too_wait_while_a_window_of_bytes_is_unanswered_and_go_first_when_there_is_room() -> None:
    edge = Edge(window=3, window_bytes=2000)
    edge.post_bytes(1000, NORMAL, NORMAL)
    edge.post_bytes(1000, LOW, HIGH, HIGH)
    assert edge.refs() == [0, 1]
    edge.answer(1)
    assert edge.refs() == [0, 1, 3]
    edge.post_bytes(1000, HIGH)
    edge.answer(0)
    edge.answer(3)
    assert edge.refs() == [0, 1, 3, 4, 5], "one that came later waits behind the other high one"
    edge.answer(4)
    assert edge.refs() == [0, 1, 3, 4, 5, 2]


async def test_a_record_larger_than_the_window_of_bytes_is_sent_by_itself() -> None:
    edge = Edge(window_bytes=1000)
    edge.post_bytes(5000, HIGH, HIGH)
    assert edge.refs() == [0]
    edge.answer(0)
    assert edge.refs() == [0, 1]


async def test_what_a_new_session_repeats_and_what_moves_here_is_a_window_of_bytes() -> None:
    edge = Edge(window=100, window_bytes=2000)
    edge.calls.add_routes([0, 1])
    edge.post_bytes(1000, *[HIGH] * 10)
    edge.calls.repeat(0)
    assert edge.refs() == [0, 1, 0, 1]
    edge.owner = 1
    edge.post_bytes(1000, HIGH, HIGH)
    edge.calls.moved(0, 0, known=True)
    assert edge.refs(0)[4:] == [2], "its place on the old route is free"
    assert edge.refs(1) == [10, 11], "it waits on the new one"
    edge.answer(10)
    assert edge.refs(1) == [10, 11, 0]


async def test_an_expired_record_gives_its_bytes_back() -> None:
    edge = Edge(window_bytes=1000)
    edge.post_bytes(1000, HIGH)
    edge.clock.now_ms = 8000
    edge.calls.expire(8000)
    assert edge.calls.bytes == 0
    edge.post_bytes(1000, HIGH)
    assert edge.refs() == [0, 1]


async def test_while_high_ones_take_long_fewer_of_the_others_are_under_way() -> None:
    edge = Edge(window=100)

    def under_way(high_takes_ms: int) -> int:
        for _ in range(40):
            for ref in edge.post(HIGH):
                edge.clock.now_ms += high_takes_ms
                edge.answer(ref)
            edge.calls.expire(edge.clock.now_ms)
        before = len(edge.refs())
        refs = edge.post(*[LOW] * 200)
        sent = len(edge.refs()) - before
        for ref in refs:
            edge.answer(ref)
        return sent

    edge.post(NORMAL)
    edge.answer(0)
    assert under_way(high_takes_ms=2) == 100
    assert under_way(high_takes_ms=80) == 50
    assert under_way(high_takes_ms=2) >= 100


async def test_an_item_that_was_sent_again_tells_no_time() -> None:
    edge = Edge(window=100)
    for _ in range(40):
        (ref,) = edge.post(HIGH)
        edge.calls.repeat(0)
        edge.clock.now_ms += 80
        edge.answer(ref)
        edge.calls.expire(edge.clock.now_ms)
    before = len(edge.refs())
    edge.post(*[LOW] * 200)
    assert len(edge.refs()) == before + 100


async def test_a_route_that_does_not_answer_stops_nobody_else() -> None:
    edge = Edge(window=1)
    edge.post(*[NORMAL] * 3, route=0)
    edge.post(NORMAL, route=1)
    assert (edge.refs(0), edge.refs(1)) == ([0], [3])


async def test_low_is_refused_first_then_normal_then_high_and_nothing_of_a_refused_request_is_sent() -> None:
    edge = Edge(window=1, rate_per_ms=1.0)
    waiting = 0
    for priority in (LOW, NORMAL, HIGH):
        limit = round(SHARES[priority] * TARGET_MS)
        edge.post(*[HIGH] * (limit - 1 - waiting))
        edge.post(priority)
        waiting = limit
        before = len(edge.calls)
        with pytest.raises(Overloaded) as raised:
            edge.post(HIGH, priority)
        assert raised.value.backlog_ms == waiting
        assert len(edge.calls) == before
    assert [post.envelope.priority for post in edge.sent[0] if post.envelope.priority != HIGH] == [LOW], "the normal one waits behind it"


async def test_a_lane_that_is_passed_all_the_time_closes() -> None:
    edge = Edge(window=1, rate_per_ms=100.0)
    edge.post(NORMAL, LOW)
    edge.clock.now_ms = 260
    edge.post(NORMAL)
    with pytest.raises(Overloaded) as raised:
        edge.post(LOW)
    assert raised.value.backlog_ms == 260


async def test_an_idle_route_takes_a_request_of_any_size() -> None:
    edge = Edge(rate_per_ms=0.001)
    edge.post(*[LOW] * 1000)
    with pytest.raises(Overloaded):
        edge.post(LOW)


async def test_only_the_routes_of_a_request_matter() -> None:
    edge = Edge(rate_per_ms=1.0)
    edge.post(*[NORMAL] * 1000, route=0)
    with pytest.raises(Overloaded):
        edge.post(NORMAL, route=0)
    edge.post(NORMAL, route=1)


async def test_a_new_session_repeats_what_was_sent_and_leaves_the_rest_to_its_turn() -> None:
    edge = Edge(window=2)
    edge.post(*[NORMAL] * 4)
    edge.calls.repeat(0)
    assert edge.refs() == [0, 1, 0, 1]
    edge.answer(0)
    assert edge.refs()[4:] == [2]


async def test_what_has_moved_counts_where_it_is_now() -> None:
    edge = Edge(window=1)
    edge.calls.add_routes([0, 1])
    edge.post(NORMAL)
    edge.owner = 1
    edge.calls.moved(0, 0, known=True)
    assert edge.refs(1) == [0]
    edge.post(NORMAL)
    assert edge.refs(1) == [0]
    edge.answer(0)
    assert edge.refs(1) == [0, 1]


async def test_what_was_never_sent_is_refused_after_the_whole_target() -> None:
    edge = Edge(window=1)
    call = edge.calls.begin(
        2, lambda base: [Post(base + n, "", True, 0, Envelope(f"i{n}", b"", LOW, True, b"")) for n in range(2)], [LOW, LOW]
    )
    edge.calls.expire(TARGET_MS - 1)
    assert not call.done.done()
    edge.calls.expire(TARGET_MS)
    assert [answer and answer.status for answer in call.answers] == [None, OVERLOADED]
    edge.answer(0)
    assert call.done.done()
    assert edge.refs() == [0]
    assert edge.calls.shards_ms("") == edge.calls.backlog_ms == 0


async def test_an_expired_request_makes_room_whether_it_was_sent_or_waited() -> None:
    edge = Edge(window=1)
    edge.post(NORMAL, NORMAL)
    edge.clock.now_ms = 4000
    edge.post(HIGH)
    edge.clock.now_ms = 8000
    edge.calls.expire(8000)
    assert edge.refs() == [0, 2]
    edge.post(NORMAL, NORMAL)
    assert edge.refs() == [0, 2, 3], "the high one is under way, and takes no room of the others"
    edge.answer(2)
    assert edge.refs() == [0, 2, 3]
    edge.answer(3)
    assert edge.refs() == [0, 2, 3, 4]
    edge.answer(4)
    assert len(edge.calls) == 0
    assert edge.calls.shards_ms("") == edge.calls.backlog_ms == 0


class OneRoute:
    """The lanes of one route, and the records of tenants on it: `("a", 3)` is the fourth of tenant a."""

    def __init__(self, *, window: int = 1, rate_per_ms: float = 1.0) -> None:
        self.clock = Clock()
        self.sent: list[tuple[str, int]] = []
        self.lanes = PriorityLanes(window, 1 << 20, 10, rate_per_ms, TARGET_MS, self.sent.extend, self.clock)  # type: ignore[arg-type]
        self._refs: dict[tuple[str, int], int] = {}
        self._counts: dict[str, int] = {}

    def send(self, tenant: str, count: int = 1, priority: int = NORMAL) -> None:
        for _ in range(count):
            record = tenant, self._counts.get(tenant, 0)
            self._counts[tenant] = record[1] + 1
            self._refs[record] = len(self._refs)
            self.lanes.send([(self._refs[record], record, priority, 1)], tenant)  # type: ignore[arg-type]

    def answer_all(self) -> None:
        """Answer each record as it is sent."""
        for record in self.sent:
            self.lanes.over([self._refs[record]], record[0], answered=True)


def test_what_tenants_let_wait_is_sent_in_turns() -> None:
    route = OneRoute()
    route.send("flood", 6)
    route.send("a", 2)
    route.send("b")
    route.answer_all()
    assert route.sent == [
        ("flood", 0), ("flood", 1), ("a", 0), ("b", 0), ("flood", 2), ("a", 1), ("flood", 3), ("flood", 4), ("flood", 5),
    ]  # fmt: skip


@pytest.mark.parametrize("priority", [NORMAL, HIGH])
def test_a_route_that_one_tenant_has_filled_is_closed_to_it_and_open_to_the_others(priority: int) -> None:
    route = OneRoute(window=TARGET_MS)
    route.send("flood", TARGET_MS, priority)
    assert route.lanes.closed_ms(priority, "flood") == TARGET_MS
    assert route.lanes.closed_ms(priority, "other") == 0
    route.send("other", TARGET_MS // 2, priority)
    assert route.lanes.closed_ms(priority, "other") == TARGET_MS, "two tenants share: its half of the rate is used"
    assert route.lanes.delay_ms("third") == 0
    route.answer_all()
    assert route.lanes.closed_ms(priority, "flood") == 0


def test_a_tenant_alone_has_the_whole_route() -> None:
    route = OneRoute(window=TARGET_MS)
    route.send("alone", TARGET_MS // 2)
    assert route.lanes.delay_ms("alone") == TARGET_MS // 2
    assert route.lanes.closed_ms(NORMAL, "alone") == 0


STEPS = st.one_of(st.tuples(st.just("post"), st.sampled_from([HIGH, NORMAL, LOW])), st.tuples(st.just("answer"), st.integers(0, 9)))


@given(st.lists(STEPS))
def test_everything_is_sent_once_in_the_order_of_its_priority(steps: list[tuple[str, int]]) -> None:
    clock = Clock()
    sent: list[int] = []
    lanes = PriorityLanes(2, 1000, 10, 1000.0, TARGET_MS, sent.extend, clock)  # type: ignore[arg-type]
    under_way: list[tuple[int, int]] = []  # (priority, ref)
    waiting: list[tuple[int, int]] = []
    ref = 0

    def others() -> int:
        return sum(priority != HIGH for priority, _ in under_way)

    for what, value in steps:
        if what == "post":
            lanes.send([(ref, ref, value, 1)], "t")  # type: ignore[arg-type]
            if value == HIGH or (not waiting and others() < 2):
                under_way.append((value, ref))
            else:
                waiting.append((value, ref))
            ref += 1
        elif under_way:
            _, done = under_way.pop(value % len(under_way))
            lanes.over([done], "t", answered=True)
            while waiting and others() < 2:
                chosen = min(waiting)
                waiting.remove(chosen)
                under_way.append(chosen)
        assert {number for _, number in under_way} <= set(sent)
        assert {number for _, number in waiting}.isdisjoint(sent)
        assert len(sent) == len(set(sent)) == ref - len(waiting)
        assert lanes.flow.waiting == len(under_way) + len(waiting)


def test_retry_after_is_whole_seconds_around_the_backlog_and_spread() -> None:
    assert {retry_after_s(0)} == {1}
    told = [retry_after_s(10_000) for _ in range(500)]
    assert 10 <= min(told) < 12
    assert 13 < max(told) <= 15
