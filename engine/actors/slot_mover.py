"""Moves slots between shards while they serve: this shard's end of it, as the one that hands over and as the one that adopts.

A slot map in storage says who owns which slot. `ShardCore.slot_map` is that map without the slots of this shard that it is handing over, or
has not adopted yet. What comes for those is answered `Moved`, and edges keep it.

    stored map        changes by compare-and-set: of a shard that hands slots over, fenced by their epochs; of the controller, for the
                      numbers and for the slots of a shard that has died
    slots of a shard  `hand_over` -> `engine.core.shard.slot_release` -> stored map -> `adopt` of the new owner

Hand over, in this order: pages are written while the slots are served, so that little is left; the slots are refused; what had been taken
is finished; the rest of the pages is written, and the journals are trimmed; the map is stored. No other checkpoint is written between the
two, or users would wait for it. Only the map changes who owns the slots, and their owner stores it, so there is nothing to undo.

Adopt, in this order: an epoch above the last owner's fences it; then what the journals have, with its pages, which is nothing unless the
last owner has died; who is online, and the session events that it had not written; then the slots are served.

Neither end waits for the first store, which may be away while the store of the slots is there. The source hands its session events
on, and drops its dead letters (`engine.core.shard.slot_release`). The target may not have read as much of the broadcast log as the source:
a mailbox keeps its cursor where it is beyond the log's head, and a message that is a broadcast beyond it is read from storage once the log
is (`engine.actors.shard_tasks.storage_reads`). Only its user waits.

    crash                                effect
    source, before the map is stored     its successor owns the slots, and recovers them from pages and journal; it answers the edges that
                                         wait for the next map by the map as it is
    source, after                        nothing: its successor knows nothing of these slots
    target, before or while it adopts    its successor reads the map, fences the slots and recovers them. Session events that were handed on
                                         are stored until the target has them in memory; a crash then loses them, like all in memory
    a shard for too long                 the controller gives its slots away. Its journals are read by who gets them; if it still runs, it
                                         reads the map or is fenced, and ends
    an old incarnation of the source     cannot store the map: its successor has taken the slots' epochs, and read the map again
    an old incarnation of the target     cannot journal anything, as ever
    the controller                       is not needed: the target reads the map every `_POLL_S`, and edges when they are told to wait
    storage of the slots                 the hand-over waits; meanwhile nobody accepts anything. When it has lost what was written of the
                                         slots, the source replaces the data epoch before it stores the map
    the first store                      the hand-over goes on. After the store is back: the target writes the events, edges have
                                         repeated their nacks and erasures there, and broadcasts go on at each mailbox's cursor
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
import redis.asyncio as redis

from engine.actors.incarnation import Incarnation
from engine.actors.recovery import Recovery
from engine.actors.shard_tasks.checkpoints import Checkpoints
from engine.core.model.routing import NOBODY, SlotMap
from engine.core.shard.poison import refused_after
from engine.core.shard.shard import ShardCore
from engine.errors import DataLost, Fenced
from engine.store.external_streams import forget_handed, handed_events, read_inherited
from engine.store.journal import Journal
from engine.store.loss_detector import LossDetector, SlotWrites
from engine.store.redis_client import replace_data_epoch
from engine.store.slot_map import hand_over_slots, require_slot_map

log = logging.getLogger(__name__)

T = TypeVar("T")

_POLL_S: Final = 1.0
"""Between two reads of the slot map: what changes it waits so long for every shard to know."""

_FOLLOW_S: Final = 0.01
"""Between two reads of a slot map that somebody knows to be newer."""

_WAIT_S: Final = 0.002
"""Between two looks whether what was taken for slots is finished: about what a group takes."""


class SlotMover:
    """The moves of one shard, one after another.

    Args:
        core, storage: of the shard.
        retry: runs an action until storage answers.
        flush: carries out what the core wants.
        on_map: called with each newer map that was read, before anything else is done about it.
        now_ms: the wall clock, in milliseconds.
    """

    def __init__(
        self,
        client: redis.Redis,
        slot_map: SlotMap,
        core: ShardCore,
        storage: tuple[Journal, Recovery],
        incarnation: Incarnation,
        *,
        retry: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]],
        checkpoints: Checkpoints,
        flush: Callable[[], None],
        on_map: Callable[[SlotMap], None],
        now_ms: Callable[[], int],
    ) -> None:
        self.stored = slot_map
        self._client = client
        self._core = core
        self._journal, self._recovery = storage
        self._incarnation = incarnation
        self._retry = retry
        self._checkpoints = checkpoints
        self._flush = flush
        self._on_map = on_map
        self._now_ms = now_ms
        self._served = set(slot_map.slots_of(core.index))
        self._wanted = asyncio.Event()
        self._requests: list[tuple[Sequence[int], int, asyncio.Future[int]]] = []
        self._followers: list[tuple[int, asyncio.Future[int]]] = []

    @property
    def served(self) -> int:
        """How many slots are served."""
        return len(self._served)

    # -- What other actors ask for. ------------------------------------------------------------------------------------
    async def hand_over(self, slots: Sequence[int], to: int) -> int:
        """Hand these slots over, as far as they are this shard's and the other one is in the map. Returns the version of the map then."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._requests.append((slots, to, future))
        self._wanted.set()
        return await future

    async def adopt(self, version: int) -> None:
        """Returns when every slot is served that is this shard's by a map of at least this version."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._followers.append((version, future))
        self._wanted.set()
        await future

    def look(self) -> None:
        """The map may have changed: read it at once."""
        self._wanted.set()

    # -- The one task. -------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Follow the slot map, and carry out what is asked for. Runs until cancelled; a failure is one of the shard."""
        while True:
            await self._refresh()
            await self._adopt_new()
            while self._requests:
                slots, to, future = self._requests.pop(0)
                await self._hand_over(slots, to)
                _resolve(future, self.stored.version)
                await self._adopt_new()  # by the map that was read meanwhile, or what nobody was left to have
            self._followers = [(version, future) for version, future in self._followers if not self._reached(version, future)]
            if self._followers:
                await asyncio.sleep(_FOLLOW_S)
                continue
            try:
                async with asyncio.timeout(_POLL_S):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()

    def _reached(self, version: int, future: asyncio.Future[int]) -> bool:
        if version <= self.stored.version:
            _resolve(future, self.stored.version)
        return future.done()

    async def _refresh(self) -> None:
        """Read the map, and answer by it; one that is older than the one known is what a fail-over has left of it."""
        found: SlotMap = await self._retry(lambda: require_slot_map(self._client))
        if found.version > self.stored.version:
            self.stored = found
            self._on_map(found)
            self._core.slot_map = self._masked()
            index, leaving = self._core.index, self._core.slot_release.slots
            if any(found.owners[slot] != index and slot not in leaving for slot in self._served):
                raise Fenced(f"shard {index} was taken for dead, and others have got its slots")

    def _masked(self) -> SlotMap:
        """The stored map without the slots that are not served. While some are handed over, edges are to wait for the map after it."""
        index, leaving = self._core.index, self._core.slot_release.slots
        served = self._served
        owners = tuple(
            NOBODY if owner == index and (slot not in served or slot in leaving) else owner for slot, owner in enumerate(self.stored.owners)
        )
        return msgspec.structs.replace(self.stored, version=self.stored.version + bool(leaving), owners=owners)

    # -- Handing over. -------------------------------------------------------------------------------------------------
    async def _hand_over(self, slots: Sequence[int], to: int) -> None:
        core, release = self._core, self._core.slot_release
        slots = [slot for slot in slots if slot in self._served]
        if not slots or to == core.index or to not in self.stored.local(self.stored.shards):
            return
        log.info("shard %d hands %d slots over to shard %d", core.index, len(slots), to)
        async with self._checkpoints.alone() as write:
            await write(lambda: core.mailbox_store.take_whole(slots, quiet=False))
            core.release(slots)
            self._flush()
            while release.waits():
                await asyncio.sleep(_WAIT_S)
                await self._refresh()
            release.quiet()
            await write(release.take_checkpoint)
        release.written()
        self._flush()
        while core.storage_away or release.appends():  # a group that was refused is rolled back first
            await asyncio.sleep(_WAIT_S)
        writes = self._journal.loss_detector.slots
        left = {slot: writes[slot] for slot in slots}
        self._journal.leave(slots)
        handed_over = await self._store_map(left, to)
        self._served.difference_update(slots)
        release.end(handed_over=handed_over)
        core.slot_map = self._masked()

    async def _store_map(self, left: Mapping[int, SlotWrites], to: int) -> bool:
        """Give the slots away; returns False when nobody is left to have them: this shard adopts them again."""
        client, index = self._client, self._core.index
        epochs = {slot: writes.epoch for slot, writes in left.items()}
        written = LossDetector(dict(left))

        async def store(after: SlotMap) -> bool:
            await self._tell_loss(written)
            return await hand_over_slots(client, epochs, after, to, events)

        events = handed_events(self._core.slot_release.session_events)
        while True:
            await self._refresh()
            if any(self.stored.owners[slot] != index for slot in epochs):
                return True  # an attempt whose answer was lost
            if to not in self.stored.local(self.stored.shards):
                return False
            after = self.stored.with_owner(epochs, to)
            if await self._retry(partial(store, after)):
                self.stored = after
                self._on_map(after)
                return True

    async def _tell_loss(self, written: LossDetector) -> None:
        """Replace the data epoch when storage has lost what was written of slots that this shard has left: nobody else would notice."""
        try:
            await written.check(self._client)
        except Fenced:
            return  # perhaps by the new owner, after an attempt whose answer was lost: `hand_over_slots` finds out
        except DataLost as lost:
            core, now_ms = self._core, self._now_ms()
            log.critical("shard %d hands over what storage has left: %s", core.index, lost)
            core.data_epoch_changed(await replace_data_epoch(self._client, core.data_epoch, now_ms // 1000), now_ms)
            self._flush()
            written.slots.clear()

    # -- Adopting. -----------------------------------------------------------------------------------------------------
    async def _adopt_new(self) -> None:
        slots = [slot for slot in self.stored.slots_of(self._core.index) if slot not in self._served]
        if not slots:
            return
        log.info("shard %d adopts %d slots", self._core.index, len(slots))
        await self._retry(self._incarnation.confirm)
        await self._retry(self._checkpoints.compare)  # no number may be given under a data epoch that the last owner has replaced
        epoch = await self._retry(lambda: self._journal.take_over(slots))
        unread = set(slots)
        await self._retry(lambda: self._recovery.replay(unread))
        await self._retry(lambda: self._recovery.find_deadlines(slots))
        index, shards, version = self._core.index, self.stored.local(self.stored.shards), self.stored.version
        self._core.refused_records = refused_after(await self._retry(lambda: self._journal.failed_records(shards)))
        inherited = await self._retry(lambda: read_inherited(self._client, index, slots, version))
        await self._retry(lambda: forget_handed(self._client, index, inherited))
        self._journal.serve(slots)
        self._served.update(slots)
        self._core.adopt(self._masked(), epoch, inherited.online, inherited.events, self._now_ms(), told=False)
        self._flush()


def _resolve(future: asyncio.Future[int], version: int) -> None:
    if not future.done():  # its caller may have gone
        future.set_result(version)
