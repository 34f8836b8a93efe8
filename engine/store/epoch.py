"""Fencing epochs: every incarnation of a writer has its own, larger than those of all earlier ones."""

from __future__ import annotations

import redis.asyncio as redis

from engine.store.keys import CONTROLLER_FIELD, epoch_key, meta_key
from engine.store.lua import Script

_TAKE = Script("epoch_take")


async def take_epoch(client: redis.Redis) -> int:
    """Issue an epoch above every earlier one, also when the server has lost its counter since (it follows the clock as well).

    Raises StorageUnavailable.
    """
    _, epoch = await _TAKE.run(client, [epoch_key()], [])
    return int(epoch)


async def take_control(client: redis.Redis) -> int:
    """Make the caller the one controller that may replace actors; returns its epoch. Raises StorageUnavailable or RedisError."""
    epoch = await take_epoch(client)
    await client.hset(meta_key(), CONTROLLER_FIELD, epoch)
    return epoch


async def controller_epoch(client: redis.Redis) -> int:
    """The epoch of the controller that took control last, 0 when storage has none. Raises RedisError or OSError."""
    return int(await client.hget(meta_key(), CONTROLLER_FIELD) or 0)
