"""How much each tenant has in storage: figures that the scripts count, in the step in which they write what is counted.

A figure is a sorted set of tenants, scored by how much they have. So who has more than a quota is one command, however many tenants there
are, and no process has to agree with another about the sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import redis.asyncio as redis

from engine.store.keys import SUBSCRIBERS_PREFIX, tenants_key
from engine.store.storage_calls import StorageCalls

UsageFigure = Literal["users", "stored_bytes", "topics", "signal_names"]

FIGURES: Final[tuple[UsageFigure, ...]] = ("users", "stored_bytes", "topics", "signal_names")
"""`users`: who have a page or timers; `stored_bytes`: of their pages, offline streams and timers; `topics`: different ones that users are
subscribed to; `signal_names`: names of counter signals."""


def _total(figure: UsageFigure, counts: Sequence[int]) -> int:
    """What all stores together have. Of topics the most that one of them has: most topics have users on each."""
    return max(counts) if figure == "topics" else sum(counts)


class TenantUsage:
    """The figures of all tenants.

    Args:
        client, others: of all stores of the data.
    """

    def __init__(self, client: redis.Redis, *others: redis.Redis) -> None:
        self._client = client
        self._clients = (client, *others)

    async def of(self, tenant: str) -> dict[UsageFigure, int]:
        """Every figure of a tenant. Raises StorageUnavailable."""
        scores: list[Any] = []
        for client in self._clients:
            with StorageCalls("figures of a tenant"):
                pipeline = client.pipeline(transaction=False)
                for figure in FIGURES:
                    pipeline.zscore(tenants_key(figure), tenant)
                scores.append(await pipeline.execute())
        return {figure: _total(figure, [int(score or 0) for score in column]) for figure, *column in zip(FIGURES, *scores, strict=True)}

    async def largest(self, count: int) -> dict[str, dict[UsageFigure, int]]:
        """Every figure of the tenants that have the most bytes or the most users, at most `count` of them, the most bytes first.

        Of several stores each names its largest. Raises StorageUnavailable.
        """
        names: set[str] = set()
        with StorageCalls("figures of tenants"):
            for client in self._clients:
                pipeline = client.pipeline(transaction=False)
                for figure in ("stored_bytes", "users"):
                    pipeline.zrevrangebyscore(tenants_key(figure), "+inf", "(0", start=0, num=count)
                for reply in await pipeline.execute():
                    names.update(tenant.decode() for tenant in reply)
        found = {tenant: await self.of(tenant) for tenant in sorted(names)}
        return dict(sorted(found.items(), key=lambda item: (-item[1]["stored_bytes"], -item[1]["users"]))[:count])

    async def full(self, limits: Mapping[UsageFigure, int]) -> dict[UsageFigure, frozenset[str]]:
        """The tenants that have at least so much of each of these figures. Raises StorageUnavailable."""
        near: dict[UsageFigure, set[str]] = {figure: set() for figure in limits}
        for client in self._clients:  # who has the limit in all has its part of it on one of them
            with StorageCalls("tenants over a quota"):
                pipeline = client.pipeline(transaction=False)
                for figure, limit in limits.items():
                    pipeline.zrangebyscore(tenants_key(figure), -(-limit // len(self._clients)), "+inf")
                replies = await pipeline.execute()
            for tenants, reply in zip(near.values(), replies, strict=True):
                tenants.update(tenant.decode() for tenant in reply)
        if len(self._clients) == 1:
            return {figure: frozenset(tenants) for figure, tenants in near.items()}
        totals = {tenant: await self.of(tenant) for tenant in set().union(*near.values())}
        return {figure: frozenset(tenant for tenant in near[figure] if totals[tenant][figure] >= limits[figure]) for figure in limits}

    async def known_topics(self, tenant: str, topics: Sequence[str]) -> set[str]:
        """Those of these topics that a user of the tenant is subscribed to. Raises StorageUnavailable."""
        known: set[str] = set()
        for client in self._clients:
            with StorageCalls("topics of a tenant"):
                counts: list[Any] = await client.hmget(SUBSCRIBERS_PREFIX + tenant, list(topics))
            known.update(topic for topic, count in zip(topics, counts, strict=True) if count is not None)
        return known
