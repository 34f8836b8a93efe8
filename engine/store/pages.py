"""Pages, the stored state of mailboxes without message bodies (one hash per slot), and the checkpoints that write them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import redis.asyncio as redis
from redis.exceptions import RedisError, ResponseError

from engine.core.journal.journal_records import AnyPage, Spill
from engine.core.journal.salvage import page_with, read_page, salvage_page
from engine.core.journal.stored_formats import Layouts
from engine.core.model.routing import partition_of_slot, slot_of
from engine.errors import CorruptRecord, StorageUnavailable
from engine.store.keys import (
    SUBSCRIBERS_PREFIX,
    deadlines_key,
    floor_key,
    held_key,
    looks_key,
    offline_key,
    page_key,
    slot_epoch_key,
    slot_mark_key,
    tenants_key,
    timer_unpaged_key,
    timer_user_prefix,
    topics_key,
)
from engine.store.loss_detector import LossDetector
from engine.store.lua import Script
from engine.store.storage_calls import StorageCalls

log = logging.getLogger(__name__)

_CHECKPOINT = Script("fenced/slot_checkpoint")
_TRIM = Script("stream_trim")

_MEASURED: Final = 64
"""A stream is measured when it has grown by so many entries (`slot_checkpoint.lua`)."""

_SLOT_MESSAGES = 500
"""Messages per script run: it blocks Redis for a few milliseconds."""

_ROUND_TRIP_RUNS = 64
"""Streams trimmed per round trip."""

_ROUND_TRIP_WORDS = 500
"""Keys and arguments of a checkpoint's runs per round trip: about fifty mailboxes or 250 messages, some 1.5 ms of Redis, and 1 of the
shard to write them. After each, storage is left to others for as long: groups are appended meanwhile, so the checkpoint of thousands who
have left delays nobody else."""

_Run = tuple[list[str], list[object]]
"""(keys, arguments) of a script run."""


class Pages:
    """Reads pages, and writes checkpoints under the epochs of `loss_detector`.

    Args:
        stream_max: messages kept per offline stream; the oldest beyond it are trimmed.
        stream_bytes_max: and their bytes; 0 for no limit.
        entry_bytes_max: of one message.
    """

    def __init__(
        self,
        client: redis.Redis,
        loss_detector: LossDetector,
        layouts: Layouts,
        stream_max: int,
        stream_bytes_max: int = 0,
        entry_bytes_max: int = 1,
    ) -> None:
        self._client = client
        self._loss_detector = loss_detector
        self._layouts = layouts
        self._stream_max = stream_max
        self._stream_bytes_max = stream_bytes_max
        self._stream_count_min = stream_bytes_max // entry_bytes_max  # fewer messages cannot exceed the bytes
        self._writes = 0  # script runs, attempted
        self._written: dict[int, int] = {}  # slot -> number of the last run of the last `write`, which was not confirmed yet
        self.corrupt: list[tuple[str, bytes]] = []
        self.damaged: list[str] = []  # of the last `read`
        self.lost: list[str] = []  # likewise
        self._unreadable: set[str] = set()  # keys of the stored pages that could not be read

    async def read(self, keys: Sequence[str]) -> dict[str, AnyPage | None]:
        """The pages of these mailboxes; None where there is none.

        A page that cannot be decoded is logged, its bytes are added to `corrupt` for the caller to quarantine, and its key to
        `damaged`, so that the caller writes the page again. A substitute page is returned, with the sequence numbers that can still be
        read from it. Where none can, the key is added to `lost` and the numbers are those of the offline stream, because a spill
        with a lower number would be taken for written. Higher numbers may have been used, so the caller must replace the data epoch.

        Raises DataLost, StorageUnavailable.
        """
        self.damaged, self.lost = [], []
        by_slot: dict[int, list[str]] = {}
        for key in keys:
            by_slot.setdefault(slot_of(key), []).append(key)
        replies = await self._guarded("pages", by_slot, lambda pipeline, slot: pipeline.hmget(page_key(slot), by_slot[slot]))
        pages: dict[str, AnyPage | None] = {}
        for fields, blobs in zip(by_slot.values(), replies, strict=True):
            for key, blob in zip(fields, blobs, strict=True):
                pages[key] = None if blob is None else await self._decode(key, blob)
        return pages

    async def deadlines(self, slots: Sequence[int]) -> dict[int, list[tuple[str, int]]]:
        """The mailboxes of these slots whose page has a time at which the judge has something to do: (key, ms), the next one first.

        Raises DataLost, StorageUnavailable.
        """
        replies = await self._guarded("windows", slots, lambda pipeline, slot: pipeline.zrange(deadlines_key(slot), 0, -1, withscores=True))
        return {slot: [(key.decode(), int(at_ms)) for key, at_ms in times] for slot, times in zip(slots, replies, strict=True)}

    async def floors(self, slots: Sequence[int]) -> dict[int, int]:
        """The highest sequence number of the deleted pages of these slots; slots without one are left out.

        Raises DataLost, StorageUnavailable.
        """
        replies = await self._guarded("floors", slots, lambda pipeline, slot: pipeline.get(floor_key(slot)))
        return {slot: int(floor) for slot, floor in zip(slots, replies, strict=True) if floor}

    async def _guarded(self, what: str, slots: Collection[int], read: Callable[[Any, int], object]) -> list[Any]:
        """The reply to the command that `read` appends for each slot, from a server that lacks no checkpoint of them."""
        if not slots:
            return []
        with StorageCalls(what):
            pipeline = self._client.pipeline(transaction=False)
            check = self._loss_detector.guard(pipeline, slots)
            for slot in slots:
                read(pipeline, slot)
            marked, *replies = await pipeline.execute()
        check(marked)
        return replies

    async def _decode(self, key: str, blob: bytes) -> AnyPage | None:
        try:
            return read_page(key, blob, self._layouts)
        except CorruptRecord as error:
            log.error("the page of %s cannot be read: %s", key, error)
            self.corrupt.append((f"page {key}", blob))
            self.damaged.append(key)
            self._unreadable.add(key)
        page = salvage_page(key, blob)
        if page is None:
            page = await self._page_of_stream(key)
            self.lost.append(key)
        return page

    async def _page_of_stream(self, key: str) -> AnyPage | None:
        """A page with the sequence numbers of an offline stream; None when there is no stream."""
        try:
            info: Any = await self._client.xinfo_stream(offline_key(key))
        except ResponseError:
            return None
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"offline stream: {error}") from error
        head = int(info["last-generated-id"].partition(b"-")[0])
        first = info["first-entry"]
        floor = head if first is None else int(first[0].partition(b"-")[0]) - 1
        return page_with(head, floor)

    async def write(self, spills: Iterable[Spill], now_ms: int) -> dict[int, int]:
        """Write pages and spilled messages, each mailbox atomically. Idempotent; one call at a time.

        Returns {slot: number of its last run}. Storage must show at least these before the journals are trimmed (`Journal.covered`);
        `confirm` afterwards.

        Raises:
            Fenced: this incarnation has been replaced.
            DataLost: storage has lost a confirmed write; nothing was written to that slot.
            StorageUnavailable: no reply; some of it may have been written.
        """
        self._written = {}
        by_slot: dict[int, list[Spill]] = {}
        for spill in spills:
            by_slot.setdefault(slot_of(spill.key), []).append(spill)
        grown: list[bytes] = []
        now_s = asyncio.get_running_loop().time
        began_s = ended_s = now_s()
        for calls in _round_trips(self._runs(by_slot, now_ms)):
            await asyncio.sleep(ended_s - began_s)
            began_s = now_s()
            for _, *names in await _CHECKPOINT.run_many(self._client, calls):
                grown += names
            ended_s = now_s()
        if self._stream_bytes_max:
            await self._trim(grown)
        return self._written.copy()

    def confirm(self) -> None:
        """Storage, with the replicas that it must have, has the last write: where it is missing from now on, data is lost."""
        for slot, number in self._written.items():
            self._loss_detector.slots[slot].mark = number

    async def _trim(self, names: Sequence[bytes]) -> None:
        """Trim the streams of these mailboxes to their bytes. What is trimmed is announced as a gap when it is not found."""
        args = [0, self._stream_bytes_max, self._stream_count_min, _MEASURED]
        calls = [([offline_key(name.decode())], args) for name in names]
        for start in range(0, len(calls), _ROUND_TRIP_RUNS):
            await _TRIM.run_many(self._client, calls[start : start + _ROUND_TRIP_RUNS])

    def _runs(self, by_slot: dict[int, list[Spill]], now_ms: int) -> Iterator[_Run]:
        """The (keys, arguments) of the script runs that write these, each with mailboxes of one slot and behind that slot's run before."""
        for slot, spills in by_slot.items():
            run: _Run | None = None
            messages = 0
            for spill in spills:
                if run is not None and messages + len(spill.entries) > _SLOT_MESSAGES:
                    yield run
                    run = None
                if run is None:
                    messages = 0
                    run = (_keys_of(slot), [*self._next_marks(slot), self._stream_max, now_ms])
                keys, args = run
                keys.append(offline_key(spill.key))
                args += [spill.key, spill.page, spill.trim_below, spill.judge_ms, spill.expires_ms]
                args += [spill.look_ms, spill.removed_at, spill.topics, " ".join(map(str, spill.deleted))]
                args += [int(spill.key not in self._unreadable), len(spill.entries)]
                for seq, blob in spill.entries:
                    args += (seq, blob)
                messages += len(spill.entries)
            if run is not None:
                yield run

    def _next_marks(self, slot: int) -> tuple[int, int, int, int]:
        """(epoch of the slot, number of its next run, number of its last one that was confirmed, number of its last one)."""
        self._writes += 1
        held = self._loss_detector.slots[slot]
        marks = held.epoch, self._writes, held.mark, self._written.get(slot, held.mark)
        self._written[slot] = self._writes
        return marks


def _round_trips(runs: Iterable[_Run]) -> Iterator[list[_Run]]:
    """The runs of each round trip. A run that expects the one before it, of the same slot, waits for its answer (`Script.run_many`)."""
    calls: list[_Run] = []
    words = 0
    for run in runs:
        keys, args = run
        if calls and (words >= _ROUND_TRIP_WORDS or keys[0] == calls[-1][0][0]):
            yield calls
            calls, words = [], 0
        calls.append(run)
        words += len(keys) + len(args)
    if calls:
        yield calls


def _keys_of(slot: int) -> list[str]:
    """The keys of a script run beside its streams."""
    of_tenants = [tenants_key(figure) for figure in ("users", "stored_bytes", "topics")]
    of_slot = [slot_epoch_key(slot), slot_mark_key(slot), page_key(slot), deadlines_key(slot), looks_key(slot), floor_key(slot)]
    partition = partition_of_slot(slot)
    of_timers = [timer_user_prefix(partition), timer_unpaged_key(partition)]
    return [*of_slot, held_key(slot), topics_key(slot), *of_tenants, SUBSCRIBERS_PREFIX, *of_timers]
