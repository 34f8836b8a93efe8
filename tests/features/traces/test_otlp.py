"""Spans at a real receiver of OTLP; and what becomes of them while it is away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from engine.config import Config
from engine.features.traces.otlp import OtlpSink
from engine.features.traces.spans import FinishedSpan, Spans
from tests.support.free_port import free_port
from tests.support.otlp_receiver import OtlpReceiver, otlp_receiver

TRACE, SPAN, PARENT = "a" * 32, "b" * 16, "c" * 16


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as made:
        yield made


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")


def span(name: str = "journal", **fields: Any) -> FinishedSpan:
    fields = {"trace_id": TRACE, "span_id": SPAN, "parent_id": PARENT, "start_ns": 10, "end_ns": 20, "attributes": {}} | fields
    return FinishedSpan(name, **fields)


def flushed(sink: OtlpSink) -> None:
    sink.flush()


def test_a_span_arrives_with_all_it_says(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20token")
    sink = OtlpSink(Config(trace_url=receiver.url), "shard-7")
    sink.add(span(attributes={"messaging.message.id": "m1", "engine.seq": 3, "engine.acknowledged": True}))
    sink.add(span("publish", span_id="d" * 16, parent_id="", error="storage is away"))
    flushed(sink)
    path, headers, count = receiver.requests[-1]
    assert (path, headers["authorization"], count) == ("/v1/traces", "Bearer token", 2)
    journal, publish = receiver.spans[-2:]
    assert journal == (
        "journal", "shard-7", TRACE, SPAN, PARENT, 10, 20, "",
        {"messaging.message.id": "m1", "engine.seq": 3, "engine.acknowledged": True},
    )  # fmt: skip
    assert (publish.name, publish.parent_id, publish.error) == ("publish", "", "storage is away")
    assert (sink.exported, sink.dropped) == (2, 0)


def test_spans_go_in_batches_of_1024_and_a_url_with_a_path_is_taken_as_it_is(receiver: OtlpReceiver) -> None:
    before = len(receiver.requests)
    sink = OtlpSink(Config(trace_url=f"{receiver.url}/collector/spans"), "edge-0")
    for _ in range(2500):
        sink.add(span())
    flushed(sink)
    assert [(path, count) for path, _, count in receiver.requests[before:]] == [
        ("/collector/spans", 1024), ("/collector/spans", 1024), ("/collector/spans", 452),
    ]  # fmt: skip


def test_while_the_collector_is_away_spans_are_dropped_and_counted_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "100")
    sink = OtlpSink(Config(trace_url=f"http://127.0.0.1:{free_port()}"), "edge-0")
    began_s = time.monotonic()
    for _ in range(1000):
        sink.add(span())
    assert time.monotonic() - began_s < 5
    assert sink.dropped >= 800
    flushed(sink)
    assert (sink.exported, sink.dropped) == (0, 1000)


def test_what_a_collector_refuses_is_counted_and_later_spans_come(receiver: OtlpReceiver) -> None:
    sink = OtlpSink(Config(trace_url=receiver.url), "edge-0")
    receiver.status = 400
    sink.add(span())
    flushed(sink)
    receiver.status = 200
    sink.add(span("send"))
    flushed(sink)
    assert (sink.exported, sink.dropped) == (1, 1)
    assert receiver.spans[-1].name == "send"


async def test_a_process_that_ends_waits_a_moment_only_for_a_collector_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    sink = OtlpSink(Config(trace_url=f"http://127.0.0.1:{free_port()}"), "edge-0")
    sink.add(span())
    async with asyncio.timeout(60):
        await Spans(Config(), sink).flush()
    sink._exporter.shutdown()
