"""Detects that storage has lost writes it had confirmed to a shard.

A fail-over to a lagging replica, a truncated append-only file and a restored backup all leave a Redis that works and lacks the most
recent writes. What it has is a prefix of the writes, because replication and the append-only file keep their order. So it suffices to
compare the last writes of each slot: the head of its journal (every group) and its mark (every checkpoint).

    append      its script rejects a head that is not the one the shard left
    read        of pages and streams gets the marks of their slots on the same connection, so from the same server
    checkpoint  is rejected by slot where the slot lacks the previous one (`engine.store.pages`), or this one when the journal is to be
                trimmed
    idle        a periodic `check`, because a shard without writes would not notice

    head   `<epoch>-<group>`, with a `u` when that group was rolled back
    mark   `<epoch>-<write>`

Confirmed values only grow: a write whose reply was lost may have been applied, so a higher value than expected is no loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import redis.asyncio as redis
from msgspec import Struct

from engine.errors import DataLost, Fenced
from engine.store.keys import EPOCH_FIELD, META_KEY, journal_head_key, slot_epoch_key, slot_mark_key
from engine.store.storage_calls import StorageCalls


class SlotWrites(Struct):
    """The last writes of one slot that storage has confirmed.

    Attributes:
        epoch: under which the shard owns the slot.
        head: of the journal.
        mark: number of the last write of pages.
    """

    epoch: int
    head: str
    mark: int = 0


class LossDetector:
    """What storage has confirmed to one incarnation of a shard.

    Attributes:
        slots: the slots that the shard may write, each until it hands the slot over.
    """

    def __init__(self, slots: dict[int, SlotWrites] | None = None) -> None:
        self.slots = slots or {}

    def opened(self, slots: Iterable[int], epoch: int) -> None:
        """Begin a new epoch of these slots, without writes."""
        self.slots.update((slot, SlotWrites(epoch, f"{epoch}-0")) for slot in slots)

    def closed(self, slots: Iterable[int]) -> None:
        """These slots are to be another shard's: what is found there says nothing any more, also of reads under way."""
        for slot in slots:
            self.slots.pop(slot, None)

    def guard(self, pipeline: Any, slots: Iterable[int]) -> Callable[[Sequence[bytes | None]], None]:
        """Append a read of these slots' marks to a pipeline of reads; returns the function that checks its reply.

        The function raises DataLost when the server lacks a checkpoint, Fenced when a newer incarnation wrote one.
        """
        read = list(slots)
        expected = [(slot, held, held.mark) for slot in read if (held := self.slots.get(slot)) is not None]
        pipeline.mget(map(slot_mark_key, read))

        def check(reply: Sequence[bytes | None]) -> None:
            marks = dict(zip(read, reply, strict=True))
            for slot, held, at_least in expected:
                if self.slots.get(slot) is held:
                    _check_mark(held, marks[slot], at_least)

        return check

    async def check(self, client: redis.Redis) -> str:
        """Check that storage has every confirmed write. Returns the data epoch, which another shard may have replaced.

        Raises:
            Fenced: this incarnation has been replaced.
            DataLost: a write is missing.
            StorageUnavailable: no reply.
        """
        expected = [(slot, held, held.head, held.mark) for slot, held in self.slots.items()]
        with StorageCalls("check of the last writes"):
            pipeline = client.pipeline(transaction=False)
            pipeline.hget(META_KEY, EPOCH_FIELD)
            for slot, *_ in expected:
                pipeline.mget(slot_epoch_key(slot), journal_head_key(slot), slot_mark_key(slot))
            data_epoch, *found = await pipeline.execute()
        for (slot, held, head, mark), (epoch, found_head, found_mark) in zip(expected, found, strict=True):
            if self.slots.get(slot) is held:
                _check_epoch(held, int(epoch or 0))
                _check_head(held, found_head, head)
                _check_mark(held, found_mark, mark)
        if data_epoch is None:
            raise DataLost("storage has lost the data epoch")
        return str(data_epoch.decode())


def _check_epoch(held: SlotWrites, found: int) -> None:
    if found > held.epoch:
        raise Fenced(f"epoch {found} owns the keys now")
    if found < held.epoch:
        raise DataLost(f"storage has lost the epoch {held.epoch}, it is {found}")


def _check_head(held: SlotWrites, reply: bytes | None, expected: str) -> None:
    found = (reply or b"").decode()
    if found != expected and _number(held, found.removesuffix("u")) <= _number(held, expected.removesuffix("u")):
        raise DataLost(f"storage has lost the group {expected}, the last is {found or 'not there'}")


def _check_mark(held: SlotWrites, reply: bytes | None, at_least: int) -> None:
    found = (reply or b"").decode()
    if _number(held, found) < at_least:
        raise DataLost(f"storage has lost the checkpoint {at_least}, the last is {found or 'not there'}")


def _number(held: SlotWrites, text: str) -> int:
    """The number in `<epoch>-<number>`; -1 when the epoch is an older one, or the text empty.

    Raises Fenced when the epoch is a newer one: no write of this incarnation is lost.
    """
    epoch, _, number = text.partition("-")
    if epoch and int(epoch) > held.epoch:
        raise Fenced(f"epoch {epoch} owns the keys now")
    return int(number) if epoch == str(held.epoch) else -1
