"""The handshake of a WebSocket link, against a server that answers otherwise."""

from __future__ import annotations

import asyncio

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Response

from engine.client.credentials import Credentials, parse_url
from engine.client.links.transport_link import LinkEnded, LinkOptions
from engine.client.links.websocket_link import WebSocketLink, detail_of


@pytest.mark.parametrize("where", ["https://login.example/", "/v1/elsewhere", "ws://127.0.0.1:9/"])
async def test_a_redirect_is_a_refusal_and_not_followed(where: str) -> None:
    asked: list[bytes] = []

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split()[1])
        writer.write(f"HTTP/1.1 302 Found\r\nLocation: {where}\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    async with await asyncio.start_server(redirect, "127.0.0.1", 0) as server:
        address = parse_url(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        link = WebSocketLink(LinkOptions(address, Credentials("tok"), lambda: None))
        with pytest.raises(LinkEnded) as ended:
            await link.open(5)
    assert ended.value.status == 302
    assert asked == [b"/v1/ws"]


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"detail":"\xfcber"}'])
def test_the_reason_of_an_answer_that_is_no_problem_is_its_phrase(body: bytes) -> None:
    assert detail_of(Response(502, "Bad Gateway", Headers(), body)) == "Bad Gateway"
