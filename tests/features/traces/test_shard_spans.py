"""Posts and fired timers at a shard, as spans."""

from __future__ import annotations

from engine.core.journal.journal_records import Decided
from engine.core.model.constants import NORMAL
from engine.core.model.envelope import Envelope
from engine.core.model.trace_context import TraceContext, traced_body
from engine.core.policy.user_state import TimelineEntry
from engine.core.wire.records import ACCEPTED, UNAVAILABLE, FireAgain, FireDone, FireFailed, Moved, Post, Posted, Timer
from engine.features.traces.shard_spans import ShardSpans
from tests.support.listed_spans import SAMPLED, UNSAMPLED, ListedSpans

EDGE = "edge-0/x"


def envelope(id: str, context: TraceContext | None = SAMPLED) -> Envelope:
    body = b'"id":"%b"' % id.encode()
    return Envelope(id, b"", NORMAL, True, body if context is None else traced_body(context, body))


def post(ref: int, id: str, context: TraceContext | None = SAMPLED) -> Post:
    return Post(ref, "t:ann", True, 0, envelope(id, context))


def timer(sid: str, id: str) -> Timer:
    return Timer(sid, "t:ann", 1, 1, 1, envelope(id))


def test_a_post_is_a_span_from_its_arrival_to_its_answer() -> None:
    listed = ListedSpans()
    shard = ShardSpans(listed.spans)
    shard.received(EDGE, [post(1, "a"), post(2, "b", UNSAMPLED), post(3, "c", None)])
    listed.pass_ms(2)
    shard.sent(
        [(EDGE, Posted(1, ACCEPTED, 7)), (EDGE, Posted(2, ACCEPTED, 8)), (EDGE, Posted(3, ACCEPTED, 9)), (EDGE, Posted(1, ACCEPTED, 7))],
        [],
    )
    (journal,) = listed.found
    assert (journal.name, journal.parent_id, journal.end_ns - journal.start_ns) == ("journal", SAMPLED.span_id, 2_000_000)
    assert journal.attributes == {
        "messaging.message.id": "a", "engine.tenant": "t", "engine.status": "accepted", "engine.seq": 7, "engine.reason": "",
    }  # fmt: skip


def test_a_post_that_storage_refused_or_took_long_is_a_span_in_any_case() -> None:
    listed = ListedSpans(trace_slow_ms=100)
    shard = ShardSpans(listed.spans)
    shard.received(EDGE, [post(1, "a", None), post(2, "b", UNSAMPLED), post(3, "c", None)])
    shard.sent([(EDGE, Posted(1, UNAVAILABLE, detail="storage is away")), (EDGE, Moved(3, -1, 2))], [])
    listed.pass_ms(100)
    shard.sent([(EDGE, Posted(2, ACCEPTED, 1)), (EDGE, Posted(3, ACCEPTED, 1))], [])
    assert [(span.attributes["messaging.message.id"], span.error) for span in listed.found] == [("a", "storage is away"), ("b", "")]


def test_posts_of_a_session_that_ended_are_forgotten() -> None:
    listed = ListedSpans()
    shard = ShardSpans(listed.spans)
    shard.received(EDGE, [post(1, "a")])
    shard.closed(EDGE)
    shard.sent([(EDGE, Posted(1, ACCEPTED, 7))], [])
    assert listed.found == []
    assert shard._posts == {}


def test_a_timer_is_judged_with_the_reason_of_the_decision_and_anew_when_it_comes_again() -> None:
    listed = ListedSpans()
    shard = ShardSpans(listed.spans)
    shard.fired([timer("0-a", "a"), timer("0-b", "b"), timer("0-c", "c")])
    shard.fired([timer("0-a", "a")])
    shard.decided(
        [Decided("t:ann", TimelineEntry("a", 5, "suppressed", "muted: by the user")), Decided("t:bob", TimelineEntry("b", 5, "x", "y"))]
    )
    listed.pass_ms(1)
    shard.sent([], [(0, FireDone(["0-a", "0-b"])), (0, FireFailed(["0-c"]))])
    shard.fired([timer("0-c", "c")])
    shard.sent([], [(0, FireAgain([("0-c", 99)]))])
    shard.sent([], [(0, FireDone(["0-a", "0-unknown"]))])
    assert set(listed.names()) == {"judge"}
    assert [(span.attributes["engine.outcome"], span.attributes["engine.reason"], bool(span.error)) for span in listed.found] == [
        ("done", "suppressed: muted: by the user", False), ("done", "", False), ("failed", "", True), ("put off", "", False),
    ]  # fmt: skip
    assert (shard._fired, shard._reasons) == ({}, {})
