"""A request and its response as the ASGI application sees them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.support.http_connection import HttpClient
from tests.support.waiting import until

GET = b"GET /a%20b?c=%20d HTTP/1.1\r\nHost: x\r\nX-Y:  z \r\n\r\n"
HEAD = GET.replace(b"GET", b"HEAD")


def sends(*messages: dict[str, Any]) -> Any:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send({"type": "http.response.body" if "status" not in message else "http.response.start", **message})

    return application


def start(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, Any]:
    return {"status": status, "headers": list(headers)}


def length(size: int) -> tuple[bytes, bytes]:
    return b"content-length", b"%d" % size


async def test_the_scope_is_the_request() -> None:
    scopes: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)

    HttpClient(application).send(GET)
    await until(lambda: scopes)
    wanted = {"method": "GET", "path": "/a b", "raw_path": b"/a%20b", "query_string": b"c=%20d", "http_version": "1.1", "root_path": ""}
    assert wanted.items() <= scopes[0].items()
    assert scopes[0]["headers"] == [(b"host", b"x"), (b"x-y", b"z")]


async def test_a_short_response_is_one_write() -> None:
    client = HttpClient(sends(start(length(2)), {"body": b"ok"})).sending(GET)
    assert (await client.answered(1)).bodies == [b"ok"]
    assert client.transport.writes == 1


async def test_a_response_of_unknown_length_is_chunked() -> None:
    client = HttpClient(sends(start(), {"body": b"a", "more_body": True}, {"body": b"", "more_body": True}, {"body": b"bc"})).sending(GET)
    answer = await client.answered(1)
    assert answer.bodies == [b"abc"]
    assert answer.headers[0]["transfer-encoding"] == "chunked"


async def test_a_response_of_unknown_length_ends_with_the_connection_in_http_1_0() -> None:
    client = HttpClient(sends(start(), {"body": b"a", "more_body": True}, {"body": b"bc"})).sending(GET.replace(b"HTTP/1.1", b"HTTP/1.0"))
    await until(lambda: client.transport.closed)
    head, _, body = client.transport.written.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert b"transfer-encoding" not in head
    assert body == b"abc"


async def test_who_speaks_http_1_0_gets_no_100() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        await sends(start(length(len(body))), {"body": body})(scope, receive, send)

    client = HttpClient(application).sending(b"POST / HTTP/1.0\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    await asyncio.sleep(0)
    client.send(b"ok")
    await client.answered(1)
    assert client.responses().statuses == [200]


@pytest.mark.parametrize(("request_", "status"), [(HEAD, 200), (GET, 204), (GET, 304)])
async def test_a_response_without_a_body_has_none(request_: bytes, status: int) -> None:
    client = HttpClient(sends(start(status=status), {"body": b"x" if request_ is HEAD else b""})).sending(request_)
    await until(lambda: client.transport.written)
    head, _, body = client.transport.written.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert body == b""


async def test_headers_of_every_response_are_read_when_it_begins() -> None:
    client = HttpClient(sends(start(length(0)), {}))
    client.server_state.default_headers = [(b"date", b"today")]
    client.send(GET)
    assert (await client.answered(1)).headers[0]["date"] == "today"


async def test_a_client_that_expects_100_gets_it_when_its_body_is_wanted() -> None:
    wanted = asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await wanted.wait()
        body = (await receive())["body"]
        await sends(start(length(len(body))), {"body": body})(scope, receive, send)

    client = HttpClient(application).sending(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-Continue\r\n\r\n")
    await asyncio.sleep(0)
    assert not client.transport.written
    wanted.set()
    await until(lambda: client.transport.written == b"HTTP/1.1 100 Continue\r\n\r\n")
    client.send(b"ok")
    await until(lambda: client.transport.written.endswith(b"\r\n\r\nok"))


async def test_a_client_that_expects_100_and_is_refused_gets_the_refusal_alone() -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await sends(start(length(0), status=413), {})(scope, receive, send)
        await receive()

    client = HttpClient(refuse).sending(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    await until(lambda: not client.server_state.tasks)
    assert client.responses().statuses == [413]
    assert client.responses().headers[0]["connection"] == "close", "what follows may be the body, or the next request"
    assert client.transport.ended


async def test_a_body_that_is_there_though_100_was_expected_keeps_the_connection() -> None:
    client = HttpClient(sends(start(length(0), status=413), {}))
    client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nok" + GET)
    assert (await client.answered(2)).statuses == [413, 413]
    assert not client.transport.ended


async def test_an_application_may_close_the_connection() -> None:
    client = HttpClient(sends(start(length(0), (b"Connection", b"close")), {})).sending(GET + GET)
    assert (await client.answered(1)).statuses == [200]
    assert client.transport.written.lower().count(b"connection: close") == 1
    assert client.transport.closed


async def test_who_waits_behind_the_body_learns_that_the_client_has_left() -> None:
    seen: list[str] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while seen.count("http.disconnect") < 2:
            seen.append((await receive())["type"])
        await send(start())  # into nothing
        await send({"type": "http.response.body"})

    client = HttpClient(application).sending(GET)
    await until(lambda: seen)
    assert seen == ["http.request"]
    client.leave()
    await until(lambda: not client.server_state.tasks)
    assert seen == ["http.request", "http.disconnect", "http.disconnect"]
    assert not client.transport.written


# -- Applications that fail. -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "messages",
    [
        [],
        [start()],
        [start(), start()],
        [{"body": b"early"}],
        [start((b"x", b"a\r\nSet-Cookie: b=c")), {}],
        [start((b"x: y\r\nz", b"a")), {}],
        [start(length(1)), {"body": b"too long"}],
        [start(length(9)), {"body": b"short"}],
    ],
)
async def test_a_response_that_cannot_be_sent_is_a_500(messages: list[dict[str, Any]]) -> None:
    client = HttpClient(sends(*messages)).sending(GET)
    answer = await client.answered(1)
    assert answer.statuses == [500]
    assert answer.bodies == [b"Internal Server Error"]
    assert client.transport.closed


@pytest.mark.parametrize("length_", [(), (length(9),)])
async def test_a_response_that_breaks_off_ends_the_connection_and_is_never_whole(length_: tuple[tuple[bytes, bytes], ...]) -> None:
    client = HttpClient(sends(start(*length_), {"body": b"half", "more_body": True})).sending(GET)
    await until(lambda: client.transport.closed)
    assert client.responses().complete == 0


async def test_an_exception_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError("a secret detail")

    client = HttpClient(application)
    with caplog.at_level(logging.ERROR, "engine.edge.http"):
        client.send(GET)
        await client.answered(1)
    assert b"secret" not in client.transport.written
    assert "a secret detail" in caplog.text


async def test_a_cancelled_request_is_answered() -> None:
    client = HttpClient(lambda scope, receive, send: asyncio.Event().wait()).sending(GET)
    (task,) = client.server_state.tasks
    await asyncio.sleep(0)
    task.cancel()
    assert (await client.answered(1)).statuses == [500]
