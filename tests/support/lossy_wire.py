"""A network between a client and an engine that loses what it was given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx

from tests.support.running_engine import RunningEngine


class Wire:
    """A TCP connection to the engine that can be made to swallow what clients say, and be cut."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.deaf = False
        self.refuses: tuple[str, ...] = ()  # paths that a proxy would not pass
        self.swallowed = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            return
        if head.split(b" ", 2)[1].decode().partition("?")[0] in self.refuses:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            writer.close()
            return
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.port)
        server_writer.write(head)
        self.writers += [writer, server_writer]
        with suppress(ConnectionError):
            await asyncio.gather(self._pipe(reader, server_writer, upstream=True), self._pipe(server_reader, writer, upstream=False))

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, upstream: bool) -> None:
        while data := await reader.read(65536):
            if upstream and self.deaf:
                self.swallowed += len(data)
            else:
                writer.write(data)
        writer.close()

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()


@asynccontextmanager
async def wire_to(engine: RunningEngine) -> AsyncIterator[tuple[Wire, str]]:
    wire = Wire(httpx.URL(engine.url).port or 80)
    async with await asyncio.start_server(wire.carry, "127.0.0.1", 0) as listening:
        yield wire, f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        wire.cut()
