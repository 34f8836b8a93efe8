"""Pending messages of a user whose bodies are not in memory, read by an edge for a digest or an export: from the offline stream, or the
broadcast log.

The shard owns the stream and knows which of its entries are pending: it names them. One that is not found, or cannot be decoded, is left
out: delivery announces it, or quarantines it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import redis.asyncio as redis

from engine.core.journal.journal_records import StoredMessage
from engine.core.journal.stored_formats import decode_stored, read_entry
from engine.core.model.envelope import Envelope
from engine.core.model.routing import slot_of, store_of
from engine.core.wire.records import UNREADABLE
from engine.store.keys import BROADCAST_LOG_KEY, offline_key
from engine.store.storage_calls import StorageCalls

_PAGE: Final = 200
"""Entries of one read: a tenth of a millisecond of Redis, and 13 MB when all of them are as large as allowed."""


class ReadBodies(NamedTuple):
    """Messages, newest first; `more`: the limit of their bytes left out others."""

    messages: list[StoredMessage]
    more: bool = False


class PendingBodies:
    """Reads bodies of one engine's users. `clients`: of its stores, the first one first."""

    def __init__(self, *clients: redis.Redis) -> None:
        self._clients = clients

    async def read(self, key: str, ranges: Sequence[tuple[int, int]], bytes_max: int) -> ReadBodies:
        """The messages with these numbers, newest first, until they are `bytes_max` bytes.

        Args:
            key: mailbox key.
            ranges: inclusive, the highest first.

        Raises:
            StorageUnavailable: Redis did not answer.
        """
        found: list[StoredMessage] = []
        shared: list[StoredMessage] = []
        size, more = 0, False
        client = self._clients[store_of(slot_of(key), len(self._clients))]
        with StorageCalls("offline stream"):
            for first, last in ranges:
                highest = last
                while highest >= first:
                    if size >= bytes_max:
                        more = True
                        break
                    entries: Any = await client.xrevrange(offline_key(key), max=f"{highest}-0", min=f"{first}-0", count=_PAGE)
                    for _, fields in entries:
                        blob = fields.get(b"m", b"")
                        size += len(blob)
                        stored = _decoded(blob)
                        if stored is not None:
                            found.append(stored)
                            if stored.pos:
                                shared.append(stored)
                    if len(entries) < _PAGE:
                        break
                    highest = int(entries[-1][0].partition(b"-")[0]) - 1
            bodies = await self._broadcasts({stored.pos for stored in shared})
        for stored in shared:
            stored.envelope = bodies.get(stored.pos, stored.envelope)
        return ReadBodies([stored for stored in found if not stored.pos or stored.pos in bodies], more)

    async def _broadcasts(self, positions: Collection[int]) -> dict[int, Envelope]:
        """The broadcasts at these positions of the log that are there and can be decoded."""
        if not positions:
            return {}
        pipeline = self._clients[0].pipeline(transaction=False)
        for pos in positions:
            pipeline.xrange(BROADCAST_LOG_KEY, f"{pos}-0", f"{pos}-0")
        bodies = {}
        for pos, entries in zip(positions, await pipeline.execute(), strict=True):
            for _, fields in entries:
                with contextlib.suppress(*UNREADABLE):
                    envelope = read_entry(pos, fields.get(b"b", b"")).envelope
                    bodies[pos] = msgspec.structs.replace(envelope, body=bytes(envelope.body))
        return bodies


def _decoded(blob: bytes) -> StoredMessage | None:
    try:
        return decode_stored(blob)
    except UNREADABLE:
        return None
