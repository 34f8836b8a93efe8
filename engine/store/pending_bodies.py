"""Pending messages of a user whose bodies are in the offline stream only, read by an edge for a digest.

The shard owns the stream and knows which of its entries are pending (`engine.core.shard.backlog_reads`). An entry that is not found, or
cannot be decoded, is left out: delivery announces it, or quarantines it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import redis.asyncio as redis

from engine.core.journal.journal_records import StoredMessage
from engine.core.journal.stored_formats import decode_stored
from engine.core.model.routing import slot_of, store_of
from engine.core.wire.records import UNREADABLE
from engine.store.keys import offline_key
from engine.store.storage_calls import StorageCalls

_PAGE: Final = 200
"""Entries of one read: a tenth of a millisecond of Redis, and 13 MB when all of them are as large as allowed."""


class PendingBodies:
    """Reads bodies of one engine's users. `clients`: of its stores, the first one first."""

    def __init__(self, *clients: redis.Redis) -> None:
        self._clients = clients

    async def read(self, key: str, ranges: Sequence[tuple[int, int]], bytes_max: int) -> list[StoredMessage]:
        """The messages with these numbers, newest first, until they are `bytes_max` bytes.

        Args:
            key: mailbox key.
            ranges: inclusive, the highest first.

        Raises:
            StorageUnavailable: Redis did not answer.
        """
        found: list[StoredMessage] = []
        size = 0
        client = self._clients[store_of(slot_of(key), len(self._clients))]
        with StorageCalls("offline stream"):
            for first, last in ranges:
                highest = last
                while highest >= first and size < bytes_max:
                    entries: Any = await client.xrevrange(offline_key(key), max=f"{highest}-0", min=f"{first}-0", count=_PAGE)
                    for _, fields in entries:
                        blob = fields.get(b"m", b"")
                        size += len(blob)
                        stored = _decoded(blob)
                        if stored is not None and not stored.pos:  # the body of a broadcast is in the broadcast log
                            found.append(stored)
                    if len(entries) < _PAGE:
                        break
                    highest = int(entries[-1][0].partition(b"-")[0]) - 1
        return found


def _decoded(blob: bytes) -> StoredMessage | None:
    try:
        return decode_stored(blob)
    except UNREADABLE:
        return None
