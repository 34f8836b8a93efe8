"""The journals of a shard's slots: Redis streams, of each group commit an entry in each slot that it has something of.

A group is appended by one script, so all its entries are there or none. A slot's journal goes with the slot: whoever owns it next reads
it, and nobody has to leave anything out.

Entry ids are `<epoch>-<group number>`: they grow across owners, and an append that is repeated because its reply was lost is recognised. An
entry names the one before it, unless that is the number before: so a reader notices an entry that storage has lost in the middle
(`is_next`). `engine.core.commit.group` defines the content of an entry, `engine.store.loss_detector` how a lost entry is detected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import redis.asyncio as redis

from engine.core.commit.group import Group
from engine.core.model.routing import SLOTS
from engine.core.shard.fired_timers import Awaited, FiredTimers
from engine.errors import StorageUnavailable
from engine.store.accepted_ids import KEYS, LIBRARY, AcceptedIds, known_of, words_of
from engine.store.epoch import take_epoch
from engine.store.keys import journal_head_key, journal_key, journal_quarantine_key, slot_epoch_key, slot_mark_key
from engine.store.loss_detector import LossDetector
from engine.store.lua import NO_REPLICAS, Replicas, Script
from engine.store.storage_calls import StorageCalls

RECORD_ORIGIN: Final = "record "
"""Origin of a quarantine entry of a record that ended its shard; the record's fingerprint follows."""

_APPEND = Script("journal/append", LIBRARY)
_ROLLBACK = Script("journal/rollback", LIBRARY)
_COVER = Script("fenced/journal_cover")
_OPEN = Script("journal_open")

_HEADS: Final = tuple(map(journal_head_key, range(SLOTS)))
_JOURNALS: Final = tuple(map(journal_key, range(SLOTS)))

_NOTHING: Final[Mapping[int, int]] = MappingProxyType({})

_READ_ENTRIES = 50
"""Journal entries per read at replay: at most some tens of megabytes."""

_QUARANTINE_READ = 1000


