"""Loads a shard's state from storage: the journals of slots that it gets, with their pages, and further pages on demand; quarantines what
cannot be read.

A damaged record is moved to quarantine for operators to examine, and what can be decoded of it is applied. If it is uncertain which
sequence numbers were given out, the data epoch is replaced, so that no cursor of the old epoch is compared with numbers of the new one.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

import redis.asyncio as redis

from engine.core.journal.journal_records import Adopted, AnyPage, Record, keys_of
from engine.core.journal.salvage import salvage_journal
from engine.core.journal.stored_formats import Layouts
from engine.core.shard.shard import ShardCore
from engine.core.wire.records import UNREADABLE
from engine.store.journal import Journal
from engine.store.offline_streams import OfflineStreams
from engine.store.pages import Pages
from engine.store.redis_client import replace_data_epoch

log = logging.getLogger(__name__)

_PAGES_READ = 500
"""Pages per read at the start: some megabytes if the state of the judge fills them."""


class Recovery:
    """Reads for one core. Every method raises DataLost and StorageUnavailable.

    Args:
        now_ms: the wall clock, in milliseconds.
        quarantine_max: records kept in quarantine; the oldest are dropped.

    Attributes:
        reach_log: waits until the broadcast log is read through a position. At the start it is read.
    """

    def __init__(
        self,
        client: redis.Redis,
        core: ShardCore,
        journal: Journal,
        pages: Pages,
        offline: OfflineStreams,
        layouts: Layouts,
        now_ms: Callable[[], int],
        quarantine_max: int,
    ) -> None:
        self._client = client
        self._core = core
        self._journal = journal
        self._pages = pages
        self._offline = offline
        self._layouts = layouts
        self._now_ms = now_ms
        self._quarantine_max = quarantine_max
        self.reach_log: Callable[[int], Awaitable[None]] | None = None
        self._damaged: list[str] = []  # keys whose pages are to be written anew
        self.quarantined = 0  # records in quarantine

    async def replay(self, slots: set[int]) -> None:
        """Read the journals of these slots and the pages of all users in them, and apply both.

        To be called before the slots are served. Each slot is applied at once, and taken out of the set then: after an exception call it
        again with what is left.
        """
        core = self._core
        loading = sorted(slots)
        core.mailbox_store.adopt_floors(await self._pages.floors(loading))
        entries = groups = 0
        for slot in loading:
            records: list[Record] = []
            async for entry_id, payload in self._journal.entries(slot):
                records += await self._decode(entry_id, payload)
                groups += 1
            if self._journal.holes:
                log.critical("shard %d: groups before these are missing: %s", core.index, b", ".join(self._journal.holes).decode())
                await self._numbers_lost()
            entries += len(records)
            if records:
                if self.reach_log is not None:
                    await self.reach_log(max((record.pos for record in records if isinstance(record, Adopted)), default=0))
                keys = keys_of(records)
                parts = [await self._read(keys[start : start + _PAGES_READ]) for start in range(0, len(keys), _PAGES_READ)]
                core.replay(slot, {key: page for part in parts for key, page in part.items()}, records, self._now_ms())
                self._mark_damaged()
            slots.discard(slot)
        if groups:
            log.info("shard %d replayed %d records of %d entries", core.index, entries, groups)
        await self.quarantine_damaged()
        self.quarantined = await self._journal.quarantined()

    async def _decode(self, entry_id: bytes, payload: bytes) -> Sequence[Record]:
        try:
            return self._layouts.decode_journal(payload)
        except UNREADABLE as error:
            log.critical("shard %d: journal entry %s cannot be read: %s", self._core.index, entry_id.decode(), error)
        await self._journal.quarantine(f"journal {entry_id.decode()}", payload, self._quarantine_max)
        salvaged = salvage_journal(payload, self._layouts)
        if not salvaged.complete:
            await self._numbers_lost()
        return salvaged.records

    async def find_deadlines(self, slots: Sequence[int]) -> None:
        """Read when the judge has something to do for these slots. Call it after `replay`: what the journal has of that is newer."""
        for slot, times in (await self._pages.deadlines(slots)).items():
            self._core.mailbox_store.judge.deadlines.stored(slot, times)

    async def read_pages(self, keys: list[str]) -> None:
        """Load these pages into the core. The next checkpoint writes damaged ones anew."""
        pages = await self._read(keys)
        self._core.pages_loaded(pages, self._now_ms())
        self._mark_damaged()

    async def _read(self, keys: list[str]) -> Mapping[str, AnyPage | None]:
        pages = await self._pages.read(keys)
        if self._pages.lost:
            log.critical("shard %d: the state of these users is lost: %s", self._core.index, ", ".join(self._pages.lost))
            await self._numbers_lost()
        self._damaged += self._pages.damaged
        return pages

    def _mark_damaged(self) -> None:
        for key in self._damaged:
            if key in self._core.mailboxes:
                self._core.mailbox_store.mark(self._core.mailboxes[key])
        self._damaged.clear()

    async def _numbers_lost(self) -> None:
        data_epoch = await replace_data_epoch(self._client, self._core.data_epoch, self._now_ms() // 1000)
        self._core.data_epoch_changed(data_epoch, self._now_ms())

    async def quarantine_damaged(self) -> None:
        """Move damaged pages and stream entries found so far to quarantine."""
        for corrupt in (self._pages.corrupt, self._offline.corrupt):
            while corrupt:
                await self._journal.quarantine(*corrupt[-1], self._quarantine_max)
                corrupt.pop()
                self.quarantined += 1
