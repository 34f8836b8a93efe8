"""Reads what the core requests of storage: pages, ranges of offline streams, ids of fired timers; and what edges ask for of inboxes.

A broadcast is stored as its position in the broadcast log. Of a user whose slot has moved it may be one that this shard has not read yet,
because the first store, which has the log, is away. Such a range is read again once the log was read to its end; what the log lacks
then has left it. Nobody else waits. Reads of inboxes are answered "unavailable" when the log cannot be read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from engine.actors.actor_process import USERS_RETRY_S
from engine.actors.broadcast_follower import BroadcastFollower
from engine.actors.link import LinkServer
from engine.actors.recovery import Recovery
from engine.core.journal.journal_records import StoredMessage, is_ahead
from engine.core.shard.mailbox_store import StreamRead
from engine.core.shard.shard import ShardCore
from engine.core.shard.user_handlers import StreamAnswer
from engine.errors import StorageUnavailable
from engine.store.journal import Journal
from engine.store.offline_streams import OfflineStreams

log = logging.getLogger(__name__)

_SEND_BACKLOG_BYTES: Final = 32 << 20
"""On one link, beyond which messages of users who come back stay in storage: an eighth of the link's queue. When that is full, the session
is reset, all its connections are announced again, and the same messages are read and sent again."""

_SEND_BACKLOG_S: Final = 0.01
"""Between looks at that backlog: about what a batch takes."""


class StorageReads:
    """Reads for one shard.

    Args:
        links: to the edges, whose backlog is looked at.
        flush: carries out what the core wants.
    """

    def __init__(
        self,
        core: ShardCore,
        journal: Journal,
        offline: OfflineStreams,
        recovery: Recovery,
        follower: BroadcastFollower,
        links: LinkServer,
        *,
        flush: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._core = core
        self._journal = journal
        self._offline = offline
        self._recovery = recovery
        self._follower = follower
        self._links = links
        self._flush = flush
        self._now_ms = now_ms
        self._wanted = asyncio.Event()
        self._inbox_wanted = asyncio.Event()
        self._ahead: list[StreamRead] = []  # of broadcasts that were not read yet
        self._ahead_inboxes: list[StreamAnswer] = []  # likewise
        self._ahead_wanted = asyncio.Event()

    def wake(self) -> None:
        """Begin when the core has requests."""
        core = self._core
        fired = core.fired_timers
        if core.page_wait.pages_wanted or core.page_wait.doubted or core.mailbox_store.reads_wanted or fired.doubted or fired.awaited:
            self._wanted.set()
        if core.user_requests.reads_wanted:
            self._inbox_wanted.set()

    async def run(self) -> None:
        """Read pages and streams until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._read()
            except StorageUnavailable as error:
                log.warning("shard %d: %s", self._core.index, error)
                await asyncio.sleep(USERS_RETRY_S)
                self._wanted.set()
            self._flush()

    async def _read(self) -> None:
        core = self._core
        if keys := core.page_wait.take_pages_wanted():
            try:
                await self._recovery.read_pages(keys)
            except StorageUnavailable:
                core.pages_failed([*keys, *core.page_wait.pages_wanted])
                raise
            self._flush()
        if doubted := list(core.page_wait.doubted):
            await self._journal.check()
            core.confirmed(doubted, self._now_ms())
            self._flush()
        if core.mailbox_store.reads_wanted and self._links.queued_bytes > _SEND_BACKLOG_BYTES:
            await asyncio.sleep(_SEND_BACKLOG_S)
        elif reads := core.mailbox_store.take_reads_wanted(self._offline.ranges_max):
            try:
                answers = await self._offline.read(reads)
            except StorageUnavailable:
                for read in reads:
                    core.mailbox_store.read_failed(read)
                raise
            for read, entries in zip(reads, answers, strict=True):
                if self._are_ahead(entries):
                    self._ahead.append(read)
                    self._ahead_wanted.set()
                else:
                    core.read_done(read, entries, self._now_ms())
            self._flush()
        await self._journal.remember(core.fired_timers)
        await self._journal.look_up(core.fired_timers)
        await self._recovery.quarantine_damaged()

    def _are_ahead(self, entries: Iterable[StoredMessage]) -> bool:
        return any(is_ahead(stored, self._core.mailbox_store.log) for stored in entries)

    async def run_ahead(self) -> None:
        """Read the broadcast log to its end, then the ranges that wait for it, until cancelled."""
        while True:
            await self._ahead_wanted.wait()
            self._ahead_wanted.clear()
            reads, self._ahead = self._ahead, []
            inboxes, self._ahead_inboxes = self._ahead_inboxes, []
            try:
                await self._follower.catch_up()
                while reads or inboxes:
                    await self._read_ahead(reads, inboxes)
            except StorageUnavailable as error:
                log.warning("shard %d: broadcasts of users who have moved here: %s", self._core.index, error)
                self._core.user_requests.read_failed(inboxes)
                self._flush()
                await asyncio.sleep(USERS_RETRY_S)
                self._ahead += reads
            if self._ahead:
                self._ahead_wanted.set()

    async def _read_ahead(self, reads: list[StreamRead], inboxes: list[StreamAnswer]) -> None:
        """Read some of these ranges, and remove them."""
        count = self._offline.ranges_max
        some, pages = reads[:count], inboxes[:count]
        found = await self._offline.read([*some, *(page.range for page in pages)])
        del reads[:count], inboxes[:count]
        for read, entries in zip(some, found[: len(some)], strict=True):
            self._core.read_done(read, entries, self._now_ms())
        self._core.user_requests.read_done(pages, found[len(some) :])
        self._flush()

    async def run_inboxes(self) -> None:
        """Read what edges ask for of inboxes until cancelled, in a task of its own so that no delivery waits for it."""
        requests = self._core.user_requests
        while True:
            await self._inbox_wanted.wait()
            self._inbox_wanted.clear()
            while reads := requests.take_reads(self._offline.ranges_max):
                try:
                    found = await self._offline.read([read.range for read in reads])
                except StorageUnavailable as error:
                    log.warning("shard %d: inboxes: %s", self._core.index, error)
                    requests.read_failed(reads)
                else:
                    pairs = list(zip(reads, found, strict=True))
                    if ahead := [read for read, entries in pairs if self._are_ahead(entries)]:
                        self._ahead_inboxes += ahead
                        self._ahead_wanted.set()
                        pairs = [(read, entries) for read, entries in pairs if read not in ahead]
                    requests.read_done([read for read, _ in pairs], [entries for _, entries in pairs])
                self._flush()