class Journal:
    """One incarnation's write access to the journals of its shard's slots. Call `take_over` first.

    Args:
        idempotency_ms: how long an id is stored, ms.
        replicas: how many replicas must have a group, a rollback or a checkpoint before the call returns.

    Attributes:
        epoch: the newest one that this incarnation has taken; 0 before.
        untrimmed: slots that are served, and whose journal has entries that no checkpoint covers, as far as is known.
        holes: ids of entries whose predecessor `entries` did not find.
    """

    def __init__(self, client: redis.Redis, shard: int, idempotency_ms: int, replicas: Replicas = NO_REPLICAS) -> None:
        self._client = client
        self._shard = shard
        self._idempotency_ms = idempotency_ms
        self._replicas = replicas
        self._ids = AcceptedIds(client, idempotency_ms)
        self._attempts: list[int] = []  # epochs of take-overs whose reply did not arrive
        self.epoch = 0
        self.loss_detector = LossDetector()
        self.untrimmed: set[int] = set()
        self.holes: list[bytes] = []

    async def check(self) -> str:
        """Check that the slots are this incarnation's, and have all that it wrote. Returns and raises as `LossDetector.check`."""
        return await self.loss_detector.check(self._client)

    async def take_over(self, slots: Collection[int]) -> int:
        """Take a new epoch and fence these slots: writes of older incarnations and owners are rejected from then on. Returns the epoch.

        Also waits until the required replicas have everything that others wrote. An incarnation that finds its writes lost may call
        it again for the slots it has, unless a newer one has taken over since.

        Raises:
            Fenced: another incarnation or shard took a newer epoch meanwhile.
            StorageUnavailable: Redis does not answer; retry.
        """
        epoch = await take_epoch(self._client)
        writes, attempts = self.loss_detector.slots, self._attempts.copy()
        self._attempts.append(epoch)
        runs = [
            (
                [slot_epoch_key(slot), journal_head_key(slot), slot_mark_key(slot)],
                [epoch, *([writes[slot].epoch, *attempts] if slot in writes else ())],
            )
            for slot in slots
        ]
        await _OPEN.run_many(self._client, runs, self._replicas)
        self._attempts.clear()
        self.epoch = epoch
        self.loss_detector.opened(slots, epoch)
        return epoch

    def serve(self, slots: Iterable[int]) -> None:
        """What the journals of these slots had is in memory: the next checkpoint has it."""
        self.untrimmed.update(slots)

    def leave(self, slots: Iterable[int]) -> None:
        """Nothing more is written to these slots: another shard may have them."""
        self.untrimmed.difference_update(slots)
        self.loss_detector.closed(slots)

    async def append(self, group: Group) -> Mapping[int, bytes]:
        """Make the group durable. Idempotent.

        Returns:
            Empty when the group is durable. Otherwise nothing was written, because ids of the group are stored already:
            {index into `group.ids`: stored value, packed}.

        Raises:
            Fenced: this incarnation has been replaced.
            DataLost: storage has lost an earlier group; nothing was written.
            StorageUnavailable: no reply; it may have been written: repeat it, or roll it back.
        """
        writes, payloads = self.loss_detector.slots, group.payloads
        heads = [writes[slot].head for slot in payloads]
        args = [group.number, self._idempotency_ms, len(payloads), *heads, *payloads.values(), *words_of(group.ids, group.values)]
        reply = await _APPEND.run(self._client, _keys(payloads), args, self._replicas)
        if reply[0] == b"KNOWN":
            return known_of(reply[1])
        for slot in payloads:
            held = writes[slot]
            held.head = f"{held.epoch}-{group.number}"
        self.untrimmed.update(payloads)
        return {}

    async def rollback(self, group: Group) -> None:
        """Remove the group from the journals, and keep a delayed copy of its append from applying. Idempotent. Raises like `append`."""
        held = [self.loss_detector.slots[slot] for slot in group.payloads]
        args = [group.number, self._idempotency_ms, len(held), *(writes.head for writes in held), *words_of(group.ids)]
        await _ROLLBACK.run(self._client, _keys(group.payloads), args, self._replicas)
        for writes in held:
            writes.head = f"{writes.epoch}-{group.number}u"

    async def covered(self, through: int | None, slots: Collection[int], written: Mapping[int, int] = _NOTHING) -> None:
        """Trim the journals of these slots after a checkpoint: groups through number `through`, and all of earlier owners.

        Idempotent.

        Args:
            through: the last group that the checkpoint contains; None keeps all.
            slots: those that were untrimmed when the checkpoint was taken.
            written: what `Pages.write` returned.

        Raises:
            As `append`. Also StorageUnavailable when storage, another server after a fail-over, lacks one of `written`: write them again.
        """
        writes = self.loss_detector.slots
        trimmed = {slot for slot in slots if slot in writes} if through is not None else set()
        first = 0 if through is None else through + 1
        runs = []
        for slot in sorted(trimmed | written.keys()):
            held = writes[slot]
            keys = [slot_epoch_key(slot), journal_key(slot), slot_mark_key(slot)]
            runs.append((keys, [held.epoch, first if slot in trimmed else 0, held.mark, written.get(slot, 0)]))
        await _COVER.run_many(self._client, runs, self._replicas)
        kept = trimmed & writes.keys()  # others may have been handed over meanwhile
        self.untrimmed.difference_update(slot for slot in kept if _group_of(writes[slot].head) < first)

    async def entries(self, slot: int) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield all entries of a slot's journal, oldest first, as (entry id, payload). Raises StorageUnavailable."""
        start, before = b"-", b""
        self.holes = []
        while True:
            with StorageCalls("journal"):
                chunk: Any = await self._client.xrange(journal_key(slot), min=start, count=_READ_ENTRIES)
            for entry_id, fields in chunk:
                if before and not is_next(before, entry_id, fields):
                    self.holes.append(entry_id)
                before = entry_id
                yield entry_id, fields.get(b"b", b"")
            if len(chunk) < _READ_ENTRIES:
                return
            start = b"(" + chunk[-1][0]

    async def remember(self, fired: FiredTimers) -> None:
        """Remember the effects of fired timers for longer for which `fired` says so. Raises as `look_up`."""
        awaited = fired.take_awaited()
        if not awaited:
            return
        sids = [one.sid for one in awaited]
        try:
            await self._extend(awaited)
        except StorageUnavailable:
            fired.failed(sids)
            raise
        fired.done(sids)

    async def look_up(self, fired: FiredTimers) -> None:
        """Look up which of the doubted timers, and of the messages that they wait for, have taken effect before, for `fired`.

        Raises StorageUnavailable; the timers are marked failed then, and the scheduler sends them again.
        """
        doubts = fired.take_doubted()
        if not doubts:
            return
        try:
            effects = await self._ids.look_up([pair for doubt in doubts for pair in doubt.effects])
            await self._extend(fired.asked_later(doubts, effects))
        except StorageUnavailable:
            fired.failed([doubt.timer.sid for doubt in doubts])
            raise
        fired.looked_up(doubts, effects)

    async def _extend(self, awaited: Sequence[Awaited]) -> None:
        if awaited:
            await self._ids.extend([one.pair for one in awaited], [one.value for one in awaited], [one.second for one in awaited])

    async def quarantine(self, where: str, blob: bytes, length_max: int) -> None:
        """Keep a record that could not be decoded, with its origin, for inspection; the newest `length_max` are kept.

        Raises StorageUnavailable.
        """
        with StorageCalls("quarantine"):
            await self._client.xadd(journal_quarantine_key(self._shard), {"where": where, "blob": blob}, maxlen=length_max)

    async def failed_records(self, shards: Iterable[int]) -> Mapping[str, int]:
        """How often each record that is among the newest quarantine entries of these shards has ended one of them, by its fingerprint.

        Raises StorageUnavailable.
        """
        with StorageCalls("quarantine"):
            pipeline = self._client.pipeline(transaction=False)
            for shard in shards:
                pipeline.xrevrange(journal_quarantine_key(shard), count=_QUARANTINE_READ)
            found: list[Any] = await pipeline.execute()
        origins = [fields.get(b"where", b"").decode(errors="replace") for entries in found for _, fields in entries]
        return Counter(origin.removeprefix(RECORD_ORIGIN) for origin in origins if origin.startswith(RECORD_ORIGIN))

    async def quarantined(self) -> int:
        """The number of quarantined records; an operator deletes them after inspection. Raises StorageUnavailable."""
        with StorageCalls("quarantine"):
            return int(await self._client.xlen(journal_quarantine_key(self._shard)))


def _keys(slots: Collection[int]) -> list[str]:
    """What an append or a rollback reads and writes that concerns these slots."""
    return [*map(_HEADS.__getitem__, slots), *map(_JOURNALS.__getitem__, slots), *KEYS]


def _group_of(head: str) -> int:
    """The number of a group, which may be rolled back."""
    return int(head.removesuffix("u").partition("-")[2])


def is_next(before: bytes, entry_id: bytes, fields: Mapping[bytes, bytes]) -> bool:
    """Whether the entry directly follows the one before, as far as entries tell: what was rolled back between them has left no trace."""
    epoch, _, number = entry_id.partition(b"-")
    predecessor = fields.get(b"p", b"%b-%d" % (epoch, int(number) - 1))
    return predecessor.endswith((b"u", b"-0")) or predecessor == before
