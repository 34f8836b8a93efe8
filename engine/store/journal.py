"""The journal of one shard: a Redis stream, one entry per group commit, written by one epoch at a time.

Entry ids are `<epoch>-<group number>`: they grow across restarts, and an append that is repeated because its reply was lost is
recognised. An entry names the one before it, unless that is the number before: so a reader notices an entry that storage has lost in the
middle (`is_next`). `engine.core.commit.group` defines the content of an entry, `engine.store.loss_detector` how a lost entry is detected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import redis.asyncio as redis
from redis.exceptions import RedisError

from engine.core.commit.group import Group
from engine.core.model.message import timer_effect_id
from engine.core.shard.fired_timers import FiredTimers
from engine.errors import StorageUnavailable
from engine.store.accepted_ids import KEYS, LIBRARY, AcceptedIds, known_of, words_of
from engine.store.epoch import take_epoch
from engine.store.keys import (
    journal_head_key,
    journal_key,
    journal_mark_key,
    journal_quarantine_key,
    shard_epoch_key,
    slot_epoch_key,
)
from engine.store.loss_detector import LossDetector
from engine.store.lua import NO_REPLICAS, Replicas, Script

RECORD_ORIGIN: Final = "record "
"""Origin of a quarantine entry of a record that ended its shard; the record's fingerprint follows."""

_APPEND = Script("fenced/journal_append", LIBRARY)
_ROLLBACK = Script("fenced/journal_rollback", LIBRARY)
_COVER = Script("fenced/journal_cover")
_OPEN = Script("journal_open")
_FENCE = Script("fence")

_NOTHING: Final[Mapping[str, tuple[int, int]]] = MappingProxyType({})

_READ_ENTRIES = 50
_QUARANTINE_READ = 1000
"""Journal entries per read at replay: at most some tens of megabytes."""


