"""The archivist's end of the stream of outcomes (`engine.store.outcome_stream`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import redis.asyncio as redis
from msgspec import Struct

from engine.config import Config
from engine.store.keys import OUTCOME_STATE_KEY, OUTCOME_STREAM_KEY, trimmed_mark_key
from engine.store.lua import Script
from engine.store.outcome_stream import OutcomeBatch, stored_batch
from engine.store.storage_calls import StorageCalls
from engine.store.stream_groups import read_group

_SETTLE = Script.beside(__file__, "outcomes_settle")

GROUP: Final = "archivist"


class StreamLag(Struct, frozen=True):
    """What waits in the stream: outcomes, bytes, since when the oldest does (0: none does); and how many were dropped so far."""

    waiting: int
    bytes: int
    oldest_ms: int
    dropped: int


class OutcomeReader:
    """Reads the stream, for the archivist."""

    def __init__(self, client: redis.Redis, config: Config) -> None:
        self._client = client
        self._kept = (config.outcomes_kept_bytes_max, config.outcomes_kept_ms)

    async def read(self, count: int, *, again: bool = False) -> list[OutcomeBatch]:
        """Up to `count` batches: new ones, or `again` the first of those that were read and not settled. Raises StorageUnavailable."""
        with StorageCalls("outcomes"):
            found = await read_group(self._client, OUTCOME_STREAM_KEY, GROUP, GROUP, count, again=again)
        return [stored_batch(entry.decode(), fields) for entry, fields in found]

    async def settle(self, batches: Sequence[tuple[OutcomeBatch, int]]) -> None:
        """Batches are in the database, each but for a number of its outcomes. Idempotent. Raises StorageUnavailable."""
        words: list[Any] = [GROUP, *self._kept]
        for batch, lost in batches:
            words += batch.entry, batch.size, batch.count, lost
        stream = OUTCOME_STREAM_KEY
        await _SETTLE.run(self._client, [stream, OUTCOME_STATE_KEY, trimmed_mark_key(stream)], words)

    async def lag(self) -> StreamLag:
        """Raises StorageUnavailable."""
        with StorageCalls("outcomes"):
            state: Any = await self._client.hmget(OUTCOME_STATE_KEY, ["waiting", "bytes", "dropped", "settled"])
            waiting, size, dropped, settled = state
            oldest: Any = await self._client.xrange(OUTCOME_STREAM_KEY, settled or "-", count=1)
        if not oldest:
            return StreamLag(0, 0, 0, int(dropped or 0))
        return StreamLag(int(waiting or 0), int(size or 0), int(oldest[0][0].partition(b"-")[0]), int(dropped or 0))
