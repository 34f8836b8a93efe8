"""What becomes a span: sampled at the head, and in any case what failed or took long; bounded."""

from __future__ import annotations

from engine.config import Config
from engine.core.model.trace_context import TraceContext
from engine.features.traces.spans import SPANS_OF_ITEM, spans_of
from tests.support.listed_spans import SAMPLED, UNSAMPLED, ListedSpans


def test_a_publisher_decides_what_is_sampled_and_without_one_the_ratio_does() -> None:
    never, always = ListedSpans(trace_ratio=0).spans, ListedSpans(trace_ratio=1).spans
    assert never.begin(None) is None
    begun = always.begin(None)
    assert begun is not None
    assert begun.sampled
    assert never.begin(UNSAMPLED) == always.begin(UNSAMPLED) == UNSAMPLED, "it is handed on as it came"
    child = never.begin(SAMPLED)
    assert child is not None
    assert (child.trace_id, child.sampled) == (SAMPLED.trace_id, True)
    assert child.span_id != SAMPLED.span_id
    half = ListedSpans(trace_ratio=0.5).spans
    assert 300 < sum(half.begin(None) is not None for _ in range(1000)) < 700


def test_what_is_not_sampled_is_a_span_when_it_failed_or_took_long() -> None:
    listed = ListedSpans(trace_slow_ms=100)
    begun_ns = listed.now_ns
    listed.pass_ms(99)
    listed.spans.add("journal", UNSAMPLED, begun_ns, {})
    listed.spans.add("journal", None, begun_ns, {})
    assert listed.found == []
    listed.pass_ms(1)
    listed.spans.add("journal", UNSAMPLED, begun_ns, {})
    listed.spans.add("journal", None, listed.now_ns, {}, error="storage is away")
    slow, failed = listed.found
    assert (slow.trace_id, slow.parent_id, slow.error) == (UNSAMPLED.trace_id, UNSAMPLED.span_id, "")
    assert (failed.parent_id, failed.error) == ("", "storage is away")
    assert failed.trace_id not in (UNSAMPLED.trace_id, "0" * 32)


def test_a_storm_of_failures_makes_so_many_spans_a_second_and_sampled_ones_still_come() -> None:
    listed = ListedSpans(trace_forced_per_s=5)
    listed.now_ns += 10**18
    for _ in range(100):
        listed.spans.add("journal", None, listed.now_ns, {}, error="storage is away")
    assert len(listed.found) == 5
    listed.spans.add("journal", SAMPLED, listed.now_ns, {}, error="storage is away")
    assert len(listed.found) == 6
    listed.pass_ms(1000)
    for _ in range(100):
        listed.spans.add("journal", None, listed.now_ns, {}, error="storage is away")
    assert len(listed.found) == 11


def test_of_one_item_a_process_makes_a_few_spans_of_each_kind() -> None:
    listed = ListedSpans()
    for _ in range(100):
        listed.spans.add("send", SAMPLED, listed.now_ns, {})
    listed.spans.add("journal", SAMPLED, listed.now_ns, {})
    assert listed.names() == ["send"] * SPANS_OF_ITEM + ["journal"]
    for number in range(1, 10_000):
        listed.spans.add("send", TraceContext(SAMPLED.trace_id, f"{number:016x}", True), listed.now_ns, {})
    assert len(listed.spans._made) <= 4096


def test_without_a_url_there_are_no_spans() -> None:
    assert spans_of(Config(), "edge-0") is None
