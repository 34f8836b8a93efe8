"""The short way of the handshake grants what the long way grants, and says nothing of its own about the rest."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from websockets.http11 import Request
from websockets.server import ServerProtocol

from engine.core.wire import records as wire
from engine.transports import websocket_handshake
from tests.support.edge_world import EdgeWorld, client_frame, edge_world, standing_still
from tests.support.handshakes import PLAIN, asked, told
from tests.support.waiting import until


def heads(answer: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Its first line, its headers in whatever order and case, and the rest."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    return first, sorted(line.lower() for line in lines), rest


@contextlib.asynccontextmanager
async def both_ways() -> AsyncIterator[tuple[EdgeWorld, EdgeWorld]]:
    """An edge that goes the short way where it can, and one that never does."""
    async with edge_world() as short, edge_world(short=False) as long:
        yield short, long


# -- What is granted. ------------------------------------------------------------------------------------------------------
GRANTED: list[dict[str, Any]] = [
    {},
    {"Sec_WebSocket_Protocol": None},
    {"Sec_WebSocket_Protocol": "other, notify.v1.json"},
    {"Upgrade": "WebSocket", "Connection": "keep-alive, Upgrade"},
    {"Sec_WebSocket_Extensions": "permessage-deflate; client_max_window_bits", "Cookie": "a=b", "User_Agent": "x"},
    {"target": "/v1/ws?last_event_id=e7-0&device=tv%20set"},
    {"target": "/v1/ws?last_event_id=what&last_event_id=e7-0&device"},
]


async def test_a_plain_request_is_answered_as_the_long_way_answers_it() -> None:
    async with both_ways() as (short, long):
        for options in GRANTED:
            answers = [heads(await told(world, asked(world.token(), **options))) for world in (short, long)]
            assert answers[0] == answers[1], options
            assert answers[0][0] == b"HTTP/1.1 101 Switching Protocols"
            devices = [world.shard.of(wire.Attach)[-1].device for world in (short, long)]
            assert devices == ["tv set" if "tv" in options.get("target", "") else ""] * 2


async def test_a_plain_request_does_not_reach_the_application() -> None:
    seen: list[str] = []

    def watched(application: Any) -> Any:
        async def watch(scope: Any, receive: Any, send: Any) -> None:
            seen.append(scope["type"])
            await application(scope, receive, send)

        return watch

    async with edge_world(wrap=watched) as world:
        client = await world.raw()
        await client.send(client_frame(b'{"type":"ping","ts":1}'))
        assert b"welcome" in (await client.frame())[1]
        assert b"pong" in (await client.frame())[1]
        assert seen == []
        client.close()
        await told(world, asked("nonsense"))
        assert seen == ["websocket"]
        await until(lambda: not world.gateway.connections)
        await until(lambda: not world.server.server_state.connections)


async def test_a_socket_follows_an_answered_request_on_the_same_connection(world: EdgeWorld) -> None:
    client = await world.raw_unasked()
    await client.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = b""
    while not answer.endswith(b'{"status":"ok"}'):
        answer += await client.read(1)
    await client.send(asked(world.token()))
    await client.accepted()
    assert b"welcome" in (await client.frame())[1]
    client.close()


async def test_a_request_in_pieces_is_granted_all_the_same(world: EdgeWorld) -> None:
    client = await world.raw_unasked()
    request = asked(world.token())
    for start in range(0, len(request), 50):
        await client.send(request[start : start + 50])
        await asyncio.sleep(0.002)
    await client.accepted()
    assert b"welcome" in (await client.frame())[1]
    client.close()


# -- What is not. ----------------------------------------------------------------------------------------------------------
OTHERS: list[dict[str, Any]] = [
    {"method": "POST"},
    {"version": "1.0"},
    {"target": "/v1/w%73"},
    {"Sec_WebSocket_Version": "12"},
    {"Sec_WebSocket_Version": None},
    {"Sec_WebSocket_Key": None},
    {"Sec_WebSocket_Key": "c2hvcnQ="},
    {"Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25j?Q=="},
    {"Connection": "Upgrade, @@"},
    {"Sec_WebSocket_Protocol": "notify.v1.json,,x y"},
    {"line": "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="},
    {"line": "Sec-WebSocket-Version: 13"},
    {"line": "Sec-WebSocket-Protocol: other"},
    {"line": "Upgrade: websocket"},
    {"line": "Connection: close"},
    {"line": "Cookie: a=b\r\nCookie: c=d"},
    {"line": "Content-Length: 1"},
    {"line": "Transfer-Encoding: chunked"},
    {"Origin": "https://evil.example"},
    {"Origin": "http://127.0.0.1"},
    {"line": "Origin: http://127.0.0.1\r\nOrigin: https://evil.example"},
    {"Sec_WebSocket_Protocol": "other"},
    {"Authorization": "Bearer nonsense"},
    {"Authorization": None},
    {"Authorization": None, "target": "/v1/ws?token=nonsense"},
]


async def test_any_other_request_gets_the_answer_of_the_long_way() -> None:
    async with both_ways() as (short, long):
        for options in OTHERS:
            answers = [heads(await told(world, asked(world.token(), **options))) for world in (short, long)]
            assert answers[0] == answers[1], options
        assert short.gateway.metrics.refused == long.gateway.metrics.refused
        assert len(short.shard.of(wire.Attach)) == len(long.shard.of(wire.Attach)) < len(OTHERS) / 2


@pytest.mark.parametrize("short", [True, False])
async def test_a_refusal_is_no_error_in_the_log(short: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with edge_world(short=short) as world:
        for options in OTHERS:
            await told(world, asked(world.token(), **options))
        leaving = await world.raw_unasked()
        await leaving.send(asked("nonsense"))
        leaving.close(reset=True)
        await until(lambda: not world.server.server_state.connections)
        await until(lambda: not world.server.server_state.tasks)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_what_the_library_cannot_read_is_refused_and_does_not_stay(world: EdgeWorld) -> None:
    assert (await told(world, asked(world.token(), line="Content-Length: 1"))).startswith(b"HTTP/1.1 400 ")
    assert (await told(world, asked(world.token(), Cookie="a" * 9000, Upgrade="WebSocket", line="X: 1\r\nX: 2"))).startswith(
        b"HTTP/1.1 431 "
    )
    await until(lambda: not world.server.server_state.connections)


async def test_a_plain_request_may_have_lines_as_long_as_any_other(world: EdgeWorld) -> None:
    assert (await told(world, asked(world.token(), Cookie="a" * 9000))).startswith(b"HTTP/1.1 101 ")


async def test_a_refusal_is_counted_once(world: EdgeWorld) -> None:
    assert b" 401 " in await told(world, asked("nonsense"))
    assert b" 403 " in await told(world, asked(world.token(scopes="publish")))
    assert b" 403 " in await told(world, asked(world.token(), Origin="https://evil.example"))
    world.gateway.draining = True
    assert b" 503 " in await told(world, asked(world.token()))
    assert dict(world.gateway.metrics.refused) == {401: 1, 403: 2, 503: 1}
    assert not world.shard.of(wire.Attach)


async def test_a_client_that_offers_subprotocols_but_not_ours_is_refused_before_the_upgrade(world: EdgeWorld) -> None:
    token = world.token()
    for offered in ("other", f"bearer.{token}", f"other, bearer.{token}"):
        answer = await told(world, asked(token, Authorization=None, target=f"/v1/ws?token={token}", Sec_WebSocket_Protocol=offered))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"offer the subprotocol notify.v1.json" in answer
    granted = await told(world, asked(token, Authorization=None, Sec_WebSocket_Protocol=f"bearer.{token}, notify.v1.json"))
    assert b" 101 " in granted
    assert token.encode() not in granted


# -- Admission. ------------------------------------------------------------------------------------------------------------
async def test_a_storm_is_refused_with_429_before_the_upgrade_on_both_ways_and_the_times_to_come_back_are_spread() -> None:
    for short in (True, False):
        async with edge_world(short=short, connections_per_s=2, connections_burst_s=30) as world:
            with standing_still(world):
                answers = [await told(world, asked(world.token(f"u{n}"))) for n in range(100)]
            refused = [answer for answer in answers if b" 101 " not in answer]
            assert 70 <= len(refused) <= 80, "a new edge admits a third of its burst"
            assert all(answer.startswith(b"HTTP/1.1 429 Too Many Requests\r\n") and answer.endswith(b"<end>") for answer in refused)
            waits_s = [int(re.search(rb"(?i)retry-after: (\d+)\r\n", answer)[1]) for answer in refused]  # type: ignore[index]
            assert waits_s[0] <= 2
            assert 30 <= waits_s[-1] <= 50
            assert max(waits_s.count(wait_s) for wait_s in waits_s) <= 6
            assert b'"status":429' in refused[0]
            assert dict(world.gateway.metrics.refused) == {429: len(refused)}, "each is counted once"
            assert len(world.shard.of(wire.Attach)) == 100 - len(refused)


async def test_a_user_who_connects_in_a_loop_is_refused_and_others_are_not() -> None:
    async with edge_world(connections_of_user_burst=5) as world:
        with standing_still(world):
            answers = [await told(world, asked(world.token("loop"))) for _ in range(12)]
        assert 5 <= sum(b" 101 " in answer for answer in answers) <= 7
        assert b"this user begins connections too often" in answers[-1]
        assert b" 101 " in await told(world, asked(world.token("other")))


async def test_requests_that_are_refused_for_another_reason_use_up_nothing() -> None:
    async with edge_world(connections_per_s=1, connections_burst_s=3) as world:
        for _ in range(5):
            assert b" 401 " in await told(world, asked("nonsense"))
            assert b" 403 " in await told(world, asked(world.token(), Origin="https://evil.example"))
        assert b" 101 " in await told(world, asked(world.token()))


async def test_event_streams_are_admitted_like_websockets_and_polls_are_not_counted() -> None:
    async with edge_world(connections_per_s=1, connections_burst_s=3) as world, world.http() as client:
        with standing_still(world):
            for _ in range(3):
                assert (await client.get("/v1/poll?wait=0")).status_code == 200
            async with client.stream("GET", "/v1/sse") as stream:
                assert stream.status_code == 200
            answer = await client.get("/v1/sse")
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) >= 1
            assert b" 429 " in await told(world, asked(world.token()))


words = st.text("abcXYZ019-_. ,;@=+/?\xe9", max_size=30).map(str.strip)
keys = st.binary(min_size=15, max_size=17).map(lambda raw: b64encode(raw).decode())
other_values = {
    "Connection": st.sampled_from(["upgrade", "keep-alive, Upgrade", "close"]) | words,
    "Upgrade": st.sampled_from(["WebSocket", "h2c"]) | words,
    "Sec-WebSocket-Key": keys | words,
    "Sec-WebSocket-Version": st.sampled_from(["8", "13, 13"]) | words,
    "Sec-WebSocket-Protocol": st.sampled_from(["a, b", "a,b", "a ,b", "a,,b", "bearer.x.y.z"]) | words,
    "Sec-WebSocket-Extensions": words,
    "Origin": words,
    "Content-Length": st.sampled_from(["0", "1"]),
    "Transfer-Encoding": st.just("chunked"),
}
changes = st.lists(st.sampled_from(sorted(other_values)).flatmap(lambda name: st.tuples(st.just(name), other_values[name])), max_size=3)


@example("GET", "1.1", [("Sec-WebSocket-Protocol", "a b")], [])
@given(st.sampled_from(["GET"] * 4 + ["POST"]), st.sampled_from(["1.1"] * 4 + ["1.0"]), changes, changes)
def test_what_is_plain_is_what_the_library_grants(
    method: str, version: str, changed: list[tuple[str, str]], added: list[tuple[str, str]]
) -> None:
    lines = [*(PLAIN | dict(changed)).items(), *added[2:]]
    opening = websocket_handshake.plain(
        method, version, b"/v1/ws?x=1", [(name.lower().encode(), value.encode("latin-1")) for name, value in lines]
    )
    if opening is None:
        return
    library = ServerProtocol()
    library.receive_data(f"{method} /v1/ws?x=1 HTTP/{version}\r\n".encode())
    library.receive_data("".join(f"{name}: {value}\r\n" for name, value in lines).encode("latin-1") + b"\r\n")
    assert library.parser_exc is None
    (request,) = library.events_received()
    assert isinstance(request, Request)
    response = library.accept(request)
    assert response.status_code == 101
    assert opening.query_string == b"x=1"
    accept = response.headers["Sec-WebSocket-Accept"]
    assert f"Sec-WebSocket-Accept: {accept}\r\n".encode() in websocket_handshake.answer(opening, [])
    offered = request.headers["Sec-WebSocket-Protocol"]
    assert opening.subprotocols == [token.strip() for token in offered.split(",")]


def test_the_plainest_request_is_plain() -> None:
    headers = [(name.lower().encode(), value.encode()) for name, value in PLAIN.items()]
    assert websocket_handshake.plain("GET", "1.1", b"/v1/ws?token=x", headers) == (
        "dGhlIHNhbXBsZSBub25jZQ==",
        b"token=x",
        ["notify.v1.json"],
    )
