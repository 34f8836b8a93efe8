"""Fencing epochs: every incarnation of a writer has its own, larger than those of all earlier ones."""

from __future__ import annotations

import redis.asyncio as redis

from engine.store.keys import epoch_key
from engine.store.lua import Script

_TAKE = Script("epoch_take")


async def take_epoch(client: redis.Redis) -> int:
    """Issue an epoch above every earlier one, also when the server has lost its counter since (it follows the clock as well).

    Raises StorageUnavailable.
    """
    _, epoch = await _TAKE.run(client, [epoch_key()], [])
    return int(epoch)
