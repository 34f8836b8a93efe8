"""What a shard measures: latencies that say how fast it is, not how long its users were away; and its bounded session events."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.model.category import Category, PolicyTerms
from engine.core.model.trace_context import TraceContext, traced_body
from engine.core.shard import output as module
from engine.core.shard.output import LATENCY_BUCKETS_MS, Latencies, SessionEvent, ShardOutput
from tests.support.shard_world import EDGE, RETRY, World, connected_world

HOUR_MS = 3_600_000


def counted(world: World, name: str) -> dict[int, int]:
    """The buckets of a histogram that are not empty: upper bound in ms -> observations."""
    return {bound: count for bound, count in world.core.stats(world.now_ms)[name] if count}


def test_the_time_to_the_first_send_counts_what_waited_for_the_shard() -> None:
    world = connected_world(window=2)
    world.settle()
    for _ in range(3):
        world.post()
    world.settle()
    assert counted(world, "send_latency") == {1: 2}
    world.now_ms += 40
    world.acknowledge(1, 2)
    assert counted(world, "send_latency") == {1: 2, 50: 1}, "the third waited for room in the window"


def test_the_hours_of_an_absence_are_in_neither_latency_of_the_status() -> None:
    world = World()
    world.publish(ttl_ms=9 * HOUR_MS)
    world.now_ms += HOUR_MS
    world.connect(1)
    world.now_ms += 8
    world.acknowledge(1, 1)
    assert counted(world, "send_latency") == {}, "the first send came when the user did"
    assert counted(world, "ack_latency") == {10: 1}
    assert counted(world, "latency") == {-1: 1}, "the histogram of the metrics stays what it is"
    stats = world.core.stats(world.now_ms)
    assert [stats[f"{name}_sum_ms"] for name in ("latency", "send_latency", "ack_latency")] == [HOUR_MS + 8, 0, 8]


def test_hours_between_two_connections_are_not_the_clients_time_to_answer() -> None:
    world = connected_world()
    world.settle()
    world.publish(ttl_ms=9 * HOUR_MS)
    world.detach(1)
    world.now_ms += HOUR_MS
    world.connect(2, cursor=0)
    world.now_ms += 8
    world.acknowledge(2, 1)
    assert counted(world, "send_latency") == {1: 1}
    assert counted(world, "ack_latency") == {10: 1}


def test_the_time_to_the_ack_of_a_message_that_was_sent_again_begins_at_its_first_send() -> None:
    world = connected_world()
    world.settle()
    world.publish()
    world.now_ms += 700
    mailbox = world.core.mailboxes["t:u"]
    assert mailbox.connections[EDGE, 1].overdue(mailbox.hot, world.now_ms, RETRY)
    world.now_ms += 100
    world.acknowledge(1, 1)
    assert counted(world, "ack_latency") == {1000: 1}
    assert not mailbox.connections[EDGE, 1].first_sent_ms


def test_an_ack_by_ids_counts_these_messages_and_one_of_many_counts_all_of_them_once() -> None:
    world = connected_world()
    world.settle()
    for n in range(4):
        world.post(id=f"m{n}")
    world.settle()
    world.now_ms += 4
    world.ack_ids(1, "m1")
    world.now_ms += 4
    world.ack(1, 4)
    world.acknowledge(1, 4)
    assert counted(world, "ack_latency") == {4: 1, 10: 3}


def test_the_first_send_of_a_broadcast_counts_on_every_connection_that_was_open() -> None:
    world = World()
    for conn, user in ((1, "u"), (2, "v")):
        world.attach(conn, user)
    world.settle()
    world.deliver_broadcast("b1")
    assert counted(world, "send_latency") == {1: 2}


def event(number: int) -> SessionEvent:
    return SessionEvent("connect", "t:u", f"s{number}", "", "edge-0", 0, number, 0)


def moments(output: ShardOutput) -> list[int]:
    return [event.at_ms for event in output.session_events]


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> ShardOutput:
    monkeypatch.setattr(module, "SESSION_EVENTS_MAX", 5)
    return ShardOutput()


def test_beyond_their_limit_the_oldest_session_events_are_dropped(output: ShardOutput) -> None:
    output.session_events.extend(event(n) for n in range(7))
    assert moments(output) == [2, 3, 4, 5, 6]
    assert [taken.at_ms for taken in output.take_session_events(2)] == [2, 3]
    assert moments(output) == [4, 5, 6]


@pytest.mark.parametrize(("later", "kept"), [(0, [0, 1, 2]), (3, [1, 2, 3, 4, 5]), (5, [3, 4, 5, 6, 7])])
def test_events_that_were_not_written_are_the_oldest_again_and_leave_first(output: ShardOutput, later: int, kept: list[int]) -> None:
    output.session_events.extend(event(n) for n in range(3))
    taken = output.take_session_events(9)
    output.session_events.extend(event(n) for n in range(3, 3 + later))
    output.return_session_events(taken)
    assert moments(output) == kept


def test_an_outage_with_many_reconnects_stays_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSION_EVENTS_MAX", 5)
    world = World()
    for _ in range(10):
        world.attach(1)
        world.core.pages_loaded(dict.fromkeys(world.core.page_wait.take_pages_wanted()), world.now_ms)
        world.detach(1)
    assert len(world.core.output.session_events) == 5


@given(times_ms=st.lists(st.integers(-300, 100_000) | st.integers(0, 300)))
def test_times_are_counted_in_their_buckets_and_added_up_a_negative_one_as_0(times_ms: list[int]) -> None:
    latencies = Latencies()
    for ms in times_ms:
        if 0 <= ms < len(latencies.exact):
            latencies.exact[ms] += 1
        else:
            latencies.add_other(ms)
    expected = [0] * (len(LATENCY_BUCKETS_MS) + 1)
    for ms in times_ms:
        expected[bisect_left(LATENCY_BUCKETS_MS, ms)] += 1
    assert latencies.buckets() == expected
    assert (latencies.count, latencies.sum_ms) == (len(times_ms), sum(max(ms, 0) for ms in times_ms))


def test_each_bucket_remembers_the_message_that_was_counted_last() -> None:
    latencies = Latencies()
    latencies.exact[3], latencies.seen[3] = 2, ("a", b"", 1000)
    latencies.exact[4], latencies.seen[4] = 1, ("b", b"", 900)
    for ms, id in ((280, "c"), (290, "d"), (-5, "early"), (10**9, "late")):
        latencies.add_other(ms, (id, b"", 2000))
    upper = {bound: (id, ms, at_ms) for bucket, id, ms, at_ms, _ in latencies.exemplars() for bound in [(*LATENCY_BUCKETS_MS, -1)[bucket]]}
    assert upper == {3: ("a", 3, 1000), 4: ("b", 4, 900), 300: ("d", 290, 2000), 1: ("early", 0, 2000), -1: ("late", 10**9, 2000)}


def test_messages_are_counted_by_tenant_and_transport_and_are_exemplars_of_their_times() -> None:
    world = connected_world()
    world.settle()
    world.publish(id="order-17")
    world.now_ms += 20
    world.acknowledge(1, 1)
    stats = world.core.stats(world.now_ms)
    assert stats["figures"]["sent"] == [("t", "websocket", 1)]
    assert stats["figures"]["acknowledged"] == [("t", 1)]
    (bucket,) = stats["exemplars"]["ack_latency"]
    assert (LATENCY_BUCKETS_MS[bucket[0]], *bucket[1:]) == (20, "order-17", 20, world.now_ms, "")
    assert [id for _, id, *_ in stats["exemplars"]["send_latency"]] == ["order-17"]


def test_what_nobody_is_connected_for_is_counted_with_its_reason() -> None:
    world = World()
    world.publish(retain=False, policy_terms=PolicyTerms("touch"))
    stats = world.core.stats(world.now_ms)
    assert stats["suppressed"] == 1
    assert stats["figures"]["suppressed"] == [("t", 1)]
    assert stats["figures"]["decisions"] == [("suppressed", "nobody_connected", "touch", 1)]


def test_decisions_are_counted_by_reason_and_category_once_they_are_committed() -> None:
    world = World()
    terms = PolicyTerms("touch", Category(cap=1))
    world.publish(id="first", policy_terms=terms)
    world.post(id="second", policy_terms=terms)
    group = world.take_group()
    assert world.core.stats(world.now_ms)["figures"]["decisions"] == [("delivered", "", "touch", 1)]
    world.append(group)
    world.core.group_committed(world.now_ms)
    stats = world.core.stats(world.now_ms)
    assert stats["figures"]["decisions"] == [("delivered", "", "touch", 1), ("suppressed", "cap", "touch", 1)]
    assert stats["figures"]["suppressed"] == [("t", 1)]


def test_an_exemplar_names_the_trace_of_a_message_that_is_recorded() -> None:
    world = connected_world()
    world.settle()
    for number, sampled in enumerate((False, True), 1):
        context = TraceContext("a" * 32, "b" * 16, sampled)
        world.publish(body=traced_body(context, b'"id":"x","data":"%b"' % (b"y" * 1000)))
        world.now_ms += 20 * number
        world.acknowledge(1, number)
    traces = {ms: trace for _, _, ms, _, trace in world.core.stats(world.now_ms)["exemplars"]["ack_latency"]}
    assert traces == {20: "", 40: "a" * 32}
