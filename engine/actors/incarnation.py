"""Which process of an actor is the newest: an older one that runs on beside its successor finds out, and ends.

A shard finds out when a write is rejected, and looks beside each checkpoint, since it may have no slots; a scheduler, whose partitions may
also be another scheduler's by now, looks when a write is rejected. An edge writes nothing that is fenced, and may run beside its successor
for as long as Ray does not reach its host, or where nothing reaps the processes of a node that Ray has given up: it looks periodically.

States; each process owns its own, storage has the epoch of the name
    starting   takes an epoch, above all earlier ones, and claims the name with it. A late copy of an older claim has no effect
    newest     storage has its epoch, or an older one since it lost the claim: then it is claimed again
    replaced   storage has a newer one: the process ends

While storage is away nothing is known, and the process goes on: it may be the only one that its clients reach. Until the older one has
found out, both serve: their link sessions and connections have names of their own.

An old process that hung before it took its epoch may get one above its successor's. Then the successor ends, Ray starts the next one, and
that one replaces the old process.
"""

from __future__ import annotations

import asyncio
import logging

import redis.asyncio as redis

from engine.core.model.period import until_next
from engine.errors import Fenced, StorageUnavailable
from engine.store.epoch import claim_end, claim_name, take_epoch

log = logging.getLogger(__name__)


class Incarnation:
    """This process among those of the actor `name`."""

    def __init__(self, name: str, client: redis.Redis) -> None:
        self._name = name
        self._client = client
        self._epoch = 0

    async def begin(self) -> None:
        """Become the newest. Raises StorageUnavailable."""
        self._epoch = await take_epoch(self._client)
        await claim_name(self._client, self._name, self._epoch)

    async def confirm(self) -> None:
        """Returns when there is no newer process.

        Raises:
            Fenced: there is one.
            StorageUnavailable: nothing is known.
        """
        newest = await claim_name(self._client, self._name, self._epoch)
        if newest > self._epoch:
            raise Fenced(f"{self._name} has a newer process, with epoch {newest}")

    async def end(self) -> None:
        """Have the next process waited for: what ends this one would end another actor as well. Raises StorageUnavailable."""
        await claim_end(self._client, self._name, self._epoch)

    async def watch(self, period_ms: int) -> None:
        """Look every `period_ms`. Raises Fenced when there is a newer process; never returns."""
        while True:
            await asyncio.sleep(until_next(asyncio.get_running_loop().time(), period_ms / 1000))
            try:
                await self.confirm()
            except StorageUnavailable as error:
                log.info("%s does not know whether it is the newest: %s", self._name, error)
