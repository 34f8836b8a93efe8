"""The short way of publishing answers what the long way answers, and every request is answered once, whichever way it takes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import re
import weakref
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import publish_endpoint
from engine.core.model.revocation import USER, Revocation
from engine.core.wire import records as wire
from tests.support.edge_world import EdgeWorld, edge_world, reset_at_close, until
from tests.support.publish_requests import ITEM, ONE, asked, connected, connections, counting


async def told(world: EdgeWorld, *requests: bytes) -> list[bytes]:
    """The answers to requests of one connection, each sent after the answer before it."""
    async with connected(world) as connection:
        return [await connection.ask(request) for request in requests]


@contextlib.asynccontextmanager
async def both_ways(**settings: Any) -> AsyncIterator[tuple[EdgeWorld, EdgeWorld]]:
    """An edge that goes the short way where it can, and one that never does."""
    async with edge_world(**settings) as short, edge_world(short=False, **settings) as long:
        yield short, long


# -- What both ways answer. ------------------------------------------------------------------------------------------------
REQUESTS: list[dict[str, Any]] = [
    {},
    {},  # a repeat
    {"body": json.dumps({**ITEM, "data": 2}).encode()},  # a conflict
    {"body": json.dumps([{**ITEM, "id": f"b{n}", "user": f"u{n}"} for n in range(20)]).encode()},
    {"body": json.dumps({**ITEM, "id": "later", "delay": 60}).encode()},
    {"body": b'{"id":"m2","user":"u1","type":"a.b"}\n{"id":"m3","user":"u1","type":"a.b"}', "Content_Type": "application/x-ndjson"},
    {"Content_Type": None},
    {"Content_Type": "text/plain"},
    {"Content_Type": "application/json; charset=latin-1"},
    {"line": "Content-Type: text/plain"},
    {"body": b""},
    {"body": b"", "Content_Length": None},
    {"body": b"{"},
    {"body": b"[]"},
    {"body": b'{"user":"u1"}'},
    {"body": b'{"user":"u1","type":"no words"}'},
    {"body": b'{"user":"u1","type":"a.b","data":"' + b"x" * 70_000 + b'"}'},
    {"Authorization": None},
    {"Authorization": "Bearer nonsense"},
    {"Authorization": "Basic nonsense"},
    {"line": "Authorization: Bearer nonsense"},
    {"method": "PUT"},
    {"method": "GET", "body": b"", "Content_Length": None},
    {"target": "/v1/notifications/"},
    {"target": "/v1/%6eotifications"},
    {"target": "/v1/notifications?x=1"},
    {"target": "/v1/notifications?token=nonsense", "Authorization": None},
    {"version": "1.0"},
    {"line": "Connection: close"},
    {"line": "Connection: keep-alive"},
    {"Content_Length": None, "line": "Transfer-Encoding: chunked", "body": b"%x\r\n%b\r\n0\r\n\r\n" % (len(ONE), ONE)},
    {"line": "Origin: https://elsewhere.example"},
    {"line": "Origin: http://127.0.0.1"},
    {"line": "Sec-Fetch-Site: cross-site"},
    {"line": "Sec-Fetch-Site: same-origin"},
    {"line": "Cookie: a=b"},
    {"Content_Length": "-1"},
    {"Content_Length": "99999999999"},
    {"line": "Content-Length: 1"},
]


async def test_a_request_is_answered_as_the_long_way_answers_it() -> None:
    async with both_ways() as (short, long):
        unreadable: Counter[int] = Counter()  # refused before there is a way to take; only the edge with both ways has a counter there
        for options in REQUESTS:
            answers = [await told(world, asked(world.token(), **options)) for world in (short, long)]
            assert answers[0] == answers[1], options
            unreadable[400] += answers[0][0].startswith(b"HTTP/1.1 400 ") and b"connection: close" in answers[0][0]
        assert short.gateway.metrics.refused == long.gateway.metrics.refused + unreadable
        assert short.gateway.metrics.figures()["published"] == long.gateway.metrics.figures()["published"]
        assert [type(record) for record in short.shard.received] == [type(record) for record in long.shard.received]


async def test_the_right_scope_is_needed_either_way() -> None:
    async with both_ways() as (short, long):
        answers = [await told(world, asked(world.token(scopes="connect"))) for world in (short, long)]
        assert answers[0] == answers[1]
        assert answers[0][0].startswith(b"HTTP/1.1 403 ")


async def test_an_overloaded_edge_refuses_either_way_and_counts_it() -> None:
    async with both_ways() as (short, long):
        for world in (short, long):
            world.gateway.request_queue._shards_ms = lambda tenant: 1e6
        varies = rb"retry-after: \d+|takes \d+ ms"  # by chance, and by how late the event loop is just now
        answers = [re.sub(varies, b"", (await told(world, asked(world.token())))[0]) for world in (short, long)]
        assert answers[0] == answers[1]
        assert answers[0].startswith(b"HTTP/1.1 429 ")
        assert dict(short.gateway.metrics.refused) == dict(long.gateway.metrics.refused) == {429: 1}


async def test_a_refused_request_whose_body_is_not_here_is_counted_once() -> None:
    async with edge_world() as world, connected(world) as connection:
        request = asked(world.token())
        for _ in range(2):  # then its head is kept
            assert b" 202 " in await connection.ask(request)
        world.gateway.request_queue._shards_ms = lambda tenant: 1e6
        assert b" 429 " in await connection.ask(request[:-1])
        assert world.gateway.metrics.shed_requests == {"high": 1}
    async with edge_world() as world, connected(world) as connection:
        world.gateway.request_queue._shards_ms = lambda tenant: 1e6
        assert b" 429 " in await connection.ask(request[:-1])
        assert world.gateway.metrics.shed_requests == {"high": 1}


async def test_what_was_decided_about_a_request_is_not_decided_again_for_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    async with edge_world() as world, connected(world) as connection:
        asked_for: list[str] = []
        takes = world.gateway.request_queue.takes_unread
        monkeypatch.setattr(world.gateway.request_queue, "takes_unread", lambda tenant: asked_for.append(tenant) or takes(tenant))
        request = asked(world.token())
        head = request.index(b"\r\n\r\n") + 4
        (protocol,) = connections(world)
        for end in range(head, len(request)):
            protocol.data_received(request[:head] if end == head else request[end - 1 : end])
        assert b" 202 " in await connection.ask(request[-1:])
        assert asked_for == ["default"]


async def test_a_shard_that_does_not_answer_is_a_503_either_way() -> None:
    async with both_ways(publish_timeout_ms=50) as (short, long):
        for world in (short, long):
            world.shard.connected = False
        answers = [await told(world, asked(world.token())) for world in (short, long)]
        assert answers[0] == answers[1]
        assert answers[0][0].startswith(b"HTTP/1.1 503 ")


# -- Which way it takes. ---------------------------------------------------------------------------------------------------
async def test_a_plain_request_does_not_reach_the_application() -> None:
    seen: list[str] = []
    async with edge_world(wrap=counting(seen)) as world:
        token = world.token()
        answers = await told(world, asked(token), asked("nonsense"), asked(token, target="/v1/notifications?x=1"), asked(token))
        assert [answer.split(b" ")[1] for answer in answers] == [b"202", b"401", b"202", b"202"]
        assert seen == [publish_endpoint.PATH]


async def test_a_body_that_comes_in_pieces_is_waited_for() -> None:
    seen: list[str] = []
    async with edge_world(wrap=counting(seen)) as world, connected(world) as connection:
        small = asked(world.token())
        large = asked(world.token(), json.dumps({**ITEM, "id": "large", "data": "x" * 9000}).encode())
        for request, ways in (small, 0), (large, 1), (small, 0), (large, 1):
            (protocol,) = connections(world)
            for end in request.index(b"\r\n\r\n") + 4, len(request) - 10:  # after the head; within the body
                connection.writer.write(request[:end])
                await until(lambda protocol=protocol: protocol.busy)
                assert len(seen) == ways, "the application waits for the rest of what is not small"
                assert b" 202 " in await connection.ask(request[end:])
                seen.clear()
        connection.writer.write(small[:50])
        await asyncio.sleep(0.01)
        connection.writer.write(small[50:])  # the head in pieces, the body with the last
        assert b" 202 " in await connection.answer()
        assert seen == []


async def test_who_may_not_publish_is_told_before_the_body_is_here(world: EdgeWorld) -> None:
    for token, status in ("nonsense", b" 401 "), (world.token(scopes="connect"), b" 403 "):
        async with connected(world) as connection:
            assert status in await connection.ask(asked(token)[:-1])
    async with connected(world) as connection:
        token = world.token("revoked")
        for _ in range(2):  # then its head is kept
            assert b" 202 " in await connection.ask(asked(token))
        now_ms = world.gateway.wall_ms()
        world.gateway.revoked.add([Revocation(USER, "default", "revoked", now_ms + 600_000, now_ms + 1000)])
        assert b" 401 " in await connection.ask(asked(token)[:-1])


async def test_a_body_that_never_comes_is_given_up() -> None:
    async with edge_world(request_timeout_s=0.1) as world:
        for before in range(3):  # of the last one the head is kept
            async with connected(world) as connection:
                for _ in range(before):
                    assert b" 202 " in await connection.ask(asked(world.token("publisher")))
                assert b" 408 " in await connection.ask(asked(world.token("publisher"))[:-1])


# -- One connection. -------------------------------------------------------------------------------------------------------
async def test_requests_sent_without_waiting_are_answered_in_their_order() -> None:
    async with edge_world() as world, connected(world) as connection:
        token = world.token()
        bodies = [json.dumps({**ITEM, "id": f"p{n}"}).encode() for n in range(6)]
        health = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        requests = [asked(token, body) if n % 3 else asked("nonsense") + health + asked(token, body) for n, body in enumerate(bodies)]
        answers = [await connection.ask(b"".join(requests)) for _ in range(10)]
        assert [answer.split(b" ")[1] for answer in answers] == [b"401", b"200", b"202", b"202", b"202"] * 2
        named = [json.loads(answer.partition(b"\r\n\r\n")[2])["results"][0]["id"] for answer in answers if b" 202 " in answer]
        assert named == [f"p{n}" for n in range(6)]


async def test_an_answered_request_does_not_end_the_one_behind_it() -> None:
    """A refusal is answered while the read that brought it is still looked at; its keep-alive must not count for the next request."""
    async with edge_world(keep_alive_s=1, publish_timeout_ms=5000) as world, connected(world) as connection:
        world.shard.connected = False
        assert b" 401 " in await connection.ask(asked("nonsense") + asked(world.token()))
        await asyncio.sleep(1.3)
        world.shard.reset()
        assert b" 202 " in await connection.answer()


async def test_an_idle_connection_is_closed_after_its_last_answer() -> None:
    async with edge_world(keep_alive_s=1) as world, connected(world) as connection:
        assert b" 202 " in await connection.ask(asked(world.token()))
        assert await connection.answer() == b"<end>"
        await until(lambda: not world.server.server_state.connections)


@pytest.mark.parametrize("token", ["", "nonsense"])
async def test_a_connection_that_has_ended_leaves_nothing_for_the_collector(world: EdgeWorld, token: str) -> None:
    gc.disable()
    try:
        async with connected(world) as connection:
            await connection.ask(asked(token or world.token()))
            (protocol,) = map(weakref.ref, world.server.server_state.connections)
        await until(lambda: protocol() is None)
    finally:
        gc.enable()


async def test_a_client_that_leaves_before_the_answer_disturbs_nobody(world: EdgeWorld) -> None:
    world.shard.connected = False
    async with connected(world) as connection:
        connection.writer.write(asked(world.token()))
        await until(lambda: world.server.server_state.tasks)
        reset_at_close(connection.writer.get_extra_info("socket"))
    await until(lambda: not world.server.server_state.connections)
    world.shard.reset()
    await until(lambda: not world.server.server_state.tasks)
    assert len(world.shard.of(wire.Post)) == 1
    assert b" 202 " in (await told(world, asked(world.token())))[0]


async def test_a_request_under_way_is_answered_before_the_server_ends() -> None:
    async with edge_world() as world, connected(world) as connection:
        world.shard.connected = False
        connection.writer.write(asked(world.token()))
        await until(lambda: world.server.server_state.tasks)
        world.server.should_exit = True
        await until(lambda: all(connection.stopping for connection in connections(world)))
        world.shard.reset()
        answer = await connection.answer()
        assert b" 202 " in answer
        assert answer.endswith(b"<end>")


def answered(world: EdgeWorld, protocol: Any, items: int) -> bool:
    """Have so many items been published, and their publishers told?"""
    return world.gateway.metrics.published_count == items and not protocol.busy


async def test_answers_do_not_pile_up_for_a_client_that_does_not_read_them() -> None:
    async with edge_world() as world, connected(world) as connection:
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a ReadTransport too
        request = asked(world.token(), json.dumps([{"user": f"u{n}", "type": "a.b"} for n in range(250)]).encode())
        (protocol,) = world.server.server_state.connections
        sent = 0
        while not protocol.write_paused:
            connection.writer.write(request)
            sent += 1
            await until(partial(answered, world, protocol, 250 * sent))
        piled_up = protocol.transport.get_write_buffer_size()
        connection.writer.write(request)
        await until(lambda: world.gateway.metrics.published_count == 250 * (sent + 1))
        await asyncio.sleep(0.05)
        assert protocol.transport.get_write_buffer_size() == piled_up
        connection.writer.transport.resume_reading()  # type: ignore[attr-defined]  # likewise
        for _ in range(sent + 1):
            assert b" 202 " in await connection.answer()


async def test_a_bug_is_told_to_the_log_and_not_to_the_client(world: EdgeWorld, caplog: pytest.LogCaptureFixture) -> None:

    async def fail(_drafts: Any) -> Any:
        raise RuntimeError("secret thought")

    world.gateway.shard_client.post = fail  # type: ignore[method-assign]
    with caplog.at_level(logging.ERROR):
        (answer,) = await told(world, asked(world.token()))
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"secret" not in answer
    assert "secret thought" in caplog.text


# -- What is plain. --------------------------------------------------------------------------------------------------------
names = st.sampled_from(
    [b"host", b"content-length", b"authorization", b"cookie", b"origin", b"expect", b"transfer-encoding", b"sec-fetch-site"]
)
SPECIAL = {b"origin", b"expect", b"transfer-encoding", b"sec-fetch-site", b"upgrade"}


@given(st.lists(st.tuples(names, st.binary(max_size=5)), max_size=6))
def test_whatever_somebody_between_would_look_at_is_not_plain(headers: list[tuple[bytes, bytes]]) -> None:
    assert publish_endpoint.plain(b"POST", b"/v1/notifications", "1.1", headers) == SPECIAL.isdisjoint(name for name, _ in headers)


def test_only_the_endpoint_itself_is_plain() -> None:
    assert publish_endpoint.plain(b"POST", b"/v1/notifications", "1.1", [])
    assert not publish_endpoint.plain(b"PUT", b"/v1/notifications", "1.1", [])
    assert not publish_endpoint.plain(b"POST", b"/v1/notifications?token=x", "1.1", [])
    assert not publish_endpoint.plain(b"POST", b"/v1/notifications", "1.0", [])
