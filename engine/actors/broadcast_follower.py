"""Tails the broadcast log into the core's mirror of it, and appends delayed broadcasts that are due.

Nothing here is fenced: reads of an old incarnation are harmless, and appending a delayed broadcast is idempotent by its id. After a storage
failure the next read continues at the head of the mirror.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from engine.actors.actor_process import RETRY_S
from engine.core.mailbox.broadcast_log import Channel
from engine.core.model.message import timer_effect_id
from engine.core.shard.shard import ShardCore
from engine.errors import StorageUnavailable
from engine.store.broadcast_stream import BroadcastLog, Dropped

log = logging.getLogger(__name__)

_REACHING_S = 0.01
"""Between two looks whether the log is read: users of slots that a dead shard had wait meanwhile."""


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
        self._left: list[Dropped] = []  # and is not followed yet
        self._horizon = 0  # losses up to it may be forgotten; 0: it is followed
        self._rounds = 0  # times that the log was read to its end
        self._drops = -1  # the number of the last drop that the mirror has followed; -1 before the first

    async def catch_up(self, *, wait: bool = False) -> None:
        """Read everything after the mirror's head; with `wait`, the first read blocks until there is something or it times out.

        What has left the log is asked for after each read, and followed in the same step as what was read: no mailbox may pass an entry
        that is gone without hearing of it. What left from behind the head waits until all before it is read.

        Raises:
            StorageUnavailable
        """
        audience, more = self._broadcast_audience, True
        while more:
            known, horizon_known = frozenset(self._left), self._horizon  # before the read; another reader may change them meanwhile
            broadcasts, reached, damaged = await self._broadcasts.read(audience.log.head, wait=wait)
            first = await self._broadcasts.first() if broadcasts else 0
            there = await self._ask_what_left() if broadcasts or self._look else None
            # -- one step
            if damaged is not None:
                audience.lose([damaged])  # before it is passed: connected users whom it concerns are told
            audience.read(broadcasts, reached, first)
            if there is not None:
                self._left += (Dropped(pos, None) for pos in audience.log.not_among(there))
            head = audience.log.head
            due = [dropped for dropped in self._left if dropped.pos <= head or (not broadcasts and dropped in known)]
            settled = self._horizon <= head or (not broadcasts and self._horizon == horizon_known)
            horizon = self._horizon if settled else 0
            if due or horizon:
                audience.lose(due, horizon)
                self._left = [dropped for dropped in self._left if dropped.pos > audience.log.head]
                self._horizon -= horizon
            more, wait = bool(broadcasts or damaged or self._left or self._horizon), False

    async def _ask_what_left(self) -> list[int] | None:
        """Note what has left the log since the last time. Returns the positions of what is there when that is not known."""
        dropped, newest = await self._broadcasts.dropped(max(self._drops, 0))
        lost: Mapping[Channel, int] = {}
        horizon, there = 0, None
        if self._drops < 0 or dropped is None:
            lost, horizon = await self._broadcasts.lost()
        if dropped is None:
            there = await self._broadcasts.positions()
        self._left += (*(dropped or ()), *(Dropped(pos, channel) for channel, pos in lost.items()))
        self._drops, self._look, self._horizon = newest, False, max(self._horizon, horizon)
        return there

    async def run(self, on_read: Callable[[], None]) -> None:
        """Follow the log until cancelled.

        Args:
            on_read: called after every read, also a failed or empty one.
        """
        while True:
            try:
                await self.catch_up(wait=True)
                self._rounds += 1
            except StorageUnavailable as error:
                log.warning("shard %d: %s", self._core.index, error)
                await asyncio.sleep(RETRY_S)
            on_read()

    async def reach(self, pos: int) -> None:
        """Returns when the mirror has passed this position, or the log was found to end before it. `run` reads meanwhile."""
        first = self._rounds + 2  # one may be under way that began too early
        while self._broadcast_audience.log.head < pos and self._rounds < first:
            await asyncio.sleep(_REACHING_S)

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
            self._core.fired_timers.failed(sids)
            raise
        self._core.fired_timers.done(sids)

    async def sweep(self, now_ms: int) -> None:
        """Drop expired broadcasts from the log and the mirror. Every shard does; dropping twice is harmless. Raises StorageUnavailable."""
        expired = self._broadcast_audience.log.expired(now_ms)
        await self._broadcasts.drop(expired)
        self._broadcast_audience.log.drop(expired)
        self._look = True  # others may have dropped what was never read here
