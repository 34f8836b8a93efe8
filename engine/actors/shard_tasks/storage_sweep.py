"""What a shard looks after in storage for users who are not there: what has expired, who is gone, and how much tenants have."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import redis.asyncio as redis

from engine.actors.broadcast_follower import BroadcastFollower
from engine.config import Config
from engine.core.shard.shard import ShardCore
from engine.errors import StorageUnavailable
from engine.store.accepted_ids import AcceptedIds
from engine.store.offline_streams import OfflineStreams
from engine.store.stores import connect_each
from engine.store.tenant_usage import TenantUsage

log = logging.getLogger(__name__)

_TENANTS_S: Final = 1.0
"""Between questions which tenants have as many users as they may: a quota is exceeded by the new users of so long, and a checkpoint."""

_PAGES_MAX: Final = 2000
"""Pages looked at in one go: some 100 ms of the shard, a page at a time."""

_LOADED: Final = 100
"""Mailboxes that are loaded at once: some milliseconds."""

_LOADED_S: Final = 0.05
"""Between two such parts."""

_IDS_S: Final = 30.0
_IDS_PAUSE_S: Final = 0.02  # between two parts of a millisecond


class StorageSweep:
    """Sweeps for one shard.

    Args:
        client: of the store that has the shard's users.
        retry: runs an action until storage answers.
        flush: carries out what the core wants.
    """

    def __init__(
        self,
        config: Config,
        client: redis.Redis,
        core: ShardCore,
        offline: OfflineStreams,
        follower: BroadcastFollower,
        *,
        connect: Callable[[Config], redis.Redis],
        retry: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]],
        flush: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._client = client
        self._core = core
        self._offline = offline
        self._follower = follower
        self._connect = connect
        self._retry = retry
        self._flush = flush
        self._now_ms = now_ms

    async def run(self) -> None:
        """Delete expired messages of offline users, pages of users who are gone, and expired broadcasts, until cancelled."""
        config, core = self._config, self._core
        more = False
        while True:
            # What was found stays due until a checkpoint has written it.
            await asyncio.sleep((2 * config.checkpoint_ms if more else config.sweep_ms) / 1000)
            swept_ms = self._now_ms()
            slots = core.slot_map.slots_of(core.index)
            try:
                await self._follower.sweep(swept_ms)
                swept = await self._offline.sweep(slots, swept_ms, _PAGES_MAX)
            except StorageUnavailable as error:
                log.warning("shard %d: %s", core.index, error)
                continue
            more = len(swept) == _PAGES_MAX
            for start in range(0, len(swept), _LOADED):
                for found in swept[start : start + _LOADED]:
                    core.swept(found)
                self._flush()
                await asyncio.sleep(_LOADED_S)

    async def run_ids(self) -> None:
        """Delete ids whose time is past, until cancelled. The shards of a store share its buckets, and the turns."""
        ids = AcceptedIds(self._client, self._config.idempotency_caller_s * 1000)
        while True:
            await asyncio.sleep(_IDS_S)
            try:
                while await ids.sweep():
                    await asyncio.sleep(_IDS_PAUSE_S)
            except StorageUnavailable as error:
                log.info("shard %d: %s", self._core.index, error)

    async def run_tenants(self) -> None:
        """Ask which tenants have as many users as they may, where their number is limited."""
        users_max = self._config.tenant_users_max
        if not users_max:
            return
        usage = TenantUsage(*connect_each(self._connect, self._config))
        while True:
            try:
                self._core.full_tenants = (await usage.full({"users": users_max}))["users"]
            except StorageUnavailable as error:
                log.info("shard %d: %s", self._core.index, error)
            await asyncio.sleep(_TENANTS_S)
