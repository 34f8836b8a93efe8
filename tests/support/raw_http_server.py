"""An HTTP/1.1 server that answers with the bytes a test writes, to find what a client makes of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class RawRequest:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


Respond = Callable[[RawRequest, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class RawServer:
    url: str = ""
    requests: list[RawRequest] = field(default_factory=list)

    def of(self, path: str) -> list[RawRequest]:
        return [request for request in self.requests if request.path == path]


@asynccontextmanager
async def raw_server(respond: Respond) -> AsyncIterator[RawServer]:
    """Calls `respond` for each request; what is written then is the answer."""
    server = RawServer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, target, _ = head[0].split(" ")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                parts = urlsplit(target)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                server.requests.append(RawRequest(method, parts.path, query, headers, body))
                await respond(server.requests[-1], writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client left, or the test is over
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        yield server


def answer(status: int, body: bytes | dict[str, Any] = b"", **headers: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} Reason\r\nContent-Length: {len(data)}\r\n{lines}\r\n".encode() + data


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
