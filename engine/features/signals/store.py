"""Sums of counter signals in Redis: one hash per tenant, to which edges add batches, each once.

A writer numbers its batches (`engine.features.signals.core`). The script stores the last number it applied per writer for a day,
longer than any batch is retried. An edge that restarts is another writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import redis.asyncio as redis

from engine.core.model.routing import split_key
from engine.features.signals.core import CounterBatch
from engine.features.signals.keys import signals_key, signals_writer_key
from engine.store.keys import tenants_key
from engine.store.lua import Script
from engine.store.storage_calls import StorageCalls

_ADD = Script.beside(__file__, "signals_add")
_REMEMBER_S: Final = 86_400


class CounterSums:
    """The sums of all tenants.

    Args:
        names_max: names of one tenant; 0 for any number.
    """

    def __init__(self, client: redis.Redis, names_max: int = 0) -> None:
        self._client = client
        self._names_max = names_max

    async def add(self, writer: str, batch: CounterBatch) -> int:
        """Add a batch. A batch with the number of an earlier one of the writer changes nothing.

        Returns how many sums were dropped, because their name would be one too many.

        Raises:
            StorageUnavailable: no reply; it may have been added: repeat it.
        """
        places: dict[str, int] = {}
        sums: list[Any] = []
        for key, amount in batch.sums.items():
            tenant, name = split_key(key)
            sums += [places.setdefault(tenant, len(places) + 1), name, amount]
        keys = [signals_writer_key(writer), tenants_key("signal_names"), *map(signals_key, places)]
        status, *dropped = await _ADD.run(self._client, keys, [batch.number, _REMEMBER_S, self._names_max, *places, *sums])
        return int(dropped[0]) if status == b"OK" else 0

    async def known(self, tenant: str, names: Sequence[str]) -> set[str]:
        """Those of these names that have a sum. Raises StorageUnavailable."""
        return {name for name, value in zip(names, await self._values(tenant, names), strict=True) if value is not None}

    async def read(self, tenant: str, names: Sequence[str]) -> list[int]:
        """The sums of these signals, 0 for one that was never counted. Raises StorageUnavailable."""
        return [int(value or 0) for value in await self._values(tenant, names)]

    async def _values(self, tenant: str, names: Sequence[str]) -> list[Any]:
        with StorageCalls("signals"):
            found: Any = await self._client.hmget(signals_key(tenant), list(names))
        return list(found)
