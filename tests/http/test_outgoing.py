"""Requests that the engine makes itself, to servers that answer as they like."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from engine.http.outgoing import Outgoing


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """A server with one answer to everything."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def test_an_answer_is_taken_and_a_redirect_is_one() -> None:
    async with Outgoing(proxies=False) as outgoing, answering(b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 2\r\n\r\nhi") as url:
        assert await outgoing.request("GET", url, {}, timeout_s=10, answer_bytes_max=2) == (302, b"hi", 0)
        assert await outgoing.request("POST", url, {}, b"x", timeout_s=10, answer_bytes_max=0) == (302, b"", 0)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi all hi",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000,
    ],
)
async def test_what_is_no_answer_is_an_error_of_the_operating_system(answer: bytes) -> None:
    async with Outgoing(proxies=False) as outgoing, answering(answer) as url:
        with pytest.raises(OSError):
            await outgoing.request("GET", url, {}, timeout_s=10, answer_bytes_max=8)


async def test_an_answer_that_does_not_come_is_given_up() -> None:
    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(wait, "127.0.0.1", 0)
    async with Outgoing(proxies=False) as outgoing, server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(TimeoutError):
            await outgoing.request("GET", url, {}, timeout_s=0.1, answer_bytes_max=8)


async def test_an_address_that_cannot_be_one_is_an_error_too() -> None:
    async with Outgoing(proxies=False) as outgoing:
        for url in ("http://[::1", "gopher://x/", "http://127.0.0.1:1/"):
            with pytest.raises(OSError):
                await outgoing.request("GET", url, {}, timeout_s=10, answer_bytes_max=8)


async def test_no_cookie_of_an_answer_is_kept_or_sent_again() -> None:
    """The next request to the address may be another tenant's."""
    heads = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nSet-Cookie: session-%d=secret; Path=/\r\nContent-Length: 0\r\n\r\n" % len(heads))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with Outgoing(proxies=False) as outgoing, server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        for _ in range(2):
            await outgoing.request("POST", url, {}, b"x", timeout_s=10, answer_bytes_max=0)
    assert len(heads) == 2
    assert b"cookie" not in heads[1].lower()
