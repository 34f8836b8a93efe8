"""When events without an id arrived first, so that one that is sent again is the same event: in Redis, a key for each, for ten minutes.

    edge   `first` before the event has any effect; the time it gets is part of the event's id, so a repeat leads to the same ids

An edge that dies behind `first` leaves a key and nothing else: the repeat goes on under the same id. What storage loses of these keys,
as of all writes it had not made durable, makes a repeat another event.

Events that have cancelled have a key too, so that a repeat does not cancel what a later event has armed:

    edge   `known` before the event cancels, `first` when all is cancelled

An edge that dies between the two leaves no key: the repeat cancels again.
"""

from __future__ import annotations

from typing import Final

import redis.asyncio as redis

from engine.config import Config
from engine.features.rules.keys import event_arrival_key
from engine.store.lua import Replicas, Script
from engine.store.storage_calls import StorageCalls

SAME_EVENT_MS: Final = 600_000
"""Longer than publishers repeat a request, shorter than people take to do the same thing again in earnest. About 130 bytes each."""

_FIRST = Script.beside(__file__, "event_first")


class EventArrivals:
    """The arrivals, for edges."""

    def __init__(self, client: redis.Redis, config: Config) -> None:
        self._client = client
        self._replicas = Replicas.wanted(config)

    async def first(self, tenant: str, content: str, now_ms: int) -> int:
        """When this content, a hash, came first within the last ten minutes, ms since the epoch: now, if it did not.

        Raises:
            StorageUnavailable: no reply, or too few replicas have it.
        """
        reply = await _FIRST.run(self._client, [event_arrival_key(tenant, content)], [now_ms, SAME_EVENT_MS], self._replicas)
        return int(reply[1])

    async def known(self, tenant: str, content: str) -> bool:
        """Whether this content came within the last ten minutes. Raises StorageUnavailable."""
        with StorageCalls("arrivals of events"):
            return bool(await self._client.exists(event_arrival_key(tenant, content)))
