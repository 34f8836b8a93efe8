"""Stored records that could not be decoded, as they are kept for an operator: which there are, and how they begin. Read-only.

Shards keep entries of journals, pages and records that ended them in a stream each, schedulers timers in a hash for each partition. What a
shard left that is there no more is found too.
"""

from __future__ import annotations

from typing import Any, Final

import redis.asyncio as redis
from msgspec import Struct

from engine.core.model.routing import SLOTS, TIMER_PARTITIONS
from engine.store.keys import journal_quarantine_key, timer_quarantine_key
from engine.store.storage_calls import StorageCalls

_BEGINNING_BYTES: Final = 48
"""Of a record, which are shown: what wrote it can mostly be recognised by them."""


class QuarantinedRecord(Struct, frozen=True):
    """A record.

    Attributes:
        part: `shard-<number>`, or `timers-<partition>`.
        origin: where it was: an entry of the journal, a page, the id of a timer.
        at: when it was found, ms since the epoch; 0 where that is not kept.
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
        """Up to `count` records, the newest first, then timers; and how many there are. Raises StorageUnavailable."""
        found: list[QuarantinedRecord] = []
        total = 0
        with StorageCalls("quarantine"):
            for client in self._clients:
                lengths = client.pipeline(transaction=False)
                for shard in range(SLOTS):
                    lengths.xlen(journal_quarantine_key(shard))
                for partition in range(TIMER_PARTITIONS):
                    lengths.hlen(timer_quarantine_key(partition))
                counts = await lengths.execute()
                total += sum(counts)
                found += await self._records(client, counts, count)
        return sorted(found, key=lambda record: -record.at)[:count], total

    async def _records(self, client: redis.Redis, counts: list[int], count: int) -> list[QuarantinedRecord]:
        found: list[QuarantinedRecord] = []
        entries: Any
        for shard in (shard for shard in range(SLOTS) if counts[shard]):
            key = journal_quarantine_key(shard)
            entries = await client.xrevrange(key, count=count)
            for entry, fields in entries:
                at_ms = int(entry.decode().partition("-")[0])
                origin = fields.get(b"where", b"").decode(errors="replace")
                found.append(_record(f"shard-{shard}", origin, at_ms, fields.get(b"blob", b""), key))
        for partition in (partition for partition in range(TIMER_PARTITIONS) if counts[SLOTS + partition]):
            key = timer_quarantine_key(partition)
            _, entries = await client.hscan(key, count=count)
            for sid, packed in list(entries.items())[:count]:
                found.append(_record(f"timers-{partition}", sid.decode(errors="replace"), 0, packed, key))
        return found


def _record(part: str, origin: str, at_ms: int, blob: bytes, key: str) -> QuarantinedRecord:
    return QuarantinedRecord(part, origin, at_ms, len(blob), blob[:_BEGINNING_BYTES].hex(), key)
