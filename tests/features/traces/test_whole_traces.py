"""The traces of messages through the session's engine, as a real receiver of OTLP has them."""

from __future__ import annotations

import secrets

import httpx
import pytest

from engine.core.model.trace_context import TraceContext
from tests.support.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

pytestmark = pytest.mark.slow


def sampled() -> TraceContext:
    return TraceContext(secrets.token_hex(16), secrets.token_hex(8), True)


async def trace(collector: OtlpReceiver, trace_id: str, *names: str) -> list[ReceivedSpan]:
    """The spans of a trace, once it has these."""
    await until(lambda: set(names) <= set(collector.names(trace_id)), 30)
    return collector.of(trace_id)


async def test_a_message_is_one_trace_from_its_publisher_to_its_ack(engine: RunningEngine, collector: OtlpReceiver) -> None:
    given = sampled()
    async with engine.connect("traced-ann") as socket:
        await engine.receive(socket, "welcome")
        await engine.publish({"user": "traced-ann", "type": "t", "id": "traced-1", "traceparent": str(given)})
        (message,) = (await engine.receive(socket, "messages"))["messages"]
        await socket.send(f'{{"type": "ack", "seq": {message["seq"]}}}')
        spans = await trace(collector, given.trace_id, "publish", "journal", "send", "acknowledge")
    assert [span.name for span in spans] == ["publish", "journal", "send", "acknowledge"]
    publish, journal, send, acknowledge = spans
    assert publish.parent_id == given.span_id
    assert message["traceparent"] == f"00-{given.trace_id}-{publish.span_id}-01", "what the client does is a child of `publish`"
    assert {span.parent_id for span in (journal, send, acknowledge)} == {publish.span_id}
    assert (publish.process, journal.process.partition("-")[0], send.process) == ("edge-0", "shard", "edge-0")
    assert publish.start_ns <= journal.start_ns <= journal.end_ns <= publish.end_ns
    assert (journal.attributes["engine.status"], acknowledge.attributes["engine.acknowledged"]) == ("accepted", True)
    assert {span.attributes["messaging.message.id"] for span in spans} == {"traced-1"}


async def test_a_delayed_message_keeps_its_trace_while_it_waits(engine: RunningEngine, collector: OtlpReceiver) -> None:
    given = sampled()
    async with engine.connect("traced-bob") as socket:
        await engine.receive(socket, "welcome")
        await engine.publish({"user": "traced-bob", "type": "t", "delay": 0.2, "traceparent": str(given)})
        await engine.receive(socket, "messages")
        spans = await trace(collector, given.trace_id, "publish", "schedule", "fire", "judge", "send")
    fire = next(span for span in spans if span.name == "fire")
    judge = next(span for span in spans if span.name == "judge")
    assert (fire.process, fire.attributes["engine.outcome"]) == ("scheduler-0", "done")
    assert (judge.process.partition("-")[0], judge.attributes["engine.outcome"]) == ("shard", "done")
    assert fire.start_ns <= judge.start_ns


async def test_an_event_gives_its_trace_to_what_a_rule_makes_of_it_and_a_failed_action_says_why(
    engine: RunningEngine, collector: OtlpReceiver
) -> None:
    given = sampled()
    headers = {"Authorization": f"Bearer {engine.token('app', 'publish')}", "traceparent": str(given)}
    async with httpx.AsyncClient(base_url=engine.url, trust_env=False) as http:
        answer = await http.post("/v1/events", json={"type": "test.refused", "user": "traced-cy"}, headers=headers)
    assert answer.status_code == 202, answer.text
    spans = await trace(collector, given.trace_id, "publish", "schedule", "judge", "action")
    action = next(span for span in spans if span.name == "action")
    assert action.attributes["engine.target"] == "https://127.0.0.1"
    assert action.error


async def test_a_message_of_no_sampled_trace_makes_no_spans_and_an_unsampled_context_is_handed_on(
    engine: RunningEngine, collector: OtlpReceiver
) -> None:
    unsampled, given = TraceContext(secrets.token_hex(16), secrets.token_hex(8), False), sampled()
    items = [
        {"user": "traced-dan", "type": "t"},
        {"user": "traced-dan", "type": "t", "id": "traced-un", "traceparent": str(unsampled)},
        {"user": "traced-dan", "type": "t", "id": "traced-last", "traceparent": str(given)},
    ]
    async with engine.connect("traced-dan") as socket:
        await engine.receive(socket, "welcome")
        await engine.publish(*items)
        found = list((await engine.receive(socket, "messages"))["messages"])
        while len(found) < len(items):
            found += (await engine.receive(socket, "messages"))["messages"]
        await trace(collector, given.trace_id, "publish", "journal", "send")
    assert "traceparent" not in found[0]
    assert found[1]["traceparent"] == str(unsampled)
    assert collector.of(unsampled.trace_id) == []


async def test_spans_are_counted_in_the_metrics(engine: RunningEngine, collector: OtlpReceiver) -> None:
    given = sampled()
    dropped = engine.status()["edges"][0].get("spans_dropped", 0)  # by tests before, on a busy machine
    await engine.publish({"user": "traced-eve", "type": "t", "traceparent": str(given)})
    await trace(collector, given.trace_id, "publish", "journal")
    status = engine.status_when(lambda found: found["edges"][0].get("spans_exported", 0) > 0)
    assert status["edges"][0]["spans_dropped"] == dropped
    headers = {"Authorization": f"Bearer {engine.token('ops', 'operator')}"}
    metrics = httpx.get(f"{engine.url}/metrics", headers=headers, trust_env=False).text
    (counted,) = [line for line in metrics.splitlines() if line.startswith("engine_spans_exported_total") and 'role="edge"' in line]
    assert float(counted.split()[-1]) > 0
