"""A stream of NATS JetStream as a source: a durable pull consumer with explicit acknowledgements holds what is not settled.

States of a message, for the consumer
    new       not delivered
    held      delivered to this reader, and in its memory until it is settled
    gone      acknowledged; accepted by the engine. The stream's own limits say how long it stays there
    dead      acknowledged, and in the stream `<stream>_DEAD` with the reason; without its body where that is too large

Crash points. The reader dies while it holds messages: the server delivers them again after `_ACK_WAIT_S`, to the next reader; newer ones
may come first. What the engine had accepted is a duplicate then, since an id is made of the message's number and time in its stream. A
message is published to the dead ones before it is acknowledged; the server drops a repeat by its `Nats-Msg-Id`. The server restarts:
messages and the consumer are as durable as the stream's storage. Two readers run at once: the server gives each other messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, RawStreamMsg, StreamConfig
from nats.js.errors import NotFoundError

from engine.errors import StorageUnavailable
from engine.features.sources.core import NatsSource, SourceRow
from engine.features.sources.readers import DeadRow, SourceLag

_ACK_WAIT_S: Final = 30.0
"""Beyond an edge's longest answer."""
_BLOCK_S: Final = 1.0
_LOOK_S: Final = 0.05
"""For new messages, while others are held."""
_TIMEOUT_S: Final = 5.0
_HEADERS_BYTES_MAX: Final = 8 << 10  # of a dead message; the server counts them as payload
_SUBJECT: Final = "Engine-Subject"  # headers of dead messages
_REASON: Final = "Engine-Reason"
_ID: Final = "Nats-Msg-Id"


