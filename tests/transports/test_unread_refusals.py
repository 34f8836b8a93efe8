"""While nobody is admitted, requests for a connection are refused without being read."""

from __future__ import annotations

import json
from collections import Counter

from engine.core.wire import records as wire
from engine.http.problems import too_many_requests
from engine.transports.unread_refusals import UnreadRefusals
from tests.support.edge_world import edge_world
from tests.support.handshakes import asked, told

REQUEST = b"GET /v1/ws?last_event_id=7 HTTP/1.1\r\nHost: edge\r\n\r\n"


def head(data: bytes) -> dict[bytes, bytes]:
    """The headers of a response, by their names in small letters."""
    lines = data.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}


def test_requests_are_read_while_connections_are_admitted() -> None:
    assert UnreadRefusals("/v1/ws", lambda: None, Counter()).answer(REQUEST, []) is None


def test_only_a_complete_request_for_the_path_is_refused() -> None:
    refusals = UnreadRefusals("/v1/ws", lambda: too_many_requests("later", 9), Counter())
    assert refusals.answer(REQUEST, []) is not None
    for other in (b"GET /v1/wsx HTTP/1.1\r\n\r\n", b"POST /v1/ws HTTP/1.1\r\n\r\n", REQUEST[:-2], b"GET /v1/sse HTTP/1.1\r\n\r\n"):
        assert refusals.answer(other, []) is None


def test_each_refusal_has_its_own_time_and_the_headers_of_every_response_and_is_counted() -> None:
    waits_s, refused = iter([3, 5, 3]), Counter[int]()
    refusals = UnreadRefusals("/v1/ws", lambda: too_many_requests("later", next(waits_s)), refused)
    for number, wait_s in enumerate((3, 5, 3)):
        data = refusals.answer(REQUEST, [(b"date", b"day %d" % number)])
        assert data is not None
        headers, (_, _, body) = head(data), data.partition(b"\r\n\r\n")
        assert data.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
        assert headers[b"retry-after"] == b"%d" % wait_s
        assert headers[b"date"] == b"day %d" % number
        assert headers[b"connection"] == b"close"
        assert headers[b"content-type"] == b"application/problem+json"
        assert headers[b"content-length"] == b"%d" % len(body)
        assert json.loads(body)["detail"] == "later"
    assert refused == {429: 3}


async def test_a_crowd_is_refused_without_a_look_at_its_tokens_until_there_is_room() -> None:
    async with edge_world(connections_per_s=1, connections_burst_s=3) as world:
        now_ms = world.gateway.clock()
        world.gateway.clock = lambda: now_ms
        assert b" 401 " in await told(world, asked("nonsense"))
        assert b" 101 " in await told(world, asked(world.token()))
        for token in (world.token(), "nonsense"):
            assert b" 429 " in await told(world, asked(token))
        assert dict(world.gateway.metrics.refused) == {401: 1, 429: 2}
        assert len(world.shard.of(wire.Attach)) == 1
        now_ms += 60_000
        assert b" 401 " in await told(world, asked("nonsense")), "there is room, so it is read"


async def test_a_draining_edge_says_so_to_a_crowd() -> None:
    async with edge_world(connections_per_s=1, connections_burst_s=3) as world:
        assert b" 101 " in await told(world, asked(world.token()))
        world.gateway.draining = True
        assert b" 503 " in await told(world, asked(world.token()))
