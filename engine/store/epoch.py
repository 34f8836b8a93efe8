"""Fencing epochs: every incarnation of a writer has its own, larger than those of all earlier ones."""

from __future__ import annotations

import redis.asyncio as redis

from engine.store.keys import CONTROLLER_FIELD, EPOCH_KEY, META_KEY
from engine.store.lua import Script
from engine.store.storage_calls import StorageCalls

_TAKE = Script("epoch_take")
_CLAIM = Script("epoch_claim")


async def take_epoch(client: redis.Redis) -> int:
    """Issue an epoch above every earlier one, also when the server has lost its counter since (it follows the clock as well).

    Raises StorageUnavailable.
    """
    _, epoch = await _TAKE.run(client, [EPOCH_KEY], [])
    return int(epoch)


async def claim_name(client: redis.Redis, name: str, epoch: int) -> int:
    """Make this the epoch of the newest process of `name`, unless there is a newer one; returns the newest. Raises StorageUnavailable."""
    _, newest = await _CLAIM.run(client, [META_KEY], [name, epoch])
    return int(newest)


async def claim_end(client: redis.Redis, name: str, epoch: int) -> None:
    """Store that this process of `name` ends itself, and that its next one is to be waited for. Raises StorageUnavailable."""
    await _CLAIM.run(client, [META_KEY], [_end_of(name), epoch])


async def has_ended(client: redis.Redis, name: str) -> bool:
    """Whether the newest process of `name` has said that it ends itself. Raises StorageUnavailable."""
    with StorageCalls(f"the end of {name}"):
        newest, ended = await client.hmget(META_KEY, [name, _end_of(name)])
    return newest is not None and newest == ended


def _end_of(name: str) -> str:
    return f"{name} ended"


async def take_control(client: redis.Redis) -> int:
    """Make the caller the one controller that may replace actors; returns its epoch. Raises StorageUnavailable."""
    epoch = await take_epoch(client)
    await claim_name(client, CONTROLLER_FIELD, epoch)
    return epoch


async def controller_epoch(client: redis.Redis) -> int:
    """The epoch of the controller that took control last, 0 when storage has none. Raises RedisError or OSError."""
    return int(await client.hget(META_KEY, CONTROLLER_FIELD) or 0)
