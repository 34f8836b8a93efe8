"""Tails the broadcast log into the core's mirror of it, and appends delayed broadcasts that are due.

Nothing here is fenced: reads of an old incarnation are harmless, and appending a delayed broadcast is idempotent by its id. After a storage
failure the next read continues at the head of the mirror.
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
        broadcasts: on a Redis client of its own, since a blocking read occupies a connection.
    """

    def __init__(self, broadcasts: BroadcastLog, core: ShardCore) -> None:
        self._broadcasts = broadcasts
        self._core = core
        self._broadcast_audience = core.broadcast_audience
        self._evictions = 0  # the number of the last eviction that the mirror has followed

    async def catch_up(self, *, wait: bool = False) -> None:
        """Read everything after the mirror's head; with `wait`, the first read blocks until there is something or it times out.

        Raises:
            StorageUnavailable
        """
        more = True
        while more:
            broadcasts, reached = await self._broadcasts.read(self._broadcast_audience.log.head, wait=wait)
            self._broadcast_audience.read(broadcasts, reached, await self._broadcasts.first() if broadcasts else 0)
            if broadcasts:  # only an append evicts
                await self._follow_evictions()
            more, wait = bool(broadcasts), False

    async def _follow_evictions(self) -> None:
        mirror = self._broadcast_audience.log
        evicted, newest = await self._broadcasts.evicted(self._evictions)
        if evicted is None:
            evicted = mirror.not_among(await self._broadcasts.positions())
        mirror.drop(evicted)
        self._evictions = newest

    async def run(self, on_read: Callable[[], None]) -> None:
        """Follow the log until cancelled.

        Args:
            on_read: called after every read, also a failed or empty one.
        """
        while True:
            try:
                await self.catch_up(wait=True)
            except StorageUnavailable as error:
                log.warning("shard %d: %s", self._core.index, error)
                await asyncio.sleep(RETRY_S)
            on_read()

    async def announce(self) -> None:
        """Append the broadcasts whose timers fired; idempotent for each.

        Raises:
            StorageUnavailable: all of them are tried again when their timers fire again.
        """
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
        """Drop expired broadcasts from the log and the mirror. Every shard does; dropping twice is harmless. Raises StorageUnavailable."""
        expired = self._broadcast_audience.log.expired(now_ms)
        await self._broadcasts.drop(expired)
        self._broadcast_audience.log.drop(expired)
