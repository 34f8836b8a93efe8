"""Refusals against a real engine, over a network that loses what it was given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
from redis.asyncio import Redis

from engine.client import Client
from engine.store.keys import dead_letter_key
from tests.conftest import RunningEngine
from tests.support.waiting import until

TENANT = "refusing"


class Wire:
    """A TCP connection to the engine that can be made to swallow what clients say, and be cut."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.deaf = False
        self.swallowed = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.port)
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


async def test_a_refusal_that_the_network_lost_ends_among_the_dead_letters_though_a_later_message_was_handled(
    engine: RunningEngine,
) -> None:
    storage = Redis.from_url(engine.state["redis_url"])
    async with wire_to(engine) as (wire, url), Client(url, engine.token("u", tenant=TENANT), auto_ack=False) as client:
        await engine.publish({"user": "u", "type": "t", "id": "bad"}, {"user": "u", "type": "t", "id": "good"}, tenant=TENANT)
        bad, good = await anext(client), await anext(client)
        wire.deaf = True
        bad.nack("no such post")
        await until(lambda: wire.swallowed)
        wire.cut()
        good.ack()
        wire.deaf = False
        await until(lambda: client.cursor == good.event_id)
    letters = await storage.xrange(dead_letter_key(TENANT))
    assert [(fields[b"id"], fields[b"reason"]) for _, fields in letters] == [(b"bad", b"no such post")]
    await storage.aclose()
