"""A Redis stream as a source: applications XADD entries with a field `body`, and a consumer group holds what is not settled.

States of an entry
    new       nobody has read it
    pending   delivered to the consumer of the engine, and not acknowledged
    gone      acknowledged and deleted; accepted by the engine
    dead      in the stream `<stream>:dead`, with the reason. An entry without a `body` there is another program's: it stays

Crash points. The reader dies while entries are pending: the next one has the same name, and reads pending entries first. What the engine
had accepted is a duplicate then, since an entry's id is its message's. Settling is one transaction (MULTI). Redis restarts: entries are as
durable as its own settings make them. Two readers run at once: both may send an entry, under one id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from engine.errors import StorageUnavailable
from engine.features.sources.core import RedisSource, SourceRow
from engine.features.sources.readers import DeadRow, SourceLag
from engine.store.stream_groups import read_group

_CONSUMER: Final = "engine"
_BLOCK_MS: Final = 1000
_TIMEOUT_S: Final = 5.0
_REDRIVEN: Final = 1000


class RedisStream:
    """See `engine.features.sources.readers.SourceReader`."""

    def __init__(self, source: RedisSource) -> None:
        self._source = source
        self._dead_key = f"{source.stream}:dead"
        self._client: Any = redis.Redis.from_url(
            source.connection,
            socket_timeout=None,  # with one, redis-py 8 sends by asyncio.wait_for, which loses a cancellation before Python 3.12
            socket_connect_timeout=_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),  # the ingester repeats
        )

    async def read(self, limit: int) -> list[SourceRow]:
        """Pending entries, then new ones."""
        source, entries = self._source, list[tuple[bytes, dict[bytes, bytes]]]()
        for again in (True, False):
            if (left := limit - len(entries)) > 0:
                entries += await self._ask(read_group(self._client, source.stream, source.group, _CONSUMER, left, again=again))
        return [self._row(id.decode(), fields) for id, fields in entries]

    def _row(self, id: str, fields: dict[bytes, bytes]) -> SourceRow:
        """An entry that was deleted while it was pending has no fields: it is a dead row without content."""
        return SourceRow(id, f"{self._source.stream}:{id}", fields.get(b"body", b""))

    async def settle(self, accepted: Sequence[SourceRow], dead: Sequence[tuple[SourceRow, str]]) -> None:
        """Delete accepted entries and move dead ones, in one transaction. The others stay pending."""
        if not accepted and not dead:
            return
        async with self._client.pipeline(transaction=True) as pipe:
            keys = [row.key for row in accepted] + [row.key for row, _ in dead]
            for row, reason in dead:
                pipe.xadd(self._dead_key, {"id": row.id, "reason": reason, "body": row.body})
            pipe.xack(self._source.stream, self._source.group, *keys)
            pipe.xdel(self._source.stream, *keys)
            await self._ask(pipe.execute())

    async def wait(self) -> None:
        """Return when the stream has a new entry, or after a second."""
        last = await self._last()
        await self._ask(self._client.xread({self._source.stream: last}, count=1, block=_BLOCK_MS))

    async def _last(self) -> str:
        """The entry up to which the group has read: a later one may be there already."""
        groups = await self._ask(self._client.xinfo_groups(self._source.stream))
        return next((group["last-delivered-id"].decode() for group in groups if group["name"] == self._source.group.encode()), "0")

    async def lag(self) -> SourceLag:
        """The lengths of both streams: settled entries are deleted."""
        waiting, dead = await self._ask(self._client.xlen(self._source.stream)), await self._ask(self._client.xlen(self._dead_key))
        oldest = await self._ask(self._client.xrange(self._source.stream, count=1))
        return SourceLag(waiting, int(oldest[0][0].split(b"-")[0]) if oldest else 0, dead)

    async def dead_rows(self, limit: int) -> list[DeadRow]:
        """The oldest entries of the stream of dead ones."""
        found = await self._ask(self._client.xrange(self._dead_key, count=limit))
        names = (b"id", b"reason", b"body")
        return [DeadRow(*(fields.get(name, b"").decode("utf-8", "replace") for name in names)) for _, fields in found]

    async def redrive(self) -> int:
        """Move the entries that are dead now back. They get new ids, since the engine refused the old ones."""
        newest = await self._ask(self._client.xrevrange(self._dead_key, count=1))
        last = newest[0][0] if newest else "-"  # those that the engine refuses again meanwhile come behind it
        first: bytes | str = "-"
        moved = 0
        while found := await self._ask(self._client.xrange(self._dead_key, first, last, _REDRIVEN)):
            own = [(id, fields[b"body"]) for id, fields in found if b"body" in fields]
            async with self._client.pipeline(transaction=True) as pipe:
                for id, body in own:
                    pipe.xadd(self._source.stream, {"body": body})
                    pipe.xdel(self._dead_key, id)
                await self._ask(pipe.execute())
            moved += len(own)
            first = b"(" + found[-1][0]
        return moved

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(self, answer: Any) -> Any:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await answer
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            raise self._away(error) from error

    def _away(self, error: Exception) -> StorageUnavailable:
        return StorageUnavailable(f"source {self._source.name}: {type(error).__name__} {error}")
