"""The offline streams, one per user: range reads by sequence number, and the sweep of expired entries.

An entry's id is `<sequence number>-0`, so resuming from a cursor is a range read, and writing a message twice stores it once.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import redis.asyncio as redis
from redis.exceptions import RedisError

from engine.core.journal.journal_records import MailboxPage, StoredMessage
from engine.core.journal.stored_formats import decode_page, decode_stored
from engine.core.shard.mailbox_store import StreamRead
from engine.core.wire.records import UNREADABLE
from engine.errors import StorageUnavailable
from engine.store.keys import offline_key, page_key
from engine.store.loss_detector import LossDetector

log = logging.getLogger(__name__)

_SWEEP_ENTRIES = 100
_SCAN_COUNT = 500

_REPLY_BYTES = 8 << 20
"""Of one read, about: some 20 ms in which the shard does nothing else. Ranges are read fewer at once when it is exceeded."""

_RANGES_FIRST = 4
_RANGES_MAX = 64


class OfflineStreams:
    """Reads the offline streams of a shard's users.

    Attributes:
        corrupt: (origin, bytes) of entries that could not be decoded, for the caller to quarantine and clear.
        ranges_max: how many to read at once, by what the last read brought: a range may be of 256 messages of any size.
    """

    def __init__(self, client: redis.Redis, loss_detector: LossDetector) -> None:
        self._client = client
        self._loss_detector = loss_detector
        self.corrupt: list[tuple[str, bytes]] = []
        self.ranges_max = _RANGES_FIRST

    async def read(self, reads: Sequence[StreamRead]) -> list[list[StoredMessage]]:
        """The stored messages of each range, in order.

        An entry that cannot be decoded is left out, logged and added to `corrupt`; the caller announces its number as a gap.

        Raises DataLost, StorageUnavailable.
        """
        try:
            pipeline = self._client.pipeline(transaction=False)
            check = self._loss_detector.guard(pipeline)
            for read in reads:
                pipeline.xrange(offline_key(read.key), min=f"{read.first}-0", max=f"{read.last}-0")
            marked, *replies = await pipeline.execute()
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"offline streams: {error}") from error
        check(marked)
        size = sum(len(fields.get(b"m", b"")) for entries in replies for _, fields in entries)
        if size > _REPLY_BYTES:
            self.ranges_max = max(self.ranges_max // 2, 1)
        elif size < _REPLY_BYTES // 4:
            self.ranges_max = min(self.ranges_max * 2, _RANGES_MAX)
        return [
            [stored for _, fields in entries if (stored := self._decode(read.key, fields.get(b"m", b""))) is not None]
            for read, entries in zip(reads, replies, strict=True)
        ]

    def _decode(self, key: str, blob: bytes) -> StoredMessage | None:
        try:
            return decode_stored(blob)
        except UNREADABLE:
            log.exception("an offline message of %s cannot be read", key)
            self.corrupt.append((f"offline {key}", blob))
            return None

    async def sweep(self, slot: int, now_ms: int) -> AsyncIterator[tuple[str, MailboxPage, int]]:
        """Delete expired entries from the streams of a slot.

        Yields (mailbox key, its page, when the oldest remaining entry expires in ms, 0 when none remains) for each stream with
        entries that had expired. An expired entry may be deleted under any epoch, so the sweep is not fenced.

        Raises StorageUnavailable.
        """
        cursor: int = 0
        pages: Any
        try:
            while True:
                cursor, pages = await self._client.hscan(page_key(slot), cursor, count=_SCAN_COUNT)
                for field, blob in pages.items():
                    try:
                        page = decode_page(blob)
                    except UNREADABLE:
                        continue  # reported and quarantined when the mailbox is loaded
                    if page.oldest_expires_ms and page.oldest_expires_ms <= now_ms:
                        key = field.decode()
                        yield key, page, await self._sweep_stream(key, now_ms)
                if not cursor:
                    return
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"sweep: {error}") from error

    async def _sweep_stream(self, key: str, now_ms: int) -> int:
        """Delete the expired entries of one stream; returns when the first of the others expires, ms, 0 when there is none."""
        stream = offline_key(key)
        start, oldest = b"-", 0
        while True:
            entries: Any = await self._client.xrange(stream, min=start, count=_SWEEP_ENTRIES)
            expired = []
            for entry_id, fields in entries:
                stored = self._decode(key, fields.get(b"m", b""))
                if stored is None or stored.expires_ms <= now_ms:
                    expired.append(entry_id)
                else:
                    oldest = min(oldest or stored.expires_ms, stored.expires_ms)
            if expired:
                await self._client.xdel(stream, *expired)
            if len(entries) < _SWEEP_ENTRIES:
                return oldest
            start = b"(" + entries[-1][0]
