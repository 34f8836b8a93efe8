"""The slot map in Redis: which shard owns which slot, and so which users, and how many shards and schedulers there are.

It is written when the data is first used, and changed by compare-and-set (`swap_slot_map`): by the controller, which adds and removes
shards and schedulers, and by a shard that hands slots over. Each store has the map of its own slots (`engine.core.model.routing`),
beside their epochs and journals: so a hand-over is one step in one store, and a fail-over that loses a map has lost the writes of its new
owners too, who detect it.

It is behind a version byte and a checksum (`engine.core.model.sealed`). Versions before the first release wrote none, or 1, and gave keys
other names; nobody reads their data. A damaged map refuses the start: slots that follow a wrong one would be served under the wrong epochs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import redis.asyncio as redis

from engine.core.model.constants import FORMAT_VERSION
from engine.core.model.formats import FIRST, FORMATS
from engine.core.model.routing import SLOTS, RoutingTable, SlotMap, spread
from engine.core.model.sealed import sealed, unsealed
from engine.core.wire.records import UNREADABLE
from engine.errors import ConfigError, FormatsTooNew, StorageUnavailable
from engine.store.keys import SLOTS_KEY, handed_events_key, slot_epoch_key
from engine.store.lua import Script
from engine.store.storage_calls import StorageCalls

log = logging.getLogger(__name__)

_SWAP = Script("slot_map_swap")
_HAND_OVER = Script("fenced/slots_hand_over")

_UNRELEASED: Final = (
    "the data in Redis are of a version before the first release, which no release reads; they are as they were. "
    "Give another --data-dir or --redis, or go on with the version that wrote them"
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SlotMap)


def encode_slot_map(slot_map: SlotMap) -> bytes:
    """A slot map as storage keeps it."""
    return sealed(_encoder.encode(slot_map))


def decode_slot_map(packed: bytes) -> SlotMap:
    """A stored slot map.

    Raises:
        ConfigError: no release wrote these data, or the map is damaged.
    """
    if not packed.startswith(FORMAT_VERSION):
        raise ConfigError(_UNRELEASED)
    try:
        slot_map = _decoder.decode(unsealed(packed))
    except UNREADABLE as error:
        raise ConfigError(
            f"the slot map in Redis ({SLOTS_KEY}) is damaged: {error}. Restore a snapshot (`engine restore latest`), or a backup of Redis"
        ) from error
    if len(slot_map.owners) != SLOTS:
        raise ConfigError(_UNRELEASED)
    return slot_map


async def read_slot_map(client: redis.Redis) -> SlotMap | None:
    """The slot map; None when no engine has used this Redis.

    Raises:
        ConfigError: no release wrote these data.
        StorageUnavailable: no reply.
    """
    packed = await _read(client)
    return decode_slot_map(packed) if packed else None


async def _read(client: redis.Redis) -> bytes:
    with StorageCalls("slot map"):
        packed: Any = await client.get(SLOTS_KEY)
    return packed or b""


async def require_slot_map(client: redis.Redis) -> SlotMap:
    """The slot map of an engine that is starting or running.

    Raises:
        FormatsTooNew: this process must not serve the data.
        StorageUnavailable: also when there is none yet.
    """
    slot_map = await read_slot_map(client)
    if slot_map is None:
        raise StorageUnavailable("the slot map is not written yet")
    if slot_map.formats > FORMATS:
        raise FormatsTooNew(_too_new(slot_map))
    return slot_map


def _too_new(slot_map: SlotMap) -> str:
    return (
        f"the data are written in formats {slot_map.formats} since the last upgrade, and this version of the engine reads {FORMATS}: "
        "install the version that wrote them, or a newer one, on this node"
    )


async def swap_slot_map(client: redis.Redis, slot_map: SlotMap) -> bool:
    """Store this map if the stored one is the version before it; returns whether it is stored now. Idempotent.

    Raises StorageUnavailable: it may have been stored. Repeat it until there is an answer.
    """
    before, after = await _read(client), encode_slot_map(slot_map)
    return _follows(before, slot_map) and bool((await _SWAP.run(client, [SLOTS_KEY], [before, after]))[1])


def _follows(before: bytes, slot_map: SlotMap) -> bool:
    """Whether the stored map is the version before this one, or this one."""
    version = decode_slot_map(before).version if before else 0
    return version == slot_map.version - 1 or before == encode_slot_map(slot_map)


async def hand_over_slots(client: redis.Redis, epochs: Mapping[int, int], slot_map: SlotMap, to: int, events: bytes = b"") -> bool:
    """As `swap_slot_map`, by the shard that hands these slots over, under the epochs that it has of them.

    Args:
        to: the shard that gets them.
        events: what is stored with the map for that shard (`engine.store.external_streams.handed_events`).

    Raises:
        Fenced: this incarnation has been replaced; its successor owns the slots.
        DataLost: storage has lost an epoch.
        StorageUnavailable: it may have been stored.
    """
    before, after = await _read(client), encode_slot_map(slot_map)
    if before == after:
        return True  # by an attempt whose answer was lost: the slots may have their next epochs since
    first, *others = map(slot_epoch_key, epochs)
    epoch, *more = epochs.values()
    keys = [first, SLOTS_KEY, handed_events_key(to), *others]
    return _follows(before, slot_map) and bool(
        (await _HAND_OVER.run(client, keys, [epoch, before, after, slot_map.version, events, *more]))[1]
    )


async def read_routing_table(clients: Sequence[redis.Redis]) -> RoutingTable:
    """The slot maps of all stores, which are given in their order. Raises StorageUnavailable, also when there is one without a map."""
    return RoutingTable(await asyncio.gather(*map(require_slot_map, clients)))


async def assumed_routing_table(clients: Sequence[redis.Redis]) -> RoutingTable:
    """As `read_routing_table`, for an edge. For a store beside the first that does not answer, it is an even map of version 0.

    So the edge serves the users of the other stores. A shard that does not own a slot says so, and the edge waits for the stored map.
    """
    first, *others = await asyncio.gather(*map(require_slot_map, clients), return_exceptions=True)
    if isinstance(first, BaseException):
        raise first
    maps = [first]
    for store, found in enumerate(others, 1):
        if isinstance(found, StorageUnavailable):
            log.warning("store %d does not answer; an even slot map is assumed: %s", store, found)
            even = spread(first.shards, 0, first.schedulers, store, first.stores)
            maps.append(msgspec.structs.replace(even, formats=FIRST))
        elif isinstance(found, BaseException):
            raise found
        else:
            maps.append(found)
    return RoutingTable(maps)


async def claim_slot_map(client: redis.Redis, shards: int, schedulers: int, store: int = 0, stores: int = 1) -> SlotMap:
    """The stored slot map, or an even one for so many shards where there is none. Call it before any actor runs.

    The stored one keeps its number of shards, since its slots can only move while both ends serve. Schedulers keep nothing, so their number
    is the given one. Nobody runs an older version, so the formats are this one's.

    Args:
        store, stores: which of how many stores it is.

    Raises:
        ConfigError: it is another one, so that users would look for their messages where they are not; or a newer version wrote the data,
            or one before the first release.
        StorageUnavailable: no reply.
    """
    while True:
        found = await read_slot_map(client)
        if found is None:
            slot_map = spread(shards, 1, schedulers, store, stores)
        elif (found.store, found.stores) != (store, stores):
            raise ConfigError(
                f"redis_url: these data are store {found.store + 1} of {found.stores}, not {store + 1} of {stores}; their number is fixed: "
                f"redis+cluster://.../{found.stores}"
            )
        elif found.formats > FORMATS:
            raise ConfigError(_too_new(found))
        elif (found.schedulers, found.formats) != (schedulers, FORMATS):
            slot_map = msgspec.structs.replace(found, version=found.version + 1, schedulers=schedulers, formats=FORMATS)
        else:
            return found
        if await swap_slot_map(client, slot_map):
            return slot_map


async def restore_slot_map(client: redis.Redis, slot_map: SlotMap) -> None:
    """Store the slot map of a running engine again where storage has lost it, or has an older one. Raises StorageUnavailable."""
    while True:
        found = await _read(client)
        if found and decode_slot_map(found).version >= slot_map.version:
            return
        if (await _SWAP.run(client, [SLOTS_KEY], [found, encode_slot_map(slot_map)]))[1]:
            return