class NatsStream:
    """See `engine.features.sources.readers.SourceReader`."""

    def __init__(self, source: NatsSource) -> None:
        self._source = source
        self._servers = source.connection.split(",")
        if not all(urlsplit(server).hostname and urlsplit(server).port != 0 for server in self._servers):
            raise ValueError("a server has no host")
        self._dead_name = f"{source.stream}_DEAD"
        self._client: Client | None = None
        self._consumer: Any = None
        self._has_dead = False  # the stream of dead messages was made
        self._held: dict[int, Msg] = {}  # by number in the stream

    async def read(self, limit: int) -> list[SourceRow]:
        """The held messages, then new ones, for which it waits a second when none is held."""
        async with self._asked(_BLOCK_S + _TIMEOUT_S) as client:
            if self._consumer is None:
                config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=_ACK_WAIT_S)
                stream, consumer = self._source.stream, self._source.consumer
                try:
                    await client.jetstream().consumer_info(stream, consumer)
                except NotFoundError:
                    await client.jetstream().add_consumer(stream, config, durable_name=consumer)
                self._consumer = await client.jetstream().pull_subscribe_bind(consumer, stream)
            for message in self._held.values():
                await message.in_progress()
            if (left := limit - len(self._held)) > 0:
                try:
                    found = await self._consumer.fetch(left, timeout=_LOOK_S if self._held else _BLOCK_S)
                except TimeoutError:  # the client raises one of its own, or asyncio's where its time ends between two requests
                    found = []
                self._held |= {message.metadata.sequence.stream: message for message in found}
        return [SourceRow(seq, self._id(message), message.data) for seq, message in list(self._held.items())[:limit]]

    def _id(self, message: Msg) -> str:
        """With the time: a stream that is made anew counts anew."""
        found = message.metadata
        return f"{self._source.stream}:{found.sequence.stream}:{int(found.timestamp.timestamp() * 1000)}"

    async def settle(self, accepted: Sequence[SourceRow], dead: Sequence[tuple[SourceRow, str]]) -> None:
        """Publish dead messages to their stream, and acknowledge all of these. The others stay held."""
        async with self._asked() as client:
            if dead and not self._has_dead:
                config = StreamConfig(name=self._dead_name, subjects=[self._dead_name])
                await client.jetstream().add_stream(config)
                self._has_dead = True
            await asyncio.gather(*(self._bury(client, *letter) for letter in dead))  # one by one, each would wait for the server
            for row in (*accepted, *(row for row, _ in dead)):
                await self._held[row.key].ack()
            await client.flush()
        for row in (*accepted, *(row for row, _ in dead)):
            del self._held[row.key]

    async def _bury(self, client: Client, row: SourceRow, reason: str) -> None:
        headers = {_SUBJECT: self._held[row.key].subject, _REASON: reason.replace("\r", " ").replace("\n", " "), _ID: row.id}
        # Without a body that leaves no room for these, or it would hold up those behind it for ever.
        body = row.body if len(row.body) + _HEADERS_BYTES_MAX <= client.max_payload else b""
        await client.jetstream().publish(self._dead_name, body, headers=headers)

    async def wait(self) -> None:
        """`read` has waited."""

    async def lag(self) -> SourceLag:
        """Messages that are not acknowledged, and those of the dead stream."""
        async with self._asked() as client:
            stream = client.jetstream()
            try:
                info = await stream.consumer_info(self._source.stream, self._source.consumer)
            except NotFoundError:  # nothing was read yet
                return SourceLag((await stream.stream_info(self._source.stream)).state.messages, 0, 0)
            waiting = (info.num_pending or 0) + (info.num_ack_pending or 0)
            oldest = (
                await self._message(client, self._source.stream, (info.ack_floor.stream_seq if info.ack_floor else 0) + 1)
                if waiting
                else None
            )
            oldest_ms = int(oldest.time.timestamp() * 1000) if oldest and oldest.time else 0
            return SourceLag(waiting, oldest_ms, await self._count_dead(client))

    async def dead_rows(self, limit: int) -> list[DeadRow]:
        """The oldest messages of the dead stream."""
        async with self._asked() as client:
            return [
                DeadRow(headers.get(_ID, ""), headers.get(_REASON, ""), (message.data or b"").decode("utf-8", "replace"))
                async for message in self._dead(client, limit)
                for headers in (message.headers or {},)
            ]

    async def redrive(self) -> int:
        """Publish dead messages to their subjects again, which gives them new numbers, and delete them. Others' messages stay."""
        moved = 0
        async with self._asked(60 * _TIMEOUT_S) as client:
            stream = client.jetstream()
            async for message in self._dead(client, await self._count_dead(client)):
                if not (subject := (message.headers or {}).get(_SUBJECT)):
                    continue
                await stream.publish(subject, message.data or b"")
                assert message.seq is not None, "the server numbers messages"
                await stream.delete_msg(self._dead_name, message.seq)
                moved += 1
        return moved

    async def close(self) -> None:
        """Close the connection. What is held is delivered again."""
        client, self._client, self._consumer = self._client, None, None
        self._held.clear()
        if client is not None:
            await client.close()

    async def _count_dead(self, client: Client) -> int:
        try:
            return (await client.jetstream().stream_info(self._dead_name)).state.messages
        except NotFoundError:
            return 0

    async def _dead(self, client: Client, limit: int) -> AsyncIterator[RawStreamMsg]:
        seq = 1
        for _ in range(limit):
            message = await self._message(client, self._dead_name, seq)
            if message is None or message.seq is None:
                return
            yield message
            seq = message.seq + 1

    async def _message(self, client: Client, stream: str, seq: int) -> RawStreamMsg | None:
        """The first message from this number on."""
        try:
            return await client.jetstream().get_msg(stream, seq, subject=">", next=True)
        except NotFoundError:
            return None

    @asynccontextmanager
    async def _asked(self, timeout_s: float = _TIMEOUT_S) -> AsyncIterator[Client]:
        """The connection, made when it is needed first. Raises StorageUnavailable for whatever goes wrong in the block."""
        try:
            async with asyncio.timeout(timeout_s):
                if self._client is None:
                    self._client = await nats.connect(
                        self._servers,
                        name="notification engine",
                        allow_reconnect=False,  # the ingester repeats
                        connect_timeout=int(_TIMEOUT_S),
                        error_cb=_ignore,  # the caller of the request gets it too
                    )
                yield self._client
        except (NatsError, OSError) as error:  # TimeoutError is an OSError
            raise StorageUnavailable(f"source {self._source.name}: {type(error).__name__} {error}".strip()) from error


async def _ignore(_error: Exception) -> None:
    pass
