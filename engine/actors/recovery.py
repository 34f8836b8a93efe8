"""What a shard reads back: pages and journal when it starts, pages later; and what becomes of that which cannot be read.

A damaged record is moved to quarantine, which operators look at, and what can still be read of it is used. Where it is not known for sure
which numbers were given out, the data epoch is replaced: a cursor of the old one is not taken for one of the new.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import redis.asyncio as redis

from engine.core.journal.journal_records import keys_of
from engine.core.journal.salvage import salvage_journal
from engine.core.journal.stored_formats import decode_journal
from engine.core.shard.shard import ShardCore
from engine.core.wire.records import UNREADABLE
from engine.store.journal import Journal
from engine.store.offline_streams import OfflineStreams
from engine.store.pages import Pages
from engine.store.redis_client import replace_data_epoch

log = logging.getLogger(__name__)

_PAGES_READ = 500
"""Pages read at once at the start: some megabytes when they are full of windows."""


class Recovery:
    """Reads for one core. All of it raises DataLost and StorageUnavailable.

    Args:
        now_ms: the wall clock.
        quarantine_max: records kept there, the newest.
    """

    def __init__(
        self,
        client: redis.Redis,
        core: ShardCore,
        journal: Journal,
        pages: Pages,
        offline: OfflineStreams,
        now_ms: Callable[[], int],
        quarantine_max: int,
    ) -> None:
        self._client = client
        self._core = core
        self._journal = journal
        self._pages = pages
        self._offline = offline
        self._now_ms = now_ms
        self._quarantine_max = quarantine_max
        self.quarantined = 0  # records that nobody has looked at yet

    async def replay(self) -> None:
        """Pages of everyone in the journal, then the journal; and who has open windows. Once: what failed takes another core."""
        core = self._core
        entries = groups = 0
        async for entry_id, payload in self._journal.entries():
            try:
                records = decode_journal(payload)
            except UNREADABLE as error:
                log.critical("shard %d: journal entry %s cannot be read: %s", core.index, entry_id.decode(), error)
                await self._journal.quarantine(f"journal {entry_id.decode()}", payload, self._quarantine_max)
                salvaged = salvage_journal(payload)
                records = salvaged.records
                if not salvaged.complete:
                    await self._numbers_lost()
            unseen = keys_of(records) - core.mailboxes.keys()
            if unseen:
                await self.read_pages(list(unseen))
            core.mailbox_store.replay(records, self._now_ms())
            entries += len(records)
            groups += 1
        core.replayed()
        await self._open_windows()
        if groups:
            log.info("shard %d replayed %d records of %d groups", core.index, entries, groups)
        await self.put_aside()
        self.quarantined = await self._journal.quarantined()

    async def _open_windows(self) -> None:
        """Mailboxes with open windows come into memory: nothing else would close them."""
        keys = await self._pages.with_windows(self._core.slot_map.slots_of(self._core.index))
        absent = [key for key in keys if key not in self._core.mailboxes]
        for start in range(0, len(absent), _PAGES_READ):
            await self.read_pages(absent[start : start + _PAGES_READ])

    async def read_pages(self, keys: list[str]) -> None:
        """Pages into the core; those that were damaged are written anew by the next checkpoint."""
        pages = await self._pages.read(keys)
        if self._pages.lost:
            log.critical("shard %d: nothing is known any more of %s", self._core.index, ", ".join(self._pages.lost))
            await self._numbers_lost()
        self._core.pages_loaded(pages, self._now_ms())
        for key in self._pages.damaged:
            self._core.mailbox_store.mark(self._core.mailboxes[key])

    async def _numbers_lost(self) -> None:
        data_epoch = await replace_data_epoch(self._client, self._core.data_epoch, self._now_ms() // 1000)
        self._core.data_epoch_changed(data_epoch, self._now_ms())

    async def put_aside(self) -> None:
        """Move what was found damaged to quarantine."""
        for corrupt in (self._pages.corrupt, self._offline.corrupt):
            while corrupt:
                await self._journal.quarantine(*corrupt[-1], self._quarantine_max)
                corrupt.pop()
                self.quarantined += 1
