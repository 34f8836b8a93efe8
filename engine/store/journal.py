"""The journal of one shard: a Redis stream, one entry per group commit, written by one epoch at a time.

Entry ids are `<epoch>-<group number>`, so they grow over restarts, and an append that is repeated because its answer was
lost is recognised. `engine.core.commit` says what goes into an entry.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import redis.asyncio as redis
from redis.exceptions import RedisError

from engine.core.commit import Group
from engine.errors import StorageUnavailable
from engine.store.keys import (
    epoch_key,
    idempotency_key,
    journal_head_key,
    journal_key,
    journal_quarantine_key,
    shard_epoch_key,
    slot_epoch_key,
)
from engine.store.script import Script

_APPEND = Script("journal_append")
_ROLLBACK = Script("journal_rollback")
_TRIM = Script("journal_trim")
_FENCE = Script("fence")

_READ_ENTRIES = 50
"""Journal entries read at once at replay: at most some tens of megabytes."""


class Journal:
    """One incarnation's hold of a shard's journal. `take_over` first."""

    def __init__(self, client: redis.Redis, shard: int, idempotency_ms: int) -> None:
        self._client = client
        self._shard = shard
        self._idempotency_ms = idempotency_ms
        self._keys = [shard_epoch_key(shard), journal_head_key(shard), journal_key(shard)]
        self.epoch = 0

    async def take_over(self, slots: Sequence[int]) -> int:
        """Take a new epoch and fence the shard and its slots: from now on older incarnations write nothing.

        Raises:
            Fenced: someone took a newer epoch meanwhile.
            StorageUnavailable: Redis does not answer; try again.
        """
        try:
            epoch = int(await self._client.incr(epoch_key()))
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"epoch: {error}") from error
        await _FENCE.run(self._client, [shard_epoch_key(self._shard)], [epoch])
        await _FENCE.run_many(self._client, [([slot_epoch_key(slot)], [epoch]) for slot in slots])
        self.epoch = epoch
        return epoch

    async def append(self, group: Group) -> dict[int, bytes]:
        """Make the group durable. Safe to repeat.

        Returns:
            Empty when it is durable; else nothing was written, because these ids (by index into `group.ids`) are
            remembered with these values.

        Raises:
            Fenced: this incarnation has been replaced.
            StorageUnavailable: no answer; whether it was written is unknown: repeat it, or roll it back.
        """
        keys = [*self._keys, *(idempotency_key(key, id) for key, id in group.ids)]
        args = [self.epoch, group.number, group.payload, self._idempotency_ms, *group.values]
        reply = await _APPEND.run(self._client, keys, args)
        if reply[0] == b"KNOWN":
            return dict(zip(reply[1::2], reply[2::2], strict=True))
        return {}

    async def rollback(self, group: Group) -> None:
        """Make sure the group is not in the journal and never will be. Raises like `append`."""
        keys = [*self._keys, *(idempotency_key(key, id) for key, id in group.ids)]
        await _ROLLBACK.run(self._client, keys, [self.epoch, group.number])

    async def trim(self, through: int) -> None:
        """Forget the groups of this epoch through number `through`, and everything of older epochs. Raises like `append`."""
        await _TRIM.run(self._client, [self._keys[0], self._keys[2]], [self.epoch, through + 1])

    async def entries(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """All entries, oldest first, as (entry id, payload). Raises StorageUnavailable."""
        start = b"-"
        while True:
            try:
                chunk: Any = await self._client.xrange(journal_key(self._shard), min=start, count=_READ_ENTRIES)
            except (RedisError, OSError) as error:
                raise StorageUnavailable(f"journal: {error}") from error
            for entry_id, fields in chunk:
                yield entry_id, fields.get(b"b", b"")
            if len(chunk) < _READ_ENTRIES:
                return
            start = b"(" + chunk[-1][0]

    async def quarantine(self, where: str, blob: bytes) -> None:
        """Keep what could not be read, for people to look at. Raises StorageUnavailable."""
        try:
            await self._client.xadd(journal_quarantine_key(self._shard), {"where": where, "blob": blob})
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"quarantine: {error}") from error
