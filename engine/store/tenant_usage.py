"""How much each tenant has in storage: figures that the scripts count, in the step in which they write what is counted.

A figure is a sorted set of tenants, scored by how much they have. So who has more than a quota is one command, however many tenants there
are, and no process has to agree with another about the sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import redis.asyncio as redis
from redis.exceptions import RedisError

from engine.core.model.routing import partition_of_slot
from engine.errors import StorageUnavailable
from engine.store.keys import COUNTED, held_key, offline_prefix, page_key, subscribers_prefix, tenants_key, timer_unpaged_key
from engine.store.lua import Script

Figure = Literal["users", "stored_bytes", "topics", "signal_names"]

FIGURES: Final[tuple[Figure, ...]] = ("users", "stored_bytes", "topics", "signal_names")
"""`users`: who have a page or timers; `stored_bytes`: of their pages, offline streams and timers; `topics`: different ones that users are
subscribed to; `signal_names`: names of counter signals."""

_COUNT = Script("slot_count")

_PAGES: Final = 2000
"""Pages counted in one round trip, about: some 10 ms of Redis. A slot is counted in one step."""


class TenantUsage:
    """The figures of all tenants."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    async def of(self, tenant: str) -> dict[Figure, int]:
        """Every figure of a tenant. Raises StorageUnavailable."""
        try:
            pipeline = self._client.pipeline(transaction=False)
            for figure in FIGURES:
                pipeline.zscore(tenants_key(figure), tenant)
            return {figure: int(score or 0) for figure, score in zip(FIGURES, await pipeline.execute(), strict=True)}
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"figures of a tenant: {error}") from error

    async def full(self, limits: Mapping[Figure, int]) -> dict[Figure, frozenset[str]]:
        """The tenants that have at least so much of each of these figures. Raises StorageUnavailable."""
        try:
            pipeline = self._client.pipeline(transaction=False)
            for figure, limit in limits.items():
                pipeline.zrangebyscore(tenants_key(figure), limit, "+inf")
            replies = await pipeline.execute()
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"tenants over a quota: {error}") from error
        return {figure: frozenset(tenant.decode() for tenant in reply) for figure, reply in zip(limits, replies, strict=True)}

    async def known_topics(self, tenant: str, topics: Sequence[str]) -> set[str]:
        """Those of these topics that a user of the tenant is subscribed to. Raises StorageUnavailable."""
        try:
            counts: list[Any] = await self._client.hmget(subscribers_prefix() + tenant, list(topics))
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"topics of a tenant: {error}") from error
        return {topic for topic, count in zip(topics, counts, strict=True) if count is not None}

    async def count_slots(self, slots: Sequence[int]) -> None:
        """Count users and bytes of the slots that no version before has counted. Idempotent. Raises StorageUnavailable."""
        try:
            pipeline = self._client.pipeline(transaction=False)
            for slot in slots:
                pipeline.hexists(held_key(slot), COUNTED)
                pipeline.hlen(page_key(slot))
            replies = await pipeline.execute()
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"figures of tenants: {error}") from error
        calls: list[tuple[list[str], list[str]]] = []
        pages = 0
        for slot, counted, count in zip(slots, replies[::2], replies[1::2], strict=True):
            if counted:
                continue
            keys = [page_key(slot), held_key(slot), tenants_key("users"), tenants_key("stored_bytes")]
            keys.append(timer_unpaged_key(partition_of_slot(slot)))
            calls.append((keys, [offline_prefix(slot)]))
            pages += count
            if pages >= _PAGES:
                await _COUNT.run_many(self._client, calls)
                calls, pages = [], 0
        await _COUNT.run_many(self._client, calls)
