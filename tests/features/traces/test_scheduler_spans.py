"""Timers at a scheduler, as spans."""

from __future__ import annotations

from engine.core.model.constants import NORMAL
from engine.core.model.envelope import Envelope
from engine.core.model.trace_context import TraceContext, traced_body
from engine.core.wire.records import SCHEDULED, UNAVAILABLE, Fire, FireAgain, FireDone, FireFailed, Schedule, Timer, TimerAnswer
from engine.features.traces.scheduler_spans import SchedulerSpans
from tests.support.listed_spans import SAMPLED, ListedSpans

EDGE, SHARD = "edge-0/x", "shard-0/x"


def timer(sid: str, due_ms: int = 0, context: TraceContext | None = SAMPLED) -> Timer:
    body = b'"id":"m"'
    envelope = Envelope("m", b"", NORMAL, True, body if context is None else traced_body(context, body))
    return Timer(sid, "t:ann", due_ms, 1, 1, envelope)


def test_a_timer_is_a_span_when_it_is_stored_and_when_it_fired() -> None:
    listed = ListedSpans()
    scheduler = SchedulerSpans(listed.spans)
    due_ms = listed.now_ns // 1_000_000 + 50
    scheduler.received(EDGE, [Schedule(1, True, timer("0-a", due_ms)), Schedule(2, True, timer("0-b", due_ms, None))])
    listed.pass_ms(3)
    scheduler.sent([(EDGE, TimerAnswer(1, SCHEDULED)), (EDGE, TimerAnswer(2, SCHEDULED)), (EDGE, TimerAnswer(9, SCHEDULED))])
    listed.pass_ms(52)
    scheduler.sent([(SHARD, Fire([timer("0-a", due_ms), timer("0-b", due_ms, None)]))])
    scheduler.sent([(SHARD, Fire([timer("0-a", due_ms)]))])
    listed.pass_ms(4)
    scheduler.received(SHARD, [FireDone(["0-a", "0-b"])])
    scheduler.received(SHARD, [FireDone(["0-a"])])
    schedule, fire = listed.found
    assert (schedule.name, schedule.end_ns - schedule.start_ns, schedule.attributes["engine.status"]) == (
        "schedule",
        3_000_000,
        "scheduled",
    )
    assert (fire.name, fire.start_ns, fire.end_ns - fire.start_ns) == ("fire", due_ms * 1_000_000, 9_000_000)
    assert (fire.attributes["engine.late_ms"], fire.attributes["engine.outcome"], fire.parent_id) == (5, "done", SAMPLED.span_id)
    assert (scheduler._asked, scheduler._fired) == ({}, {})


def test_what_failed_or_is_late_is_a_span_in_any_case() -> None:
    listed = ListedSpans(trace_slow_ms=100)
    scheduler = SchedulerSpans(listed.spans)
    due_ms = listed.now_ns // 1_000_000
    scheduler.received(EDGE, [Schedule(1, True, timer("0-a", due_ms, None))])
    scheduler.sent([(EDGE, TimerAnswer(1, UNAVAILABLE, detail="storage is away"))])
    scheduler.sent([(SHARD, Fire([timer(f"0-{name}", due_ms, None) for name in "abc"]))])
    scheduler.received(SHARD, [FireFailed(["0-a"]), FireAgain([("0-b", 5)])])
    listed.pass_ms(100)
    scheduler.received(SHARD, [FireDone(["0-c"])])
    assert [(span.name, span.error) for span in listed.found] == [
        ("schedule", "storage is away"), ("fire", "its shard could not let it take effect"), ("fire", ""),
    ]  # fmt: skip
