"""The states of one HTTP connection: what is read when, how long it may take, and in which order responses leave."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.transports.asgi import AsgiExchange
from tests.support.edge_world import EdgeWorld, client_frame, edge_world
from tests.support.http_connection import HttpClient, respond, whole_body
from tests.support.waiting import until


def get(path: str = "/", *lines: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *lines, "", ""]).encode()


def post(body: bytes, *lines: str) -> bytes:
    return "\r\n".join(["POST / HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *lines, "", ""]).encode() + body


CHUNKED = b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


async def refuse(scope: Any, receive: Any, send: Any) -> None:
    """Answers without reading."""
    await respond(send, b"", 413)


class SteppedLoop:
    """The running event loop, with a clock that a test moves, and timers that fire then."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._now_s = 1.0
        self._timers: list[tuple[float, asyncio.Handle, Callable[[], object]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def time(self) -> float:
        return self._now_s

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> asyncio.Handle:
        handle = asyncio.Handle(callback, (), self._loop)
        self._timers.append((self._now_s + delay_s, handle, callback))
        return handle

    def advance(self, by_s: float) -> None:
        self._now_s += by_s
        timers, self._timers = self._timers, []
        for timer in timers:
            due_s, handle, callback = timer
            if due_s > self._now_s:
                self._timers.append(timer)
            elif not handle.cancelled():
                callback()


class Echo:
    """Answers with the path and the body, when it may."""

    def __init__(self) -> None:
        self.scopes: list[Any] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        body = await whole_body(receive)
        if body is None:
            return
        await self.may_answer.wait()
        await respond(send, scope["path"].encode() + b":" + body)


# -- Requests and their order. ---------------------------------------------------------------------------------------------
async def test_requests_sent_at_once_are_answered_in_their_order() -> None:
    client = HttpClient(Echo()).sending(get("/1") + post(b"two") + get("/3"))
    assert (await client.answered(3)).bodies == [b"/1:", b"/:two", b"/3:"]
    assert not client.transport.ended


async def test_nothing_more_is_read_while_a_request_waits_for_its_turn() -> None:
    echo = Echo()
    echo.may_answer.clear()
    client = HttpClient(echo).sending(get("/1"))
    assert client.transport.reading
    client.send(get("/2"))
    await until(lambda: echo.scopes)
    assert not client.transport.reading
    echo.may_answer.set()
    await client.answered(2)
    assert client.transport.reading


async def test_a_400_comes_behind_the_responses_before_it() -> None:
    client = HttpClient(Echo()).sending(get("/1") + get("/2") + b"no http\r\n\r\n")
    assert (await client.answered(3)).statuses == [200, 200, 400]
    assert client.transport.ended


async def test_what_comes_behind_what_cannot_be_read_is_not_looked_at() -> None:
    echo = Echo()
    echo.may_answer.clear()
    client = HttpClient(echo).sending(get("/1"), b"no http\r\n\r\n", get("/2"))
    echo.may_answer.set()
    assert (await client.answered(2)).statuses == [200, 400]
    assert [scope["path"] for scope in echo.scopes] == ["/1"]


async def test_a_malformed_body_is_a_400_and_its_application_learns_of_a_disconnect() -> None:
    left: list[bool] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        left.append(True)

    client = HttpClient(application).sending(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n", b"what?\r\n")
    assert (await client.answered(1)).statuses == [400]
    assert client.transport.ended
    await until(lambda: left)


async def test_a_malformed_body_behind_an_unanswered_request_spoils_only_its_own() -> None:
    echo = Echo()
    echo.may_answer.clear()
    client = HttpClient(echo).sending(get("/1"), b"POST /2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nwhat?\r\n")
    echo.may_answer.set()
    assert (await client.answered(2)).statuses == [200, 400]
    assert [scope["path"] for scope in echo.scopes] == ["/1"]


@pytest.mark.parametrize("target", ["http://x", "/%", "*", "a:b", "/\xff"])
async def test_any_target_is_answered(target: str) -> None:
    client = HttpClient(Echo()).sending(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode("latin-1"))
    assert (await client.answered(1)).statuses[0] in (200, 400)


async def test_trailers_are_no_headers() -> None:
    echo = Echo()
    client = HttpClient(echo)
    client.send(
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nAuthorization: Bearer late\r\n\r\n" + get("/2")
    )
    assert (await client.answered(2)).bodies == [b"/:a", b"/2:"]
    assert [name for name, _ in echo.scopes[0]["headers"]] == [b"host", b"transfer-encoding"]
    assert [name for name, _ in echo.scopes[1]["headers"]] == [b"host"]


@given(st.lists(st.sampled_from([get("/a"), get("/b", "X-Y: 1"), post(b""), post(b"b" * 300)]), max_size=4), st.lists(st.integers(0, 600)))
async def test_any_cut_of_the_same_requests_gets_the_same_responses(requests: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(requests)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    whole, cut = HttpClient(Echo()), HttpClient(Echo())
    whole.send(stream)
    cut.send(*(stream[start:stop] for start, stop in pairwise(places)))
    for client in (whole, cut):
        if requests:
            await client.answered(len(requests))
    assert whole.transport.written == cut.transport.written


# -- The end. --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("request_", [get("/", "Connection: close"), b"GET / HTTP/1.0\r\n\r\n"])
async def test_a_connection_is_closed_for_who_does_not_want_it_kept(request_: bytes) -> None:
    echo = Echo()
    client = HttpClient(echo).sending(request_ + get("/2"))
    answer = await client.answered(1)
    assert answer.headers[0]["connection"] == "close"
    assert client.transport.ended
    assert [scope["path"] for scope in echo.scopes] == ["/"]


async def test_a_client_that_leaves_disconnects_every_request_and_lets_nothing_wait() -> None:
    echo = Echo()
    client = HttpClient(echo).sending(get("/1") + get("/2"), b"POST /3 HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
    client.leave()
    await until(lambda: not client.server_state.tasks)
    assert [scope["path"] for scope in echo.scopes] == ["/1"]
    assert not client.transport.written
    assert not client.server_state.connections


async def test_a_client_that_closes_its_half_gets_the_answers_due() -> None:
    """But not that of a GET, which may wait for messages, nor of half a request."""
    echo = Echo()
    echo.may_answer.clear()
    client = HttpClient(echo).sending(post(b"1"))
    assert client.protocol.eof_received()
    echo.may_answer.set()
    answer = await client.answered(1)
    assert (answer.bodies, answer.headers[0]["connection"]) == ([b"/:1"], "close")
    assert client.transport.closed
    for unanswered in (b"", get("/"), post(b"1")[:-1]):
        client = HttpClient(Echo()).sending(unanswered)
        assert not client.protocol.eof_received()


async def test_a_server_that_stops_closes_idle_connections_and_others_behind_their_last_response() -> None:
    idle = HttpClient(Echo())
    idle.protocol.shutdown()
    assert idle.transport.closed
    busy = HttpClient(Echo()).sending(get("/1") + get("/2"))
    busy.protocol.shutdown()
    answer = await busy.answered(2)
    assert ["connection" in headers for headers in answer.headers] == [False, True]
    assert busy.transport.closed


async def test_a_connection_that_retires_waits_for_one_more_request_and_closes_behind_its_response() -> None:
    client = HttpClient(Echo())
    client.protocol.retire()
    assert not client.transport.closed
    client.send(post(b"publish"))
    answer = await client.answered(1)
    assert answer.headers[0]["connection"] == "close"
    assert client.transport.closed


# -- How long it may take, and how much it may be. -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("parts", "statuses"),
    [
        ([], []),  # nobody waits for a word
        ([b"GE"], []),
        ([b"GET / HTTP/1.1\r\n"], [408]),
        ([b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1"], [408]),
        ([b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", b"1"], [408]),
        ([get("/1"), b"\r\nGET / HTTP/1.1\r\n"], [200, 408]),
        ([get("/1"), CHUNKED + b"1\r\na\r\n0\r\nX: y\r\n"], [200, 408]),
    ],
)
async def test_a_request_that_takes_too_long_ends_the_connection(parts: list[bytes], statuses: list[int]) -> None:
    client = HttpClient(Echo(), request_timeout_s=0.05, close_timeout_ms=50).sending(*parts)
    await until(lambda: client.transport.ended)
    assert client.responses().statuses == statuses
    await until(lambda: client.transport.closed)


async def test_the_time_of_a_request_does_not_end_the_one_before_it() -> None:
    echo = Echo()
    echo.may_answer.clear()
    client = HttpClient(echo, request_timeout_s=0.05).sending(get("/1"), b"GET /2 HTTP/1.1\r\n")
    await asyncio.sleep(0.15)
    assert not client.transport.ended
    client.send(b"Host: x\r\n\r\n")  # too late
    echo.may_answer.set()
    assert (await client.answered(2)).statuses == [200, 408]
    assert [scope["path"] for scope in echo.scopes] == ["/1"]


async def test_every_request_has_its_whole_time_whatever_came_before_it() -> None:
    client = HttpClient(Echo(), request_timeout_s=3, keep_alive_s=60)
    stepped = client.protocol._loop = SteppedLoop()  # type: ignore[assignment]
    for number in range(3):
        client.send(get("/")[:9])
        stepped.advance(2.9)
        assert not client.transport.ended
        client.send(get("/")[9:])
        assert (await client.answered(number + 1)).statuses == [200] * (number + 1)
    client.send(get("/")[:9])
    stepped.advance(3.1)
    assert client.transport.ended


async def test_time_in_which_the_client_has_to_wait_is_not_the_clients() -> None:
    echo = Echo()
    echo.may_answer.clear()
    client = HttpClient(echo, request_timeout_s=0.1).sending(get("/1") + b"POST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
    await asyncio.sleep(0.2)
    assert not client.transport.ended
    client.send(b"two")
    echo.may_answer.set()
    assert (await client.answered(2)).bodies == [b"/1:", b"/2:two"]


async def test_a_request_whose_answer_has_left_is_not_answered_again_when_its_rest_is_late_or_wrong() -> None:
    for rest in (b"", b"what?\r\n", b"0\r\n" + b"X: y\r\n" * 20_000):
        client = HttpClient(refuse, request_timeout_s=0.1).sending(CHUNKED)
        await client.answered(1)
        client.send(rest)
        await until(lambda client=client: client.transport.ended)
        assert client.responses().statuses == [413]


async def test_an_idle_connection_is_closed_whatever_comes_that_is_no_request() -> None:
    client = HttpClient(Echo(), keep_alive_s=0.2).sending(get("/1"))
    await client.answered(1)
    while not client.transport.closed:
        client.send(b"\r\n")
        await asyncio.sleep(0.01)
    assert not client.transport.aborted


async def test_a_body_that_comes_behind_its_response_keeps_no_connection() -> None:
    client = HttpClient(refuse, request_timeout_s=2).sending(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")
    await client.answered(1)
    client.send(b"x" * 100_000)
    assert client.transport.reading
    while not client.transport.ended:
        client.send(b"x")
        await asyncio.sleep(0.01)


async def test_a_request_under_way_has_no_deadline_of_the_connection() -> None:
    echo = Echo()
    echo.may_answer.clear()
    client = HttpClient(echo, keep_alive_s=0.05, request_timeout_s=0.05).sending(get("/1"))
    await asyncio.sleep(0.15)
    assert not client.transport.ended
    echo.may_answer.set()
    await client.answered(1)
    await until(lambda: client.transport.closed)


async def test_only_the_bytes_of_a_head_count_against_its_limit() -> None:
    client = HttpClient(Echo(), request_head_bytes_max=1000)
    many = get("/", "X: " + "y" * 400)
    client.send(many[:100], many[100:] + many * 9 + many[:100], many[100:])
    assert (await client.answered(11)).statuses == [200] * 11
    client.send(many[:100], b"y" * 1000)
    assert not client.transport.ended
    client.send(b"y")
    assert (await client.answered(12)).statuses[-1] == 431
    assert client.transport.ended


async def test_a_head_has_so_many_headers() -> None:
    for lines, status in ((99, 200), (100, 431)):
        client = HttpClient(Echo()).sending(get("/", *["a: b"] * lines))
        assert (await client.answered(1)).statuses == [status]
    client = HttpClient(Echo(), request_headers_max=20).sending(b"GET / HTTP/1.1\r\nHost: x\r\n", b"a:\r\n" * 30)
    assert (await client.answered(1)).statuses == [431]


@pytest.mark.parametrize(
    "unused",
    [
        b"0\r\n" + b"X: y\r\n" * 12_000,  # trailers, each of them short
        b"0\r\nX: " + b"y" * 72_000,
        b"1;" + b"x" * 72_000,
        b"1;a=" + b"x" * 72_000,
        b"0" * 72_000,
        b"".join(b"1;%b\r\nx\r\n" % (b"x" * 40) for _ in range(5_000)),
    ],
)
async def test_what_is_no_body_of_a_chunked_body_is_bounded(unused: bytes) -> None:
    echo = Echo()
    client = HttpClient(echo).sending(CHUNKED + b"1\r\nx\r\n", *(unused[at : at + 1000] for at in range(0, len(unused), 1000)))
    assert (await client.answered(1)).statuses == [400]
    assert client.transport.ended


async def test_a_body_in_the_smallest_chunks_is_a_body() -> None:
    client = HttpClient(Echo()).sending(CHUNKED + b"00000001\r\nx\r\n" * 20_000 + b"0\r\nX: y\r\n\r\n" + get("/2"))
    assert (await client.answered(2)).bodies == [b"/c:" + b"x" * 20_000, b"/2:"]


async def test_few_of_the_requests_that_are_sent_at_once_wait_and_all_are_answered() -> None:
    class Watched(Echo):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if not waiting:
                waiting.append(sum(type(thing) is AsgiExchange for thing in gc.get_objects()))
            await super().__call__(scope, receive, send)

    waiting: list[int] = []
    client = HttpClient(Watched()).sending(get("/") * 500)
    assert not client.transport.reading
    assert (await client.answered(500)).bodies == [b"/:"] * 500
    assert waiting[0] < 200
    assert client.transport.reading


async def test_a_publisher_that_is_refused_at_once_does_not_hold_the_event_loop(world: EdgeWorld) -> None:
    client = await world.raw_unasked()
    request = b"POST /v1/notifications HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    refused = world.gateway.metrics.refused
    await client.send(request * 500)
    steps: list[int] = []
    while refused[401] < 500:
        await asyncio.sleep(0)
        steps.append(refused[401])
    assert max(after - before for before, after in pairwise([0, *steps])) <= 3
    client.close()


# -- Clients that do not take their answers. -------------------------------------------------------------------------------
async def test_a_client_that_takes_nothing_is_disconnected_and_one_that_takes_little_is_not() -> None:
    stuck, slow = (HttpClient(Echo(), send_stall_ms=50) for _ in range(2))
    for client in (stuck, slow):
        client.transport.unsent = 1000
        client.protocol.pause_writing()
        client.send(get("/1") + get("/2"))
    for _ in range(8):
        await asyncio.sleep(0.03)
        slow.transport.unsent -= 100
    await until(lambda: stuck.transport.aborted)
    assert not slow.transport.ended
    slow.transport.unsent = 0
    slow.protocol.resume_writing()
    assert (await slow.answered(2)).statuses == [200, 200]
    assert not stuck.transport.written


async def test_a_stall_counts_from_its_own_beginning() -> None:
    client = HttpClient(Echo(), send_stall_ms=100)
    client.transport.unsent = 100
    client.protocol.pause_writing()
    await asyncio.sleep(0.15)  # looked at once
    client.protocol.resume_writing()
    client.transport.unsent = 1000
    client.protocol.pause_writing()
    await asyncio.sleep(0.07)
    assert not client.transport.aborted
    await until(lambda: client.transport.aborted)


async def test_a_closing_connection_does_not_wait_for_ever_either() -> None:
    client = HttpClient(Echo(), send_stall_ms=50)
    client.transport.unsent = 1000
    client.send(get("/", "Connection: close"))
    await client.answered(1)
    assert client.transport.closed
    await until(lambda: client.transport.aborted)


async def test_a_client_that_leaves_in_the_middle_of_its_requests_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    parts = [
        get("/healthz") * 40,
        get("/v1/poll?wait=0.1", "Authorization: Bearer TOKEN") * 3,
        b"POST /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer TOKEN\r\nContent-Length: 500\r\n\r\n{",
        b"POST /v1/notifications HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer TOKEN\r\nContent-Length: 2\r\n\r\n{}" * 20,
        b"POST /v1/notifications HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer TOKEN\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}",
    ]
    async with edge_world() as world:
        for number in range(40):
            client = await world.raw_unasked()
            sent = b"".join(parts[(number + index) % len(parts)] for index in range(3))
            await client.send(sent.replace(b"TOKEN", world.token().encode()))
            await asyncio.sleep(0.001 * (number % 4))
            client.close(reset=number % 2 == 0)
        await until(lambda: not world.server.server_state.connections)
        await until(lambda: not world.server.server_state.tasks)
        assert 500 not in world.gateway.metrics.refused
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_body_that_the_application_does_not_read_stops_the_client() -> None:
    may_read = asyncio.Event()

    async def late(scope: Any, receive: Any, send: Any) -> None:
        await may_read.wait()
        await Echo()(scope, receive, send)

    client = HttpClient(late).sending(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 80000\r\n\r\n", b"b" * 40_000)
    assert client.transport.reading
    client.send(b"b" * 30_000)
    assert not client.transport.reading
    may_read.set()
    await until(lambda: client.transport.reading)
    client.send(b"b" * 10_000)
    assert len((await client.answered(1)).bodies[0]) == 80_002


async def test_responses_wait_for_a_client_that_does_not_read() -> None:
    client = HttpClient(Echo())
    client.protocol.pause_writing()
    client.send(get("/1"))
    await asyncio.sleep(0.05)
    assert not client.transport.written
    client.protocol.resume_writing()
    assert (await client.answered(1)).statuses == [200]


# -- Upgrades. -------------------------------------------------------------------------------------------------------------
H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA")


async def test_an_upgrade_to_anything_but_a_websocket_is_served_as_http_1_1() -> None:
    client = HttpClient(Echo())
    client.send(get("/1", *H2C) + post(b"two", *H2C) + get("/3"), get("/4", *H2C)[:60], get("/4", *H2C)[60:] + get("/5"))
    assert (await client.answered(5)).bodies == [b"/1:", b"/:two", b"/3:", b"/4:", b"/5:"]


async def test_a_chunked_body_behind_an_upgrade_is_a_body() -> None:
    client = HttpClient(Echo())
    head = "\r\n".join(["POST / HTTP/1.1", "Host: x", "Transfer-Encoding: chunked", *H2C, "", ""]).encode()
    client.send(head, b"3\r\ntwo\r\n", b"0\r\n\r\n" + get("/2"))
    assert (await client.answered(2)).bodies == [b"/:two", b"/2:"]


async def test_an_upgrade_on_a_connection_that_is_not_kept_is_served_too() -> None:
    client = HttpClient(Echo()).sending(get("/1", "Connection: close, Upgrade", "Upgrade: h2c"))
    assert (await client.answered(1)).bodies == [b"/1:"]
    assert client.transport.ended


async def test_connect_is_refused() -> None:
    client = HttpClient(Echo()).sending(b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n" + get("/2"))
    assert (await client.answered(1)).statuses == [400]
    assert client.transport.ended


def websocket(token: str, *lines: str) -> bytes:
    fields = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13")
    return get("/v1/ws", f"Authorization: Bearer {token}", *fields, *lines)


@pytest.mark.parametrize("path", ["/nowhere", "/v1/ws/", "/v1/ws/1?x=/v1/ws"])
async def test_an_upgrade_where_there_is_no_websocket_is_served_as_http_1_1(world: EdgeWorld, path: str) -> None:
    client = await world.raw_unasked()
    await client.send(websocket(world.token()).replace(b"/v1/ws", path.encode()))
    head = await client.head()
    assert head.startswith(b"HTTP/1.1 404 ")
    assert b"application/problem+json" in head
    client.close()


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("Cookie: a=b", "Cookie: c=d"),  # the general handshake
        ("Cookie: a=" + "b" * 3900,),  # a head in two pieces, or with the frame in the second
        ("Cookie: a=" + "b" * 4500,),
        ("Cookie: a=" + "b" * 3900, "Cookie: c=d"),
    ],
)
async def test_frames_in_the_same_read_as_the_handshake_are_not_lost(world: EdgeWorld, lines: tuple[str, ...]) -> None:
    client = await world.raw_unasked()
    await client.send(websocket(world.token(), *lines) + client_frame(b'{"type":"ping","ts":7}'))
    await client.accepted()
    frames = [json.loads((await client.frame())[1])["type"] for _ in range(2)]
    assert sorted(frames) == ["pong", "welcome"]
    client.close()


async def test_a_websocket_behind_an_unanswered_request_is_not_granted(world: EdgeWorld) -> None:
    client = await world.raw_unasked()
    await client.send(get("/healthz") + websocket(world.token()))
    read = b""
    while b"/v1/ws" not in read and b" 426 " not in read and b" 101 " not in read:
        read += await client.read(1)
    assert read.startswith(b"HTTP/1.1 200 ")
    assert b" 426 " in read
    assert not world.gateway.connections
    client.close()
