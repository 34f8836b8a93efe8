"""Stored records that could not be decoded, as they are kept for an operator: which there are, and how they begin. Read-only.

Shards keep entries of journals, pages and records that ended them in a stream each, schedulers timers in one for each partition. What a
shard left that is there no more is found too. Redis cuts the records, so that none leaves it whole.
"""

from __future__ import annotations

from typing import Final

import redis.asyncio as redis
from msgspec import Struct

from engine.core.model.routing import SLOTS, TIMER_PARTITIONS
from engine.store.keys import journal_quarantine_key, timer_quarantine_key
from engine.store.lua import Script
from engine.store.storage_calls import StorageCalls

_NEWEST: Final = Script.beside(__file__, "quarantine_newest")

_STREAMS: Final = {f"shard-{shard}": journal_quarantine_key(shard) for shard in range(SLOTS)} | {
    f"timers-{partition}": timer_quarantine_key(partition) for partition in range(TIMER_PARTITIONS)
}
"""By part."""

_BEGINNING_BYTES: Final = 48
"""Of a record, which are shown: what wrote it can mostly be recognised by them."""

_LOOKED_AT_BYTES: Final = 8 << 20
"""Of the records of a part: some milliseconds of Redis."""


class QuarantinedRecord(Struct, frozen=True):
    """A record.

    Attributes:
        part: `shard-<number>`, or `timers-<partition>`.
        origin: where it was: an entry of the journal, a page, the id of a timer.
        at: when it was found, ms since the epoch.
        bytes: its size.
        beginning: its first bytes, in hexadecimal.
        key: of Redis, which has it.
    """

    part: str
    origin: str
    at: int
    bytes: int
    beginning: str
    key: str


class Quarantine:
    """The records on all stores."""

    def __init__(self, *clients: redis.Redis) -> None:
        self._clients = clients

    async def newest(self, count: int) -> tuple[list[QuarantinedRecord], int]:
        """Up to `count` records, the newest first, fewer where they are large; and how many there are. Raises StorageUnavailable."""
        found: list[QuarantinedRecord] = []
        total = 0
        for client in self._clients:
            with StorageCalls("quarantine"):
                lengths = client.pipeline(transaction=False)
                for key in _STREAMS.values():
                    lengths.xlen(key)
                counts = await lengths.execute()
            total += sum(counts)
            for part, length in zip(_STREAMS, counts, strict=True):
                if length:
                    found += await _records(client, part, count)
        return sorted(found, key=lambda record: -record.at)[:count], total


async def _records(client: redis.Redis, part: str, count: int) -> list[QuarantinedRecord]:
    key = _STREAMS[part]
    _, entries = await _NEWEST.run(client, [key], [count, _BEGINNING_BYTES, _LOOKED_AT_BYTES])
    return [
        QuarantinedRecord(part, origin.decode(errors="replace"), int(entry.partition(b"-")[0]), size, beginning.hex(), key)
        for entry, origin, size, beginning in entries
    ]
