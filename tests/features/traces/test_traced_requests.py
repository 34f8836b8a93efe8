"""The `publish` spans of a request's items."""

from __future__ import annotations

from engine.core.model.trace_context import TraceContext
from engine.errors import Overloaded
from engine.features.traces.traced_requests import TracedRequest
from engine.http.problems import Problem, bad_request, unavailable
from engine.publish.results import ItemResult
from tests.support.listed_spans import SAMPLED, UNSAMPLED, ListedSpans


def test_each_sampled_item_has_a_publish_span_that_its_message_refers_to() -> None:
    listed = ListedSpans(trace_ratio=0)
    trace = TracedRequest(listed.spans, str(SAMPLED), "t")
    begun_ns = listed.now_ns
    first, second = trace.context("a", None), trace.context("b", str(TraceContext("e" * 32, "f" * 16, True)))
    third = trace.context("c", str(UNSAMPLED))
    listed.pass_ms(5)
    trace.answered([ItemResult("a", "ann", "accepted", 7), ItemResult("b", "bob", "suppressed", reason="muted: by the user")])
    assert first is not None
    assert second is not None
    assert third == UNSAMPLED
    assert [(span.name, span.trace_id, span.span_id, span.parent_id) for span in listed.found] == [
        ("publish", SAMPLED.trace_id, first.span_id, SAMPLED.span_id), ("publish", "e" * 32, second.span_id, "f" * 16),
    ]  # fmt: skip
    assert [span.attributes["engine.status"] for span in listed.found] == ["accepted", "suppressed"]
    assert (listed.found[0].start_ns, listed.found[0].end_ns) == (begun_ns, begun_ns + 5_000_000)
    assert [span.error for span in listed.found] == ["", ""]


def test_a_request_that_is_not_sampled_is_a_span_when_it_failed_or_took_long() -> None:
    listed = ListedSpans(trace_ratio=0, trace_slow_ms=100)
    TracedRequest(listed.spans, "", "t").answered([ItemResult("a", "ann", "accepted", 7)])
    TracedRequest(listed.spans, "", "t").failed(bad_request("no JSON"))
    assert listed.found == []
    slow = TracedRequest(listed.spans, "", "t")
    assert slow.context("a", None) is None
    listed.pass_ms(100)
    slow.answered([ItemResult("a", "ann", "accepted", 7)])
    TracedRequest(listed.spans, str(UNSAMPLED), "t").failed(unavailable("storage is away", 1))
    TracedRequest(listed.spans, "", "t").failed(Overloaded("too many", 5))
    assert [(span.error, span.parent_id) for span in listed.found] == [("", ""), ("storage is away", UNSAMPLED.span_id)]


def test_of_a_request_that_was_taken_in_part_each_sampled_item_says_what_became_of_it() -> None:
    listed = ListedSpans(trace_ratio=0)
    trace = TracedRequest(listed.spans, str(SAMPLED), "t")
    for id in "abc":
        trace.context(id, None)
    results = [{"id": "a", "status": "accepted"}, {"id": "b", "status": "unavailable", "reason": "storage is away"}]
    trace.failed(Problem(503, "2 of 3 items were not accepted", results=results))
    assert [(span.attributes["engine.status"], span.error) for span in listed.found] == [
        ("accepted", ""), ("unavailable", "2 of 3 items were not accepted"), ("", "2 of 3 items were not accepted"),
    ]  # fmt: skip
