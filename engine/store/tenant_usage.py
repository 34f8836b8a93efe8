"""How much each tenant has in storage: figures that the scripts count, in the step in which they write what is counted.

A figure is a sorted set of tenants, scored by how much they have. So who has more than a quota is one command, however many tenants there
are, and no process has to agree with another about the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import redis.asyncio as redis
from redis.exceptions import RedisError

from engine.errors import StorageUnavailable
from engine.store.keys import tenants_key

Figure = Literal["signal_names"]

FIGURES: Final[tuple[Figure, ...]] = ("signal_names",)
"""`signal_names`: names of counter signals."""


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
