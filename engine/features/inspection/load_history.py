"""The load of the last hour: points that the controller appends, in a stream of bounded length, for the charts of the admin page.

The controller is the only writer, since it alone has the figures of all actors. They are in storage, so that they outlive it and every
edge can read them. A point that cannot be stored is lost, and nothing waits for it.
"""

from __future__ import annotations

from typing import Any

import msgspec
import redis.asyncio as redis

from engine.features.inspection.core import LoadPoint
from engine.features.inspection.keys import LOAD_HISTORY_KEY
from engine.store.storage_calls import StorageCalls

_FIELD = b"p"


class LoadHistory:
    """The points in storage.

    Args:
        client: of the first store.
        points_max: kept; the oldest go.
    """

    def __init__(self, client: redis.Redis, points_max: int) -> None:
        self._client = client
        self._points_max = points_max

    async def add(self, point: LoadPoint) -> None:
        """Append a point. Raises StorageUnavailable."""
        with StorageCalls("load of the last hour"):
            await self._client.xadd(LOAD_HISTORY_KEY, {_FIELD: msgspec.json.encode(point)}, maxlen=self._points_max)

    async def read(self) -> list[bytes]:
        """All points as JSON objects, the oldest first. Raises StorageUnavailable."""
        with StorageCalls("load of the last hour"):
            entries: Any = await self._client.xrevrange(LOAD_HISTORY_KEY, count=self._points_max)
        return [fields[_FIELD] for _, fields in reversed(entries)]
