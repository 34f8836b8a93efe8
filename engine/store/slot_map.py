"""The slot map in Redis: which shard owns which slot, and so which users, and how many shards and schedulers there are.

It is written when the data is first used, and changed by compare-and-set (`swap_slot_map`): by the controller, which adds and removes
shards and schedulers, and by a shard that hands slots over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import redis.asyncio as redis
from redis.exceptions import RedisError

from engine.core.model.routing import SlotMap, spread
from engine.errors import StorageUnavailable
from engine.store.keys import shard_epoch_key, slots_key
from engine.store.lua import Script

_SWAP = Script("slot_map_swap")
_HAND_OVER = Script("fenced/slots_hand_over")

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SlotMap)


async def read_slot_map(client: redis.Redis) -> SlotMap | None:
    """The slot map; None when no engine has used this Redis. Raises StorageUnavailable."""
    packed = await _read(client)
    return _decoder.decode(packed) if packed else None


async def _read(client: redis.Redis) -> bytes:
    try:
        packed: Any = await client.get(slots_key())
    except (RedisError, OSError) as error:
        raise StorageUnavailable(f"slot map: {error}") from error
    return packed or b""


async def require_slot_map(client: redis.Redis) -> SlotMap:
    """The slot map of an engine that is starting or running. Raises StorageUnavailable, also when there is none yet."""
    slot_map = await read_slot_map(client)
    if slot_map is None:
        raise StorageUnavailable("the slot map is not written yet")
    return slot_map


async def swap_slot_map(client: redis.Redis, slot_map: SlotMap) -> bool:
    """Store this map if the stored one is the version before it; returns whether it is stored now. Idempotent.

    Raises StorageUnavailable: it may have been stored. Repeat it until there is an answer.
    """
    return await _follow(client, slot_map, _SWAP)


async def _follow(client: redis.Redis, slot_map: SlotMap, script: Script, keys: Sequence[str] = (), args: Sequence[int] = ()) -> bool:
    """Store a map in the place of the version before it, by a script that takes these first."""
    before, after = await _read(client), _encoder.encode(slot_map)
    version = _decoder.decode(before).version if before else 0
    if before != after and version != slot_map.version - 1:
        return False
    reply = await script.run(client, [*keys, slots_key()], [*args, before, after])
    return bool(reply[1])


async def hand_over_slots(client: redis.Redis, shard: int, epoch: int, slot_map: SlotMap) -> bool:
    """As `swap_slot_map`, by the shard that hands slots over under this epoch.

    Raises:
        Fenced: this incarnation has been replaced; its successor owns the slots.
        DataLost: storage has lost the epoch.
        StorageUnavailable: it may have been stored.
    """
    return await _follow(client, slot_map, _HAND_OVER, [shard_epoch_key(shard)], [epoch])


async def claim_slot_map(client: redis.Redis, shards: int, schedulers: int) -> SlotMap:
    """The stored slot map, or an even one for so many shards where there is none. Call it before any actor runs.

    The stored one keeps its number of shards, since its slots can only move while both ends serve. Schedulers keep nothing, so their number
    is the given one.

    Raises StorageUnavailable.
    """
    while True:
        found = await read_slot_map(client)
        if found is None:
            slot_map = spread(shards, 1, schedulers)
        elif found.schedulers != schedulers:
            slot_map = msgspec.structs.replace(found, version=found.version + 1, schedulers=schedulers)
        else:
            return found
        if await swap_slot_map(client, slot_map):
            return slot_map


async def restore_slot_map(client: redis.Redis, slot_map: SlotMap) -> None:
    """Store the slot map of a running engine again where storage has lost it, or has an older one. Raises StorageUnavailable."""
    while True:
        found = await _read(client)
        if found and _decoder.decode(found).version >= slot_map.version:
            return
        if (await _SWAP.run(client, [slots_key()], [found, _encoder.encode(slot_map)]))[1]:
            return
