"""Sums of counter signals in Redis: one hash per tenant, to which edges add batches, each once.

A writer numbers its batches (`engine.core.edge.counter_merge`). The script stores the last number it applied per writer for a day,
longer than any batch is retried. An edge that restarts is another writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import redis.asyncio as redis
from redis.exceptions import RedisError

from engine.core.edge.counter_merge import CounterBatch
from engine.core.model.routing import split_key
from engine.errors import StorageUnavailable
from engine.store.keys import signals_key, signals_writer_key
from engine.store.lua import Script

_ADD = Script("signals_add")
_REMEMBER_S: Final = 86_400


class CounterSums:
    """The sums of all tenants."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    async def add(self, writer: str, batch: CounterBatch) -> None:
        """Add a batch, whose names are `tenant:name`. A batch with the number of an earlier one of the writer changes nothing.

        Raises:
            StorageUnavailable: no reply; it may have been added: repeat it.
        """
        places: dict[str, int] = {}
        args: list[Any] = [batch.number, _REMEMBER_S]
        for key, amount in batch.sums.items():
            tenant, name = split_key(key)
            args += [places.setdefault(tenant, len(places) + 1), name, amount]
        await _ADD.run(self._client, [signals_writer_key(writer), *map(signals_key, places)], args)

    async def read(self, tenant: str, names: Sequence[str]) -> list[int]:
        """The sums of these signals, 0 for one that was never counted. Raises StorageUnavailable."""
        try:
            found: Any = await self._client.hmget(signals_key(tenant), list(names))
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"signals: {error}") from error
        return [int(value or 0) for value in found]
