"""Tails the broadcast log into the core's mirror of it, and appends delayed broadcasts that are due.

Nothing here is fenced: reads of an old incarnation are harmless, and appending a delayed broadcast is idempotent by its id. After a storage
failure the next read continues at the head of the mirror.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from engine.actors.actor_process import RETRY_S
from engine.core.model.message import timer_effect_id
from engine.core.shard.shard import ShardCore
from engine.errors import StorageUnavailable
from engine.store.broadcast_stream import BroadcastLog, Dropped

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
        self._look = True  # for entries that have left, with the next read
        self._drops = -1  # the number of the last drop that the mirror has followed; -1 before the first

    async def catch_up(self, *, wait: bool = False) -> None:
        """Read everything after the mirror's head; with `wait`, the first read blocks until there is something or it times out.

        Raises:
            StorageUnavailable
        """
        left: list[Dropped] = []
        drops, horizon, more = self._drops, 0, True
        look, self._look = self._look, True  # again, if this fails
        while more:
            dropped: Sequence[Dropped] | None = ()
            if look:
                # What has left is asked for before the read, and followed once all is read: what is still there of before it is known then.
                dropped, newest = await self._broadcasts.dropped(max(drops, 0))
                if drops < 0 or dropped is None:
                    lost, horizon = await self._broadcasts.lost()
                    left += (Dropped(pos, channel) for channel, pos in lost.items())
                drops = newest
            broadcasts, reached = await self._broadcasts.read(self._broadcast_audience.log.head, wait=wait)
            self._broadcast_audience.read(broadcasts, reached, await self._broadcasts.first() if broadcasts else 0)
            if dropped is None:
                dropped = [Dropped(pos, None) for pos in self._broadcast_audience.log.not_among(await self._broadcasts.positions())]
            left += dropped
            look = more = bool(broadcasts)  # an append evicts
            wait = False
        if left or horizon:
            self._broadcast_audience.lose(left, horizon)
        self._drops, self._look = drops, False

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
        self._look = True  # others may have dropped what was never read here
