"""Publish requests byte by byte, and connections that send them to an edge of `tests.support.edge_world`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

from engine.api import publish_endpoint
from tests.support.edge_world import EdgeWorld

ITEM = {"id": "m1", "user": "u1", "type": "test.event", "data": {"n": 1}}
ONE = json.dumps(ITEM).encode()


def asked(
    token: str,
    body: bytes = ONE,
    target: str = publish_endpoint.PATH,
    line: str = "",
    method: str = "POST",
    version: str = "1.1",
    **fields: str | None,
) -> bytes:
    """A publish request: the plain one with fields changed, left out (None) or a line added."""
    plain = {"Host": "127.0.0.1", "Authorization": f"Bearer {token}", "Content-Type": "application/json", "Content-Length": str(len(body))}
    changed = plain | {name.replace("_", "-"): value for name, value in fields.items()}
    lines = [f"{name}: {value}" for name, value in changed.items() if value is not None]
    return "\r\n".join([f"{method} {target} HTTP/{version}", *lines, *filter(None, [line]), "", ""]).encode("latin-1") + body


def scheduled(text: bytes) -> bytes:
    """Without what is new each time."""
    return re.sub(rb'(?im)^date: .*?\r\n|"scheduled_(id|at)":[^,}]*', b"", text)


class Connection:
    """A keep-alive connection that reads whole answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def answer(self) -> bytes:
        """The next answer, without what is new each time; `<end>` after it, or instead of it, when the server has closed."""
        try:
            async with asyncio.timeout(60):
                head = await self.reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: (\d+)", head)
                body = await self.reader.readexactly(int(length[1]) if length else 0)
                end = b"<end>" if b"connection: close" in head.lower() and await self.reader.read() == b"" else b""
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return b"<end>"
        first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        return scheduled(b"\r\n".join([first, *sorted(lines), b"", b""]) + body + end)

    async def ask(self, request: bytes) -> bytes:
        """Send it; the next answer."""
        self.writer.write(request)
        return await self.answer()


@contextlib.asynccontextmanager
async def connected(world: EdgeWorld) -> AsyncIterator[Connection]:
    """A connection that ends with the block."""
    connection = Connection(*await asyncio.open_connection("127.0.0.1", world.port))
    try:
        yield connection
    finally:
        connection.writer.close()


def counting(seen: list[str]) -> Any:
    """Something around the application that notes the paths it is asked for."""

    def watched(application: Any) -> Any:
        async def watch(scope: Any, receive: Any, send: Any) -> None:
            seen.append(scope["path"])
            await application(scope, receive, send)

        return watch

    return watched


def connections(world: EdgeWorld) -> list[Any]:
    """The server's HTTP connections."""
    return list(world.server.server_state.connections)
