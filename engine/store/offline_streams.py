"""The offline streams, one per user: range reads by sequence number, and the sweep of expired entries.

An entry's id is `<sequence number>-0`, so resuming from a cursor is a range read, and writing a message twice stores it once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import redis.asyncio as redis

from engine.core.inbox.inbox import InboxLimits
from engine.core.journal.journal_records import AnyPage, StoredMessage, looks_at
from engine.core.journal.stored_formats import Layouts, decode_stored
from engine.core.model.routing import slot_of
from engine.core.shard.mailbox_store import Overdue, StreamRead, Swept
from engine.core.wire.records import UNREADABLE
from engine.store.keys import looks_key, offline_key, page_key
from engine.store.loss_detector import LossDetector
from engine.store.storage_calls import StorageCalls

log = logging.getLogger(__name__)

_SWEEP_ENTRIES = 100

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

    def __init__(self, client: redis.Redis, loss_detector: LossDetector, layouts: Layouts, inbox_limits: InboxLimits | None = None) -> None:
        self._client = client
        self._layouts = layouts
        self._inbox_limits = inbox_limits
        self._loss_detector = loss_detector
        self.corrupt: list[tuple[str, bytes]] = []
        self.ranges_max = _RANGES_FIRST

    async def read(self, reads: Sequence[StreamRead]) -> list[list[StoredMessage]]:
        """The stored messages of each range, in order.

        An entry that cannot be decoded is left out, logged and added to `corrupt`; the caller announces its number as a gap.

        Raises DataLost, StorageUnavailable.
        """
        with StorageCalls("offline streams"):
            pipeline = self._client.pipeline(transaction=False)
            check = self._loss_detector.guard(pipeline, {slot_of(read.key): None for read in reads})
            for read in reads:
                pipeline.xrange(offline_key(read.key), min=f"{read.first}-0", max=f"{read.last}-0")
            marked, *replies = await pipeline.execute()
        check(marked)
        size = sum(len(fields.get(b"m", b"")) for entries in replies for _, fields in entries)
        if size > _REPLY_BYTES:
            self.ranges_max = max(self.ranges_max // 2, 1)
        elif size < _REPLY_BYTES // 4:
            self.ranges_max = min(self.ranges_max * 2, _RANGES_MAX)
        return [
            [stored for entry in entries if (stored := self._decode(read.key, *entry)) is not None]
            for read, entries in zip(reads, replies, strict=True)
        ]

    def _decode(self, key: str, entry_id: bytes, fields: dict[bytes, bytes]) -> StoredMessage | None:
        """The message of an entry; None when it cannot be read, or is another's: the bytes around a value have no checksum."""
        blob = fields.get(b"m", b"")
        try:
            stored = decode_stored(blob)
        except UNREADABLE:
            log.exception("an offline message of %s cannot be read", key)
        else:
            if (stored.key, b"%d-0" % stored.seq) == (key, entry_id):
                return stored
            log.error("message %d of %s is stored as %s of %s", stored.seq, stored.key, entry_id.decode(), key)
        self.corrupt.append((f"offline {key}", blob))
        return None

    async def sweep(self, slots: Sequence[int], now_ms: int, pages_max: int) -> list[Swept]:
        """Look at the pages that are due to be looked at, `pages_max` at most, and delete expired entries from their streams.

        Its cost depends on what is due, not on how many users there are. An expired entry may be deleted under any epoch, so the sweep is
        not fenced. A page that the caller does not store anew is due again.

        Raises StorageUnavailable.
        """
        swept: list[Swept] = []
        with StorageCalls("sweep"):
            for slot, fields in (await self._due(slots, now_ms, pages_max)).items():
                blobs: Any = await self._client.hmget(page_key(slot), fields)
                for field, blob in zip(fields, blobs, strict=True):
                    try:
                        page = None if blob is None else self._layouts.decode_page(field.decode(errors="replace"), blob)
                    except UNREADABLE:
                        page = None  # reported and quarantined when the mailbox is loaded
                    if page is None:
                        await self._client.zrem(looks_key(slot), field)
                    elif page.inbox is not None and self._inbox_limits is not None and looks_at(page):
                        swept.append(await self._look_at_inbox(field.decode(), page, self._inbox_limits, now_ms))
                    else:
                        key = field.decode()
                        expires = bool(looks_at(page))
                        swept.append(Swept(key, page, expires, await self._sweep_stream(key, now_ms) if expires else 0))
        return swept

    async def _due(self, slots: Sequence[int], now_ms: int, pages_max: int) -> dict[int, list[bytes]]:
        """Mailbox keys whose page is due, by slot."""
        pipeline = self._client.pipeline(transaction=False)
        for slot in slots:
            pipeline.zrangebyscore(looks_key(slot), "-inf", now_ms, start=0, num=pages_max)
        due: dict[int, list[bytes]] = {}
        for slot, fields in zip(slots, await pipeline.execute(), strict=True):
            if fields and pages_max > 0:
                due[slot] = fields[:pages_max]
                pages_max -= len(due[slot])
        return due

    async def _look_at_inbox(self, key: str, page: AnyPage, limits: InboxLimits, now_ms: int) -> Swept:
        """Find the entries of a stream that are over. The shard decides, since it knows what is pending and pinned now."""
        overdue, oldest, due_ms = Overdue(), 0, 0
        acked, start = frozenset(page.acked), b"-"
        while True:
            entries: Any = await self._client.xrange(offline_key(key), min=start, count=_SWEEP_ENTRIES)
            for entry_id, fields in entries:
                seq = int(entry_id.partition(b"-")[0])
                stored = self._decode(key, entry_id, fields)
                expires_ms = aged_ms = 0
                if stored is not None:
                    expires_ms = aged_ms = stored.expires_ms
                    if not stored.pos:
                        aged_ms = stored.accepted_ms + limits.keep_of(stored.envelope.policy_terms)
                is_pending = seq > page.floor and seq not in acked
                if is_pending:
                    if expires_ms <= now_ms:
                        overdue.expired.append(seq)
                    else:
                        oldest = min(oldest or expires_ms, expires_ms)
                if aged_ms <= now_ms:
                    overdue.aged.append(seq)
                    aged_ms = expires_ms if is_pending else 0  # until then it is acknowledged, or it is over
                if aged_ms > now_ms:
                    due_ms = min(due_ms or aged_ms, aged_ms)
            if len(entries) < _SWEEP_ENTRIES:
                return Swept(key, page, True, oldest, Overdue(overdue.expired, overdue.aged, due_ms))
            start = b"(" + entries[-1][0]

    async def _sweep_stream(self, key: str, now_ms: int) -> int:
        """Delete the expired entries of one stream; returns when the first of the others expires, ms, 0 when there is none."""
        stream = offline_key(key)
        start, oldest = b"-", 0
        while True:
            entries: Any = await self._client.xrange(stream, min=start, count=_SWEEP_ENTRIES)
            expired = []
            for entry_id, fields in entries:
                stored = self._decode(key, entry_id, fields)
                if stored is None or stored.expires_ms <= now_ms:
                    expired.append(entry_id)
                else:
                    oldest = min(oldest or stored.expires_ms, stored.expires_ms)
            if expired:
                await self._client.xdel(stream, *expired)
            if len(entries) < _SWEEP_ENTRIES:
                return oldest
            start = b"(" + entries[-1][0]
