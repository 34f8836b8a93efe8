"""The slot map in Redis: which shard owns which slot, and so which users.

It is written when the data is first used. Starting with another number of shards redistributes the slots. That is only safe while
every journal is empty, because a journal belongs to a shard, whereas pages and offline streams belong to a slot.
"""

from __future__ import annotations

from typing import Any

import msgspec
import redis.asyncio as redis
from redis.exceptions import RedisError

from engine.core.model.routing import SlotMap, spread
from engine.errors import ConfigError, StorageUnavailable
from engine.store.keys import journal_key, slots_key

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SlotMap)


async def read_slot_map(client: redis.Redis) -> SlotMap | None:
    """The slot map; None when no engine has used this Redis. Raises StorageUnavailable."""
    try:
        packed: Any = await client.get(slots_key())
    except (RedisError, OSError) as error:
        raise StorageUnavailable(f"slot map: {error}") from error
    return None if packed is None else _decoder.decode(packed)


async def require_slot_map(client: redis.Redis) -> SlotMap:
    """The slot map of an engine that is starting or running. Raises StorageUnavailable, also when there is none yet."""
    slot_map = await read_slot_map(client)
    if slot_map is None:
        raise StorageUnavailable("the slot map is not written yet")
    return slot_map


async def claim_slot_map(client: redis.Redis, shards: int) -> SlotMap:
    """The slot map for `shards` shards: the stored one when it has that many, else a new, even one. Call it before any shard runs.

    Raises:
        ConfigError: the number differs from the last run's, and that run's journals still hold messages.
        StorageUnavailable: no reply.
    """
    found = await read_slot_map(client)
    before = found.shards if found else shards
    if found and before == shards:
        return found
    try:
        if found:
            left = [shard for shard in range(before) if await client.xlen(journal_key(shard))]
            if left:
                raise ConfigError(
                    f"shards: the data is that of {before} shards that did not stop in good order; "
                    f"start once with --shards {before}, stop with Ctrl-C or `engine down`, then start with --shards {shards}"
                )
        slot_map = spread(shards, found.version + 1 if found else 1)
        packed = _encoder.encode(slot_map)
        if found:
            await client.set(slots_key(), packed)
            return slot_map
        if await client.set(slots_key(), packed, nx=True):
            return slot_map
    except (RedisError, OSError) as error:
        raise StorageUnavailable(f"slot map: {error}") from error
    return await claim_slot_map(client, shards)  # another controller stored one first


async def restore_slot_map(client: redis.Redis, slot_map: SlotMap) -> None:
    """Store the slot map of a running engine again, unless there is one. Raises StorageUnavailable."""
    try:
        await client.set(slots_key(), _encoder.encode(slot_map), nx=True)
    except (RedisError, OSError) as error:
        raise StorageUnavailable(f"slot map: {error}") from error
