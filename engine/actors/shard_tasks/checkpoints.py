"""Checkpoints of a shard: dirty mailboxes to storage every few seconds, users that went offline at once; then the journal is trimmed.

One at a time, whoever wants it: the two tasks here, slots that are handed over, an erasure, the drain before the process ends. One of
everything takes seconds where there is much to write. Users whose slots are being handed over would wait for it, so none begins meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from engine.actors.actor_process import RETRY_S
from engine.actors.incarnation import Incarnation
from engine.config import Config
from engine.core.journal.journal_records import Checkpoint
from engine.core.shard.shard import ShardCore
from engine.errors import DataLost, Fenced, StorageUnavailable
from engine.store.journal import Journal
from engine.store.pages import Pages

log = logging.getLogger(__name__)

Take = Callable[[], Checkpoint | None]
"""Begins a checkpoint; None when there is nothing to write."""

_FILL_PAUSE_S: Final = 0.001
"""Between two parts of a checkpoint (`checkpoint_mailboxes`), which take as long: half of the shard's time is left to messages."""

_DONE_MAILBOXES: Final = 64
"""Mailboxes of a written checkpoint at once: a millisecond where each had a dozen messages."""

_SPILL_MESSAGES: Final = 5000
"""Messages per partial checkpoint: tens of milliseconds, after which the journal's checkpoint can run."""


class Checkpoints:
    """The checkpoints of one shard.

    Args:
        flush: carries out what the core wants.
    """

    def __init__(
        self,
        config: Config,
        core: ShardCore,
        journal: Journal,
        pages: Pages,
        incarnation: Incarnation,
        *,
        flush: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._core = core
        self._journal = journal
        self._pages = pages
        self._incarnation = incarnation
        self._flush = flush
        self._now_ms = now_ms
        self._writing = asyncio.Lock()
        self._spill_wanted = asyncio.Event()

    def wake(self) -> None:
        """Begin when the core has users that went offline."""
        if self._core.mailbox_store.urgent:
            self._spill_wanted.set()

    async def run(self) -> None:
        """Write everything that is dirty every `checkpoint_ms`."""
        while True:
            await asyncio.sleep(self._config.checkpoint_ms / 1000)
            await self.write(full=True)
            await self._look()

    async def run_spills(self) -> None:
        """Move the messages of users that went offline to the offline stream at once."""
        while True:
            await self._spill_wanted.wait()
            self._spill_wanted.clear()
            await self.write(full=False)

    async def write(self, *, full: bool) -> None:
        """Write a checkpoint: of all that is dirty, or of the users that went offline. When storage is away it is left to the next one."""
        async with self._writing:
            await self._write(lambda: self._core.mailbox_store.take_checkpoint(full, _SPILL_MESSAGES))

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[Callable[[Take], Awaitable[None]]]:
        """Nobody else's checkpoint is written in the block. It is given a function that writes one until storage has it."""

        async def until_stored(take: Take) -> None:
            while not await self._write(take):
                pass

        async with self._writing:
            yield until_stored

    async def _write(self, take: Take) -> bool:
        """Write a checkpoint, as the only one; returns whether storage has it."""
        if self._core.mailbox_store.is_writing:
            raise Fenced("the last checkpoint failed for good, and its task ends this process")
        checkpoint, slots = take(), frozenset(self._journal.untrimmed)
        if checkpoint is None:
            return True
        while self._core.mailbox_store.fill_checkpoint(self._config.checkpoint_mailboxes, self._now_ms()):
            await asyncio.sleep(_FILL_PAUSE_S)
        try:
            written = await self._pages.write(checkpoint.spills, self._now_ms())
            await self._journal.covered(checkpoint.through_commit, slots if checkpoint.slots is None else checkpoint.slots, written)
            self._pages.confirm()
        except StorageUnavailable as error:
            log.warning("shard %d: checkpoint: %s", self._core.index, error)
            self._core.mailbox_store.checkpoint_failed()
            await asyncio.sleep(RETRY_S)
            return False
        while self._core.mailbox_store.checkpoint_done(_DONE_MAILBOXES):
            await asyncio.sleep(0)
        self._flush()
        return True

    async def _look(self) -> None:
        """Check that storage has lost nothing, and that no newer process is this shard: one with nothing to write would not detect it."""
        try:
            await self._incarnation.confirm()
            await self.compare()
        except StorageUnavailable as error:
            log.info("shard %d: %s", self._core.index, error)

    async def compare(self) -> None:
        """Check that storage has what the shard wrote, and take the data epoch over that another shard has replaced.

        Raises as `Journal.check`, and DataLost when the data epoch is an older one.
        """
        data_epoch = await self._journal.check()
        if int(data_epoch, 36) < int(self._core.data_epoch, 36):
            raise DataLost(f"storage has lost the data epoch {self._core.data_epoch}, it is {data_epoch}")
        if data_epoch != self._core.data_epoch:
            log.error("shard %d: others have lost data, the data epoch is %s now", self._core.index, data_epoch)
            self._core.data_epoch_changed(data_epoch, self._now_ms())
            self._flush()
