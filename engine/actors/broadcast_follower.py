"""A shard's eyes on the broadcast log: they fill the core's mirror of it, at the start and ever after.

Nothing is fenced: an old incarnation that follows on does no harm, and what a delayed broadcast appends when it is due takes effect once
by its id, whoever appends it. What was read is in the core at once; when storage is away the next read goes on where the last one ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from engine.actors.actor_process import RETRY_S
from engine.core.model.message import timer_effect_id
from engine.core.shard.shard import ShardCore
from engine.errors import StorageUnavailable
from engine.store.broadcast_stream import BroadcastLog

log = logging.getLogger(__name__)


class BroadcastFollower:
    """Reads for one core.

    Args:
        broadcasts: over a client of its own: a read that waits must not take a connection from the others.
    """

    def __init__(self, broadcasts: BroadcastLog, core: ShardCore) -> None:
        self._broadcasts = broadcasts
        self._core = core
        self._broadcast_audience = core.broadcast_audience

    async def catch_up(self, *, wait: bool = False) -> None:
        """Read all there is behind the mirror's head; with `wait`, wait a while for something. Raises StorageUnavailable."""
        more = True
        while more:
            broadcasts, reached = await self._broadcasts.read(self._broadcast_audience.log.head, wait=wait)
            self._broadcast_audience.read(broadcasts, reached, await self._broadcasts.first() if broadcasts else 0)
            more, wait = bool(broadcasts), False

    async def run(self, on_read: Callable[[], None]) -> None:
        """Follow the log until cancelled.

        Args:
            on_read: something may have been read.
        """
        while True:
            try:
                await self.catch_up(wait=True)
            except StorageUnavailable as error:
                log.warning("shard %d: %s", self._core.index, error)
                await asyncio.sleep(RETRY_S)
            on_read()

    async def announce(self) -> None:
        """Append the broadcasts that timers made due, each once however often it is tried. Raises StorageUnavailable."""
        announcements = self._broadcast_audience.take_announcements()
        if not announcements:
            return
        sids = [announcement.sid for announcement in announcements]
        try:
            await self._broadcasts.append([(announcement.entry, timer_effect_id(announcement.sid)) for announcement in announcements])
        except StorageUnavailable:
            self._core.announced(sids, done=False)
            raise
        self._core.announced(sids, done=True)

    async def sweep(self, now_ms: int) -> None:
        """Take what has expired out of the log and the mirror, as every shard does. Raises StorageUnavailable."""
        expired = self._broadcast_audience.log.expired(now_ms)
        await self._broadcasts.drop(expired)
        self._broadcast_audience.log.drop(expired)