class Journal:
    """One incarnation's write access to a shard's journal. Call `take_over` first.

    Args:
        shard: index of the shard.
        idempotency_ms: how long an id is stored, ms.
        replicas: how many replicas must have a group, a rollback or a checkpoint before the call returns.
    """

    def __init__(self, client: redis.Redis, shard: int, idempotency_ms: int, replicas: Replicas = NO_REPLICAS) -> None:
        self._client = client
        self._shard = shard
        self._idempotency_ms = idempotency_ms
        self._replicas = replicas
        self._ids = AcceptedIds(client, idempotency_ms)
        self._keys = [shard_epoch_key(shard), journal_head_key(shard), journal_key(shard)]
        self._keys_of_group = [*self._keys, *KEYS]
        self._checkpoints = 0  # attempted
        self._attempts: list[int] = []  # epochs of take-overs whose reply did not arrive
        self.loss_detector = LossDetector(shard)
        self.holes: list[bytes] = []
        """Ids of entries whose predecessor `entries` did not find."""

    @property
    def epoch(self) -> int:
        """Epoch of this incarnation; 0 before `take_over`."""
        return self.loss_detector.epoch

    async def take_over(self, slots: Sequence[int]) -> int:
        """Take a new epoch and fence the shard and its slots: writes of older incarnations are rejected from then on.

        Also waits until the required replicas have everything that earlier incarnations wrote. An incarnation that finds its writes
        lost may call it again, unless a newer one has taken over since.

        Args:
            slots: the slots of the shard.

        Raises:
            Fenced: another incarnation took a newer epoch meanwhile.
            StorageUnavailable: Redis does not answer; retry.
        """
        epoch = await take_epoch(self._client)
        held = [self.epoch, *self._attempts] if self.epoch else []
        self._attempts.append(epoch)
        await _OPEN.run(self._client, [*self._keys[:2], journal_mark_key(self._shard)], [epoch, *held])
        await _FENCE.run_many(self._client, [([slot_epoch_key(slot)], [epoch]) for slot in slots], self._replicas)
        self._checkpoints = 0
        self._attempts.clear()
        self.loss_detector.opened(epoch)
        return epoch

    async def adopt(self, slots: Sequence[int]) -> int:
        """Fence slots that another shard has handed over: its writes are rejected from then on. Returns their epoch.

        It is above that of the shard, which is older than the last owner's may be.

        Raises:
            Fenced: this incarnation has been replaced.
            DataLost, StorageUnavailable: as `append`.
        """
        epoch = await take_epoch(self._client)
        await self.loss_detector.check(self._client)
        await _FENCE.run_many(self._client, [([slot_epoch_key(slot)], [epoch]) for slot in slots], self._replicas)
        return epoch

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
        detector = self.loss_detector
        args = [detector.epoch, group.number, group.payload, self._idempotency_ms, detector.head, *words_of(group.ids, group.values)]
        reply = await _APPEND.run(self._client, self._keys_of_group, args, self._replicas)
        if reply[0] == b"KNOWN":
            return known_of(reply[1])
        detector.head = f"{detector.epoch}-{group.number}"
        return {}

    async def rollback(self, group: Group) -> None:
        """Remove the group from the journal, and keep a delayed copy of its append from applying. Idempotent. Raises like `append`."""
        args = [self.epoch, group.number, self.loss_detector.head, self._idempotency_ms, *words_of(group.ids)]
        await _ROLLBACK.run(self._client, self._keys_of_group, args, self._replicas)
        self.loss_detector.head = f"{self.epoch}-{group.number}u"

    async def covered(self, through: int | None, written: Mapping[str, tuple[int, int]] = _NOTHING) -> None:
        """Trim the journal after a checkpoint: groups of this epoch through number `through`, and all of older epochs.

        Idempotent, also with another number.

        Args:
            through: the last group that the checkpoint contains; None keeps the whole journal.
            written: the slot marks that `Pages.write` returned.

        Raises:
            As `append`. Also StorageUnavailable when storage, another server after a fail-over, lacks one of `written`: write them again.
        """
        self._checkpoints += 1
        number = self._checkpoints
        keys = [self._keys[0], self._keys[2], journal_mark_key(self._shard), *written]
        keep = 0 if through is None else through + 1
        marks = (word for mark in written.values() for word in mark)
        await _COVER.run(self._client, keys, [self.epoch, number, self.loss_detector.mark, keep, *marks], self._replicas)
        self.loss_detector.mark = number

    async def entries(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield all entries, oldest first, as (entry id, payload). Raises StorageUnavailable."""
        start, before = b"-", b""
        self.holes = []
        while True:
            try:
                chunk: Any = await self._client.xrange(journal_key(self._shard), min=start, count=_READ_ENTRIES)
            except (RedisError, OSError) as error:
                raise StorageUnavailable(f"journal: {error}") from error
            for entry_id, fields in chunk:
                if before and not is_next(before, entry_id, fields):
                    self.holes.append(entry_id)
                before = entry_id
                yield entry_id, fields.get(b"b", b"")
            if len(chunk) < _READ_ENTRIES:
                return
            start = b"(" + chunk[-1][0]

    async def look_up(self, fired: FiredTimers) -> None:
        """Look up which of the doubted timers have taken effect before, and pass the result to `fired`.

        Raises StorageUnavailable; the timers are marked failed then, and the scheduler sends them again.
        """
        doubts = fired.take_doubted()
        if not doubts:
            return
        ids = [(doubt.timer.key, timer_effect_id(doubt.timer.sid)) for doubt in doubts]
        try:
            known = await self._ids.is_known(ids)
        except StorageUnavailable:
            fired.failed([doubt.timer.sid for doubt in doubts])
            raise
        fired.looked_up(doubts, known)

    async def quarantine(self, where: str, blob: bytes, length_max: int) -> None:
        """Keep a record that could not be decoded, with its origin, for inspection; the newest `length_max` are kept.

        Raises StorageUnavailable.
        """
        try:
            await self._client.xadd(journal_quarantine_key(self._shard), {"where": where, "blob": blob}, maxlen=length_max)
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"quarantine: {error}") from error

    async def failed_records(self) -> Mapping[str, int]:
        """How often each record that is among the newest quarantine entries has ended the shard, by its fingerprint.

        Raises StorageUnavailable.
        """
        try:
            entries: Any = await self._client.xrevrange(journal_quarantine_key(self._shard), count=_QUARANTINE_READ)
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"quarantine: {error}") from error
        origins = [fields.get(b"where", b"").decode(errors="replace") for _, fields in entries]
        return Counter(origin.removeprefix(RECORD_ORIGIN) for origin in origins if origin.startswith(RECORD_ORIGIN))

    async def quarantined(self) -> int:
        """The number of quarantined records; an operator deletes them after inspection. Raises StorageUnavailable."""
        try:
            return int(await self._client.xlen(journal_quarantine_key(self._shard)))
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"quarantine: {error}") from error


def is_next(before: bytes, entry_id: bytes, fields: Mapping[bytes, bytes]) -> bool:
    """Whether the entry directly follows the one before, as far as entries tell: what was rolled back between them has left no trace."""
    epoch, _, number = entry_id.partition(b"-")
    predecessor = fields.get(b"p", b"%b-%d" % (epoch, int(number) - 1))
    return predecessor.endswith((b"u", b"-0")) or predecessor == before
