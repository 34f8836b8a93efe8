"""Whatever a publisher or client sends over HTTP, it gets a right answer: never a 500, never half an acceptance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from engine.core.wire import records as wire
from tests.support.edge_in_process import Answer, EdgeInProcess
from tests.support.hostile_bodies import bodies, content_types, cursors, event_headers, headers, instants, items, queries, seconds
from tests.support.hostile_input import DEPTHS, encoded, json_tokens, mutated, nested, objects, strict_json, texts, values
from tests.support.http_connection import HttpClient
from tests.support.waiting import until


@pytest.fixture(scope="module")
def edge() -> Iterator[EdgeInProcess]:
    """Small limits, so that examples reach them."""
    running = EdgeInProcess(publish_timeout_ms=5000, poll_wait_s_max=1)
    yield running
    running.close()


def taken_by(edge: EdgeInProcess) -> list[Any]:
    """What shard and scheduler were given since the last call."""
    taken = [record for record in edge.world.shard.received if type(record) is wire.Post]
    taken += [record.timer for record in edge.world.scheduler.received if type(record) is wire.Schedule]
    edge.world.shard.received.clear()
    edge.world.scheduler.received.clear()
    return taken


def publish(
    edge: EdgeInProcess, body: bytes, content_type: str | None, pieces: int = 1, attributes: Sequence[tuple[bytes, bytes]] = ()
) -> Answer:
    """Publish and check what must hold for every answer."""
    taken_by(edge)
    headers = [(b"authorization", f"Bearer {edge.world.token()}".encode()), *attributes]
    answer = edge.ask("POST", "/v1/notifications", body, content_type=content_type, pieces=pieces, headers=headers)
    answer.check(202)
    taken = taken_by(edge)
    if answer.status == 202:
        told = answer.told()
        assert len(told["results"]) == len(taken) > 0
        assert told["accepted"] == sum(result["status"] in ("accepted", "scheduled", "merged") for result in told["results"])
    elif answer.status not in (409, 429, 503):
        assert not taken, "refused, and yet something was handed on"
    for record in taken:
        message = strict_json(b"{%b}" % record.envelope.body)
        assert b"\n" not in record.envelope.body
        assert b"\r" not in record.envelope.body
        assert message["id"] == record.envelope.id
        assert record.key.startswith("default:")
        assert len(record.envelope.digest) == 8
    return answer


@settings(max_examples=200, deadline=None)
@given(bodies, content_types, st.integers(1, 3))
def test_any_publish_is_taken_whole_or_refused_with_a_reason(
    edge: EdgeInProcess, body: bytes, content_type: str | None, pieces: int
) -> None:
    event(f"answered {publish(edge, body, content_type, pieces).status}")


@settings(max_examples=200, deadline=None)
@given(
    event_headers,
    values.map(encoded) | mutated(json_tokens) | st.just(b""),
    st.sampled_from([None, "application/json", "text/plain", "a/b+json", "image/png"]),
)
def test_any_event_in_binary_mode_is_taken_whole_or_refused_with_a_reason(
    edge: EdgeInProcess, headers: list[tuple[bytes, bytes]], body: bytes, content_type: str | None
) -> None:
    event(f"answered {publish(edge, body, content_type, 1, headers).status}")


@settings(max_examples=200, deadline=None)
@given(st.lists(items, min_size=1, max_size=3), st.integers(0, 2))
def test_one_bad_item_refuses_a_whole_batch(edge: EdgeInProcess, parts: list[bytes], at: int) -> None:
    parts.insert(min(at, len(parts)), b'{"user":"u1","type":"a","dealy":5}')
    answer = publish(edge, b"[" + b",".join(parts) + b"]", "application/json")
    assert answer.status in (400, 422)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("array", [True, False])
@pytest.mark.parametrize("field", ["data", "actor", "collapse", "users", "id"])
def test_deep_nesting_is_refused_or_taken_in_bounded_time(edge: EdgeInProcess, depth: int, array: bool, field: str) -> None:
    body = b'{"user":"u1","type":"a","%b":%b}' % (field.encode(), nested(depth, array))
    answer = publish(edge, body, "application/json")
    if field in ("data", "actor"):
        too_long = field == "actor" and len(nested(depth, array)) > edge.config.context_bytes_max
        assert (answer.status == 202) is (depth <= edge.config.json_depth_max and not too_long)
    else:
        assert answer.status in (400, 422)


@settings(max_examples=200, deadline=None)
@given(mutated(st.one_of(objects({"at": instants, "delay": seconds}), json_tokens)), st.one_of(st.just("0-a"), texts))
def test_any_move_of_a_timer_is_answered(edge: EdgeInProcess, body: bytes, sid: str) -> None:
    path = f"/v1/scheduled/{sid.replace('/', '_') or '_'}"
    edge.ask("PATCH", path, body).check(200)
    edge.ask("GET", path).check(200)
    edge.ask("DELETE", path).check(200)


@settings(max_examples=200, deadline=None)
@given(
    mutated(
        st.one_of(
            objects({"seq": st.sampled_from([b"0", b"1", b"-1", b"9007199254740991", b"9007199254740992"]), "ids": values.map(encoded)}),
            json_tokens,
        )
    )
)
def test_any_acknowledgement_is_answered(edge: EdgeInProcess, body: bytes) -> None:
    edge.ask("POST", "/v1/ack", body).check(200)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**15 - 1), st.sampled_from(["", "3-a"]))
def test_any_position_of_a_listing_is_answered(edge: EdgeInProcess, due_ms: int, sid: str) -> None:
    edge.ask("GET", "/v1/scheduled", query=b"user=u1&after=%d-%b" % (due_ms, sid.encode())).check(200)


ROUTES = (
    ("GET", "/v1/scheduled"), ("DELETE", "/v1/scheduled"),
    ("GET", "/v1/heartbeat"), ("GET", "/openapi.json"), ("GET", "/v1/status"), ("OPTIONS", "/v1/ack"), ("PUT", "/x"),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(ROUTES), queries, st.lists(headers, max_size=3))
def test_any_query_and_header_is_answered(
    edge: EdgeInProcess, route: tuple[str, str], query: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    with_token = [(b"authorization", f"Bearer {edge.world.token()}".encode()), *headers]
    edge.ask(*route, query=query, headers=with_token, content_type=None).check(200, 204)


@settings(max_examples=200, deadline=None)
@given(cursors, cursors)
def test_any_cursor_gets_what_is_pending(edge: EdgeInProcess, in_query: bytes, in_header: bytes) -> None:
    publish(edge, b'{"user":"u1","type":"a"}', "application/json")
    headers = [(b"authorization", f"Bearer {edge.world.token()}".encode()), (b"last-event-id", in_header)]
    answer = edge.ask("GET", "/v1/poll", query=b"last_event_id=" + in_query, headers=headers, content_type=None)
    answer.check(200)
    told = answer.told()
    assert told["resumed"] in ("new", "ok", "gap")
    assert told["messages"] or told["last_event_id"]


# -- Bytes on a connection. ------------------------------------------------------------------------------------------------
async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the body, unless the client leaves before its end."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


requests = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://x/a?b HTTP/1.1\r\nHost: x\r\nX: y\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nhi",
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(mutated(requests), max_size=5).map(b"".join), st.lists(st.integers(0, 400), max_size=4))
async def test_any_bytes_are_answered_in_a_readable_way_and_no_connection_stays(sent: bytes, cuts: list[int]) -> None:
    client = HttpClient(echo, request_timeout_s=0.01, keep_alive_s=0.01, close_timeout_ms=10)
    places = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    with mock.patch("engine.transports.http_protocol.log.error") as bugs:
        client.send(*(sent[start:stop] for start, stop in pairwise(places)))
        await until(lambda: client.transport.closed, look_s=0.001)
        client.protocol.connection_lost(None)
        await until(lambda: not client.server_state.tasks, look_s=0.001)
    assert not bugs.called
    assert not client.server_state.connections
    assert set(client.responses().statuses) <= {100, 200, 400, 408, 501, 505}


@pytest.mark.parametrize("wait", ["nan", "-1", "inf", "1e400", "x", "", "0x1", "1_0"])
def test_a_wait_that_is_none_is_refused_and_a_long_one_is_cut(edge: EdgeInProcess, wait: str) -> None:
    publish(edge, b'{"user":"u1","type":"a"}', "application/json")
    answer = edge.ask("GET", "/v1/poll", query=f"wait={wait}".encode(), content_type=None)
    assert answer.status == (200 if wait in ("inf", "1e400", "1_0") else 400)
