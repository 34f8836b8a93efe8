"""Routing: the shard that owns a user, and the partition that holds a timer.

slot = CRC-32 of the mailbox key, modulo 32. A slot is the unit that a shard owns: with its users go their journal, their pages, their
streams, and the epoch that fences all of them. The number of slots and the hash are fixed for the life of the data: the slot is part of
Redis keys. Which shard has a slot, and how many shards and schedulers there are, changes while the engine runs: the `SlotMap` is versioned
and stored in Redis.

Data in several stores are spread by index: slot i, timer partition i, shard i and scheduler i use store i modulo the number of
stores. So a shard serves slots of one store only, a slot moves between shards of its store only, and a user's slot and timer partition
are in the same one. No write ever touches two stores. Each is a whole by itself, with a slot map, fencing epochs and a data epoch of its
own: what one of them loses is detected and repaired by its own shards, as with one store. Whoever needs to know where all users are puts
the maps together (`RoutingTable`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from zlib import crc32

import msgspec

from engine.core.model.formats import FIRST, FORMATS

SLOTS = 32
"""Slots of a cluster, and so shards at most. A group writes an entry to each slot that it has something of, so more slots cost more
(bench/NOTEBOOK.md); with fewer, shards differ more in load."""

CORES_PER_SHARD: Final = 4
"""Of a machine or cluster, for one shard where no number is given. A message under full load takes 30 us of a shard and 45 us of the edges
and Redis, so what keeps a shard busy needs two and a half cores, and clients and Ray the rest. More shards than that make every batch
smaller: on two cores a message costs 76 us with one shard and 117 us with two (`bench delivery --publishers 4`)."""

SHARDS_BY_CORES_MAX: Final = 8
"""For each Redis, which bounds the throughput of its shards; more of them only make its commits smaller."""

TIMER_PARTITIONS = 16
"""Partitions of durable timers; each belongs to one scheduler. More schedulers than this stay idle."""

_PARTITIONS = {str(partition): partition for partition in range(TIMER_PARTITIONS)}


def mailbox_key(tenant: str, user: str) -> str:
    """`tenant:user`. Tenants never contain a colon (validated on input), so the key is unambiguous."""
    return f"{tenant}:{user}"


def split_key(key: str) -> tuple[str, str]:
    """The tenant and user of a mailbox key."""
    tenant, _, user = key.partition(":")
    return tenant, user


def audience_key(tenant: str, topic: str) -> str:
    """The key used in place of a mailbox key for the subscribers of a topic, or for everyone (""). No valid user name has its newline."""
    return f"{tenant}:\n{topic}"


def topic_of(key: str) -> str | None:
    """The topic of an `audience_key`; None when it is a mailbox key."""
    user = split_key(key)[1]
    return user[1:] if user.startswith("\n") else None


def slot_of(key: str) -> int:
    """The slot (0..31) of a mailbox key; stable across processes, machines and versions."""
    return crc32(key.encode()) % SLOTS


def partition_of(key: str) -> int:
    """The timer partition (0..15) of a mailbox key: all timers of a user are in one partition."""
    return partition_of_slot(slot_of(key))


def partition_of_slot(slot: int) -> int:
    """The timer partition of all mailbox keys of a slot."""
    return slot % TIMER_PARTITIONS


def timer_id(key: str, unique: str) -> str:
    """A scheduled id for a timer of this mailbox: `<partition>-<unique>`. It contains its own route; `unique` must be unguessable."""
    return f"{partition_of(key)}-{unique}"


def partition_of_timer(sid: str) -> int | None:
    """The partition a scheduled id routes to; None when no timer can have this id."""
    number, _, unique = sid.partition("-")
    return _PARTITIONS.get(number) if unique else None


NOBODY: Final = -1
"""Owner of a slot that its shard is handing over, and of the slots of other stores."""


class SlotMap(msgspec.Struct, frozen=True):
    """Who owns what of one store; a higher `version` wins.

    Attributes:
        owners: the shard index of each slot.
        shards: how many shards there are; one that was just added, or is about to be removed, owns no slot.
        schedulers: how many schedulers share the timer partitions.
        store: which of the stores it is; the shards and schedulers of others are counted in both numbers.
        stores: how many stores the slots are spread over. Fixed for the life of the data.
        formats: the newest that may be written (`engine.core.model.formats`).
    """

    version: int
    owners: tuple[int, ...]
    shards: int
    schedulers: int = 1
    store: int = 0
    stores: int = 1
    formats: int = FIRST

    def with_owner(self, slots: Iterable[int], shard: int) -> SlotMap:
        """The next version, in which these slots belong to this shard."""
        owners = list(self.owners)
        for slot in slots:
            owners[slot] = shard
        return msgspec.structs.replace(self, version=self.version + 1, owners=tuple(owners))

    def owner(self, key: str) -> int:
        """The shard index that owns the mailbox key."""
        return self.owners[crc32(key.encode()) % SLOTS]

    def slots_of(self, shard: int) -> list[int]:
        return [slot for slot, owner in enumerate(self.owners) if owner == shard]

    def local(self, count: int) -> range:
        """Of so many shards or schedulers those that use this store."""
        return range(self.store, count, self.stores)

    def scheduler(self, partition: int) -> int:
        """The scheduler index that owns a timer partition of this store."""
        return scheduler_of(partition, self.schedulers, self.stores)


class RoutingTable:
    """Who owns what of all stores.

    Args:
        maps: the slot map of each store, in their order.

    Attributes:
        owners: the shard index of each slot.
        timer_owners: the scheduler index of each timer partition.
        shards, schedulers: how many there are by the map that has the most; the maps differ while the controller changes the number.
        formats: the newest that may be written by every map.
    """

    __slots__ = ("formats", "maps", "owners", "schedulers", "shards", "timer_owners")

    def __init__(self, maps: Sequence[SlotMap]) -> None:
        self.maps = tuple(maps)
        stores = len(maps)
        self.owners = maps[0].owners if stores == 1 else tuple(maps[slot % stores].owners[slot] for slot in range(SLOTS))
        self.timer_owners = tuple(maps[store_of(partition, stores)].scheduler(partition) for partition in range(TIMER_PARTITIONS))
        self.shards = max(slot_map.shards for slot_map in maps)
        self.schedulers = max(slot_map.schedulers for slot_map in maps)
        self.formats = min(slot_map.formats for slot_map in maps)

    def with_map(self, slot_map: SlotMap) -> RoutingTable:
        """The table with this map in the place of the one of its store."""
        return RoutingTable([slot_map if at == slot_map.store else other for at, other in enumerate(self.maps)])

    def owner(self, key: str) -> int:
        """The shard index that owns the mailbox key."""
        return self.owners[crc32(key.encode()) % SLOTS]

    def scheduler(self, partition: int) -> int:
        """The scheduler index that owns a timer partition."""
        return self.timer_owners[partition]

    def version(self, index: int) -> int:
        """Version of the map that the shard or scheduler of this index goes by."""
        return self.maps[store_of(index, len(self.maps))].version


def spread(shards: int, version: int = 1, schedulers: int = 1, store: int = 0, stores: int = 1) -> SlotMap:
    """An even map of new data over `shards` shards: with one store slot i belongs to shard i mod `shards`.

    Raises ValueError when the store has no shard.
    """
    local = range(store, shards, stores)
    if not local:
        raise ValueError("a slot map needs at least one shard")
    owners = (local[slot // stores % len(local)] if store_of(slot, stores) == store else NOBODY for slot in range(SLOTS))
    return SlotMap(version, tuple(owners), shards, schedulers, store, stores, FORMATS)


def store_of(index: int, stores: int) -> int:
    """The store of the slot, the timer partition, the shard or the scheduler of this index."""
    return index % stores


def shards_for(cores: float, room: float, stores: int = 1) -> int:
    """How many shards new data gets when no number is given: by the cores there are, no more than there is room for, as many per store."""
    wanted = int(min(cores // CORES_PER_SHARD, room, SHARDS_BY_CORES_MAX * stores))
    return max(wanted // stores, 1) * stores


def scheduler_of(partition: int, schedulers: int, stores: int = 1) -> int:
    """The scheduler index that owns a timer partition: the schedulers of its store take turns."""
    store = store_of(partition, stores)
    return partition // stores % len(range(store, schedulers, stores)) * stores + store


def partitions_of(scheduler: int, schedulers: int, stores: int = 1) -> Sequence[int]:
    """All timer partitions of one scheduler; none when there are only so many schedulers before it."""
    local = len(range(store_of(scheduler, stores), schedulers, stores))
    return range(scheduler, TIMER_PARTITIONS, local * stores) if scheduler < schedulers else range(0)
