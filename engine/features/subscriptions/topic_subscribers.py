"""The topics of a tenant, with how many users are subscribed to each: the counts that scripts keep for the quotas of tenants.

A page is a step of HSCAN over one store after another, so any number of topics is listed at a bounded cost each. A topic has users on
several stores: it is listed at the first one that has it, with the sum of all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import redis.asyncio as redis

from engine.errors import Invalid
from engine.store.keys import SUBSCRIBERS_PREFIX
from engine.store.storage_calls import StorageCalls

_CURSOR: Final = re.compile(r"([0-9]{1,2})-([0-9]{1,20})")


class TopicSubscribers:
    """The topics of all tenants.

    Args:
        clients: of all stores, in their order.
    """

    def __init__(self, *clients: redis.Redis) -> None:
        self._clients = clients

    async def page(self, tenant: str, after: str, count: int) -> tuple[dict[str, int], str, int]:
        """Some topics with their subscribers, in no order; what to give as `after` for the next ones, "" at the end; and about how many.

        A page has about `count` topics, or none, and others follow: only an empty `after` is the end. A topic that is there all the while
        is in at least one page.

        Raises:
            Invalid: `after` is none that was returned.
            StorageUnavailable.
        """
        store, cursor = self._position(after)
        key = SUBSCRIBERS_PREFIX + tenant
        with StorageCalls("topics of a tenant"):
            total = max([int(await client.hlen(key)) for client in self._clients])
            found: Any
            cursor, found = await self._clients[store].hscan(key, cursor, count=count)
            counts = {topic.decode(): int(users) for topic, users in found.items()}
            counts = await self._sums(key, store, counts)
        if cursor:
            return counts, f"{store}-{cursor}", total
        return counts, f"{store + 1}-0" if store + 1 < len(self._clients) else "", total

    def _position(self, after: str) -> tuple[int, int]:
        parts = _CURSOR.fullmatch(after or "0-0")
        if parts is None or int(parts[1]) >= len(self._clients) or int(parts[2]) >= 1 << 64:
            raise Invalid("what the page before answered as `after`", "after")
        return int(parts[1]), int(parts[2])

    async def _sums(self, key: str, store: int, counts: dict[str, int]) -> dict[str, int]:
        """These counts with those of the other stores; without the topics that a store before has."""
        topics: Sequence[str] = list(counts)
        for place, client in enumerate(self._clients):
            if place == store or not topics:
                continue
            others: Any = await client.hmget(key, topics)
            for topic, users in zip(topics, others, strict=True):
                if users is not None and place < store:
                    del counts[topic]
                elif users is not None:
                    counts[topic] += int(users)
            topics = list(counts)
        return counts
