"""Answers that are read while they arrive."""

from __future__ import annotations

import asyncio

import pytest

from engine.client.credentials import parse_url
from engine.client.http_stream import READ_BYTES, REFUSAL_BYTES_MAX, HttpStream
from tests.support.raw_http_server import STREAM_HEAD, RawRequest, answer, chunk, raw_server


async def stream_of(*pieces: bytes, end: bool = True) -> tuple[HttpStream, list[bytes]]:
    """What a client gets of these bytes, in a task that the server keeps open."""
    got: list[bytes] = []

    async def respond(_: RawRequest, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if end:
            writer.close()

    async with raw_server(respond) as server, asyncio.timeout(60):
        stream = await HttpStream.open(parse_url(server.url + "/mounted"), "/v1/sse?a=b", {"Accept": "text/event-stream"})
        try:
            while piece := await stream.read():
                got.append(piece)
        finally:
            stream.abort()
        assert [(one.method, one.path, one.query, one.headers["accept"]) for one in server.requests] == [
            ("GET", "/mounted/v1/sse", {"a": "b"}, "text/event-stream")
        ]
    return stream, got


async def test_a_chunked_body_is_read_to_its_end() -> None:
    stream, got = await stream_of(STREAM_HEAD, chunk(b"one"), chunk(b"two"), b"0\r\n\r\n", end=False)
    assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert b"".join(got) == b"onetwo"


async def test_a_body_without_a_length_ends_with_the_connection_and_early_hints_come_before_the_answer() -> None:
    _, got = await stream_of(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", b"all of it")
    assert b"".join(got) == b"all of it"


@pytest.mark.parametrize("pieces", [(b"",), (b"HTTP/1.1 200 OK\r\n",), (STREAM_HEAD, chunk(b"x"))])
async def test_a_connection_that_ends_before_the_answer_does_is_an_error(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(ConnectionResetError):
        await stream_of(*pieces)


SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH\r\n\r\n", SWITCH], ids=["SSH", "another protocol"])
async def test_an_answer_that_is_no_http_is_an_error(answer: bytes) -> None:
    with pytest.raises(ConnectionError, match="not HTTP"):
        await stream_of(answer)


async def test_no_more_than_a_page_is_read_of_a_refusal() -> None:
    async def respond(_: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(502, b"x" * (16 << 20)))
        await writer.drain()

    async with raw_server(respond) as server, asyncio.timeout(60):
        stream = await HttpStream.open(parse_url(server.url), "/", {})
        assert REFUSAL_BYTES_MAX <= len(await stream.read_all()) <= REFUSAL_BYTES_MAX + READ_BYTES
        stream.abort()


async def test_cancelling_a_read_loses_nothing() -> None:
    go_on = asyncio.Event()

    async def respond(_: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        await go_on.wait()
        writer.write(chunk(b"one"))

    async with raw_server(respond) as server, asyncio.timeout(60):
        stream = await HttpStream.open(parse_url(server.url), "/", {})
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await stream.read()
        go_on.set()
        assert await stream.read() == b"one"
        stream.abort()
