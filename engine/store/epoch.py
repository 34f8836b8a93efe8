"""Fencing epochs: numbers that no two incarnations of anything share."""

from __future__ import annotations

import redis.asyncio as redis

from engine.store.keys import epoch_key
from engine.store.lua import Script

_TAKE = Script("epoch_take")


async def take_epoch(client: redis.Redis) -> int:
    """An epoch above every one given out before, also by a server that has lost the counter since. Raises StorageUnavailable."""
    _, epoch = await _TAKE.run(client, [epoch_key()], [])
    return int(epoch)
