"""What an edge sends and its clients acknowledge, as spans."""

from __future__ import annotations

from engine.core.model.trace_context import TraceContext, traced_body
from engine.core.wire.records import SSE, WEBSOCKET
from engine.features.traces.edge_spans import EdgeSpans
from engine.gateway.ports import SentMessages
from tests.support.listed_spans import SAMPLED, UNSAMPLED, ListedSpans


def body(id: str, context: TraceContext | None = SAMPLED) -> bytes:
    plain = b'"id":"%b","ts":1,"type":"t","data":1' % id.encode()
    return plain if context is None else traced_body(context, plain)


def sent(listed: ListedSpans, messages: SentMessages, kind: int = WEBSOCKET) -> EdgeSpans:
    edge = EdgeSpans(listed.spans)
    edge.sent(1, kind, messages, listed.now_ns)
    return edge


def test_a_sampled_message_is_a_span_when_it_is_sent_and_one_until_its_ack() -> None:
    listed = ListedSpans()
    edge = sent(listed, [(4, 1, body("a")), (5, 1, body("b", UNSAMPLED)), (6, 2, body("c", None))])
    assert [(span.name, span.attributes) for span in listed.found] == [
        ("send", {"messaging.message.id": "a", "engine.transport": "websocket", "engine.attempt": 1})
    ]
    listed.pass_ms(30)
    edge.acknowledged(1, 3)
    edge.acknowledged(2, 9)
    assert listed.names() == ["send"]
    edge.acknowledged(1, 6)
    edge.acknowledged(1, 6)
    edge.ended(1)
    assert listed.names() == ["send", "acknowledge"]
    acknowledged = listed.found[-1]
    assert acknowledged.attributes["engine.acknowledged"]
    assert (acknowledged.end_ns - acknowledged.start_ns, acknowledged.parent_id) == (30_000_000, SAMPLED.span_id)
    assert edge._sent == {}
    assert edge._count == 0


def test_selective_acks_and_nacks_end_their_own_messages() -> None:
    listed = ListedSpans()
    edge = sent(listed, [(1, 1, body("a")), (2, 1, body("b")), (3, 1, body("c"))])
    edge.settled(1, ["b"])
    edge.settled(1, ["c", "x"], "cannot be shown")
    ends = listed.found[3:]
    assert [(span.attributes["messaging.message.id"], span.attributes["engine.acknowledged"], span.error) for span in ends] == [
        ("b", True, ""), ("c", False, "cannot be shown"),
    ]  # fmt: skip
    edge.ended(1)
    assert listed.found[-1].attributes == {"messaging.message.id": "a", "engine.acknowledged": False}


def test_a_nack_is_a_span_also_of_what_was_not_sampled() -> None:
    listed = ListedSpans()
    edge = sent(listed, [(1, 1, body("a", None))])
    edge.settled(1, ["a"], "cannot be shown")
    assert [(span.name, span.error, span.parent_id) for span in listed.found] == [("acknowledge", "cannot be shown", "")]


def test_a_message_that_is_sent_again_ends_the_wait_for_the_first_ack() -> None:
    listed = ListedSpans()
    edge = sent(listed, [(1, 1, body("a"))])
    edge.sent(1, WEBSOCKET, [(1, 2, body("a"))], listed.now_ns)
    edge.acknowledged(1, 1)
    assert [(span.name, span.attributes.get("engine.attempt"), span.attributes.get("engine.acknowledged")) for span in listed.found] == [
        ("send", 1, None), ("send", 2, None), ("acknowledge", None, False), ("acknowledge", None, True),
    ]  # fmt: skip
    assert edge._count == 0


def test_of_streams_nothing_is_remembered() -> None:
    listed = ListedSpans()
    edge = sent(listed, [(1, 1, body("a"))], SSE)
    edge.ended(1)
    assert listed.names() == ["send"]
