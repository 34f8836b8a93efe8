"""The scheduler actor: the I/O around SchedulerCore: Redis, links and one timer.

It serves one term after another. A term is the service of some timer partitions under one epoch, with a core, links and storage of its
own; it lasts until the slot map gives this scheduler other partitions. Then the process starts anew within itself, on the paths that a
crash takes, only in better order: nothing is handed from one term to the next but what is in storage.

States; what is in memory belongs to the term, each partition in storage to the epoch that took it over last, and its `owner` field names
the scheduler that has not released it yet

    taking over   not ready: link calls wait. It reads the slot map, waits until the other schedulers have released the partitions, for
                  `_RELEASE_MS` at most, takes an epoch, sees that it is the newest process of its name and the map still the same,
                  fences the partitions and reads how far their timers are claimed. A map without this scheduler gives it no partition
    serving       a core, one asyncio timer for the next time it asks for, one turn of storage work at a time, a server for edges and
                  shards, and a look at the slot map every `slots_refresh_ms`, and at once when a link opens, a request comes for a
                  partition that it does not have (answered with `Moved`), or the controller calls `follow`
    stepping down a newer map gives it other partitions: it hands nothing out and takes no request; what waits for storage is written and
                  answered, for `_STEP_DOWN_S` at most; it releases the partitions, and ends all link sessions. In the next ones shards
                  arm their retry timers again and edges repeat what is unanswered, where their slot map says
    ended         its process was replaced, or a defect: the process ends itself

The epoch is taken before the map and the name are read for the last time, and a newer map or process is in storage before its epoch is
taken. So of two that take a partition over, the one by the newer map, or the newer process of a name, has the higher epoch, however slow
the other is, and keeps it. A scheduler that is fenced takes over anew, by the map as it is then, unless its own name has a newer process.

What a crash does at each point, of the scheduler that gives a partition away (A) or the one that gets it (B):

    the map is stored, A has not looked      A looks within `slots_refresh_ms`, or is fenced by B after `_RELEASE_MS`
    A dies before it has released            B waits for `_RELEASE_MS`, then takes over. What A had handed out counts as claimed; the
                                             shards know it by its id. Unanswered requests are repeated by the edges
    A has released, B has not taken over     nobody has the partition; its timers wait. A request is answered with `Moved` until the edge
                                             has the newer map, and then waits for B
    B dies before or after it has taken over its successor reads the same map and takes over
    A stops, and wakes when B has taken over its writes are rejected and it takes over anew, by the newest map. What it hands out until then
                                             B counts as claimed (`engine.core.scheduler.claim_horizon`)
    A or B cannot reach storage              as after a crash: A's hand-outs end at the claimed bound, B waits
    the controller dies                      nothing: each scheduler looks by itself

Start, also after a crash: the first term. Timers due soon are read ahead from then on, oldest first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, ClassVar, Final

import redis.asyncio as redis
from msgspec import Struct

from engine.actors.actor_process import REAL, RETRY_S, ProcessContext, Server
from engine.actors.incarnation import Incarnation
from engine.actors.link import LinkServer
from engine.actors.scheduler_features import FEATURES
from engine.config import Config
from engine.core.model.routing import SlotMap, partitions_of
from engine.core.scheduler.claim_horizon import ClaimHorizon
from engine.core.scheduler.scheduler import SchedulerCore
from engine.core.scheduler.scheduler_events import (
    Closed,
    Effect,
    Event,
    Opened,
    Quarantined,
    Received,
    Retired,
    Send,
    SlotsRead,
    Ticked,
    TimersNotWritten,
    TimersWritten,
    WriteTimers,
    shard_of,
)
from engine.core.wire import records as wire
from engine.errors import CorruptRecord, DataLost, Fenced, StorageUnavailable
from engine.store.scheduler_feature import SchedulerFeature, SchedulerObserver, SchedulerPorts
from engine.store.sealed_config import SealedConfig
from engine.store.slot_map import require_slot_map
from engine.store.stores import own_and_first
from engine.store.timer_store import TimerStore

log = logging.getLogger(__name__)

_TICK_MS: Final = 2
"""The wheel advances no more often, and not before a link to a shard takes what is due: what is due meanwhile is handed out together."""

_SLEEP_MAX_MS: Final = 1000
"""Timers follow the wall clock and asyncio the monotonic one, so a step of the wall clock takes effect after at most this."""

_STEP_DOWN_S: Final = 0.5
"""For what waits for storage when a term ends: some turns, of a few ms each. Users wait, and what is not written is repeated."""

_FLUSH_S: Final = 0.1
"""And then for answers to leave: several intervals of a link."""

_RELEASE_MS: Final = 1000
"""For the scheduler that had a partition to release it; then it is taken. That scheduler reads the map as often."""

_RELEASE_LOOK_S: Final = 0.01
"""Between looks whether partitions are released."""


class _MapChanged(Exception):
    """The slot map gives this scheduler other partitions since the take-over began."""


class Term:
    """The service of some partitions under one epoch, from after the take-over on.

    Args:
        name: of the scheduler, for the log.
        slots: the slot map that gives it the partitions of `store`.
        now_ms: the wall clock.
        look: called when the slot map may have changed.
        observers: of the process.
    """

    def __init__(
        self,
        config: Config,
        index: int,
        slots: SlotMap,
        store: TimerStore,
        context: ProcessContext,
        now_ms: Callable[[], int],
        look: Callable[[], None],
        observers: Sequence[SchedulerObserver] = (),
    ) -> None:
        self._observers = observers
        self._name = f"scheduler {index}"
        self._context = context
        self._now_ms = now_ms
        self._look = look
        self._work: WriteTimers
        self._work_wanted = asyncio.Event()
        self._links_open_ms = 2 * max(config.link_timer_pacing_ms, config.link_ray_pacing_max_ms)  # at most, so later times need no look
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        self._shards: list[str] = []  # open sessions of shards
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.settled = asyncio.Event()  # storage has everything
        self.quarantined = 0
        self.store = store
        started_ms = now_ms()
        self.core = SchedulerCore(config, index, slots, started_ms, ClaimHorizon(config, store.inherited_ms, store.reach_ms, started_ms))
        self.links = LinkServer(
            wire.to_scheduler,
            config,
            on_open=self._on_open,
            on_records=self._on_records,
            on_close=self._on_close,
            pacing_ms=config.link_timer_pacing_ms,
            context=context,
        )

    async def run(self) -> None:
        """Serve until cancelled. Raises what ends the term, Fenced among it."""
        self.handle(Ticked())
        storing = asyncio.ensure_future(self._store_loop())
        try:
            done, _ = await asyncio.wait((storing, self._failure), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._over = True
            storing.cancel()
            await asyncio.gather(storing, return_exceptions=True)
            if self._timer is not None:
                self._timer.cancel()

    async def settle(self) -> None:
        """Begin nothing more, and return when storage has everything. `run` has to run."""
        self.handle(Retired())
        await self.settled.wait()

    def free(self) -> None:
        """Free the timers of a term that is over: it is part of reference cycles, and a collection of old objects is rare."""
        del self.core

    # -- Between core, links and storage. ------------------------------------------------------------------------------
    def _on_open(self, session: str) -> None:
        if shard_of(session) is not None:
            self._shards.append(session)
        self.handle(Opened(session))
        self._look()

    def _on_close(self, session: str) -> None:
        if shard_of(session) is not None:
            self._shards.remove(session)
        self.handle(Closed(session))

    def _on_records(self, session: str, records: list[Any]) -> None:
        for observer in self._observers:
            observer.received(session, records)
        self.handle(Received(session, records))

    def handle(self, event: Event) -> None:
        """Pass an event to the core, execute its effects, set the timer. An exception ends the term; afterwards it has no effect."""
        if self._over:
            return
        try:
            effects = self.core.handle(event, self._now_ms())
            if effects:
                self._execute(effects)
        except CorruptRecord:
            raise  # sent by a peer: the link closes that session
        except Exception as error:
            if not self._failure.done():
                self._failure.set_exception(error)
            return
        if self.core.idle:
            self.settled.set()
        else:
            self.settled.clear()
        self._arm()

    def _execute(self, effects: Sequence[Effect]) -> None:
        sends: list[tuple[str, Struct]] = []
        for effect in effects:
            match effect:
                case Send(session, record):
                    sends.append((session, record))
                    if isinstance(record, wire.Moved):
                        self._look()
                case WriteTimers():
                    self._work = effect
                    self._work_wanted.set()
                case Quarantined(sids):
                    self.quarantined += len(sids)
                    log.error("%s: stored timers that cannot be decoded were quarantined: %s", self._name, ", ".join(sids))
        for observer in self._observers:
            observer.sent(sends)
        self.links.send_all(sends)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        sleep_ms = min(self.core.next_at() - self._context.wall_ns() / 1_000_000, _SLEEP_MAX_MS)
        if sleep_ms < self._links_open_ms:
            sleep_ms = max(sleep_ms, self.links.open_in_ms(self._shards), _TICK_MS)
        self._timer = asyncio.get_running_loop().call_later(sleep_ms / 1000, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.handle(Ticked())

    async def _store_loop(self) -> None:
        failing = False
        while True:
            await self._work_wanted.wait()
            self._work_wanted.clear()
            try:
                done = await self.store.apply(self._work.work, self._now_ms(), self._work.claim_ms)
            except StorageUnavailable as error:
                if not failing:
                    log.error("%s: storage is away: %s", self._name, error)
                failing = True
                self.handle(TimersNotWritten())
            else:
                if failing:
                    log.info("%s: storage is back", self._name)
                failing = False
                self.handle(TimersWritten(done, self.store.reach_ms))


class Scheduler(Server):
    """One scheduler. Its name, index and configuration are the same in every incarnation."""

    role: ClassVar[str] = "scheduler"

    def __init__(self, config: Config | SealedConfig, index: int, context: ProcessContext = REAL) -> None:
        super().__init__(config, index, context)
        self._slots_wanted = asyncio.Event()
        self._followed = asyncio.Condition()  # notified when it serves by another slot map
        self._client: redis.Redis  # of the store that has the timers
        self._first: redis.Redis  # of the first store, which has what all share
        self._features: Sequence[SchedulerFeature] = ()
        self._incarnation: Incarnation
        self._term: Term

    # -- What other actors call. ---------------------------------------------------------------------------------------
    async def stats(self) -> dict[str, Any]:
        """Counters for the controller; cheap. `lateness` is [[upper bound in ms, timers sent], ...], with -1 for no bound.

        `slots_version` is that of the slot map it serves by.
        """
        base = self._vitals()
        if not self._ready.is_set():
            return base
        term = self._term
        return {
            **base,
            "epoch": term.store.epoch,
            "caught_up": term.core.caught_up,
            "lag_ms": term.core.lag_ms(self._now_ms()),
            "quarantined": term.quarantined,
            **term.core.stats(),
            **{name: count for feature in self._features if feature.counts is not None for name, count in feature.counts().items()},
        }

    async def follow(self, version: int, proof: bytes = b"") -> None:
        """Returns when it serves by the stored slot map, of at least this version.

        When the map moves partitions, call all schedulers at the same time: each waits for what the others release.
        """
        self._lock.check("follow", proof)
        await self._started()
        self._slots_wanted.set()
        async with self._followed:
            await self._followed.wait_for(lambda: self._ready.is_set() and self._term.core.slots_version >= version)

    async def drain(self, proof: bytes = b"") -> None:
        """Wait until storage has every confirmation, `drain_ms` at most. Timers it lacks are sent again and have no second effect."""
        self._lock.check("drain", proof)
        if self._ready.is_set():
            try:
                async with asyncio.timeout(self._config.drain_ms / 1000):
                    await self._term.settled.wait()
            except TimeoutError:
                log.warning("scheduler %d drains while storage is away", self._index)
        for feature in self._features:
            if feature.drain is not None:
                await feature.drain()

    # -- Taking over. --------------------------------------------------------------------------------------------------
    async def _recover(self) -> str:
        """Become the newest process of this name, and take over the partitions that the slot map gives it."""
        self._features = [on_scheduler(SchedulerPorts(self._config, self._credentials.name)) for on_scheduler in FEATURES]
        self._client, self._first = own_and_first(self._context.connect, self._config, self._index)
        self._incarnation = Incarnation(self._credentials.name, self._client)
        await self._retry_storage(self._incarnation.begin)
        return await self._begin_term()

    async def _begin_term(self) -> str:
        """Take over the partitions that the slot map gives this scheduler now, and create an empty core for them.

        Raises Fenced: this process was replaced.
        """
        deadline_ms = self._context.monotonic_ms() + _RELEASE_MS
        while True:
            try:
                self._term = await self._retry_storage(lambda: self._take_over(deadline_ms))
            except _MapChanged:
                continue
            except Fenced as error:
                await self._retry_storage(self._incarnation.confirm)
                log.warning("scheduler %d takes over anew: %s", self._index, error)
                await asyncio.sleep(RETRY_S)
                continue
            self._links = self._term.links
            return f"epoch {self._term.store.epoch}, slot map {self._term.core.slots_version}, {len(self._term.core.partitions)} partitions"

    async def _take_over(self, deadline_ms: float) -> Term:
        """See the module's text for the order.

        Args:
            deadline_ms: until when other schedulers may release the partitions.

        Raises:
            Fenced: there is a newer process of this name, or a newer epoch has one of the partitions.
            _MapChanged, StorageUnavailable: begin again.
        """
        slots = await require_slot_map(self._client)
        partitions = partitions_of(self._index, slots.schedulers, slots.stores)
        store = TimerStore(self._client, self._config, partitions, self._credentials.name, self._first)
        while self._context.monotonic_ms() < deadline_ms and await store.is_held_by_others():
            await asyncio.sleep(_RELEASE_LOOK_S)

        async def confirm() -> None:
            nonlocal slots
            await self._incarnation.confirm()
            slots = await require_slot_map(self._client)
            if partitions_of(self._index, slots.schedulers, slots.stores) != partitions:
                raise _MapChanged

        await store.take_over(confirm)
        observers = [feature.observer for feature in self._features if feature.observer is not None]
        return Term(self._config, self._index, slots, store, self._context, self._now_ms, self._slots_wanted.set, observers)

    # -- Serving. ------------------------------------------------------------------------------------------------------
    def _tasks(self) -> Iterable[Coroutine[Any, Any, None]]:
        return (self._serve_terms(),)

    async def _serve_terms(self) -> None:
        while True:
            await self._notify()
            await self._serve_term(self._term)
            log.info("scheduler %d serves: %s", self._index, await self._begin_term())
            self._ready.set()

    async def _serve_term(self, term: Term) -> None:
        """Serve until the slot map gives this scheduler other partitions, or another has them. Raises whatever else ends the term."""
        serving, following = asyncio.ensure_future(term.run()), asyncio.ensure_future(self._follow_slots(term))
        try:
            await asyncio.wait((serving, following), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                await self._fenced(serving)
            else:
                following.result()
                await self._step_down(term, serving)
        finally:
            for task in (serving, following):
                task.cancel()
            await asyncio.gather(serving, following, return_exceptions=True)
        await term.links.end(_FLUSH_S)
        self._ready.clear()
        term.free()

    async def _fenced(self, serving: asyncio.Future[None]) -> None:
        """Returns when the term ended because another scheduler had the partitions meanwhile; else raises what ended it."""
        try:
            serving.result()
        except Fenced as error:
            await self._retry_storage(self._incarnation.confirm)
            log.warning("scheduler %d ends its term: %s", self._index, error)

    async def _step_down(self, term: Term, serving: asyncio.Future[None]) -> None:
        """End the term in good order, so that others need not wait and nothing is repeated. What is not written is as after a crash."""
        settling = asyncio.ensure_future(term.settle())
        await asyncio.wait((settling, serving), timeout=_STEP_DOWN_S, return_when=asyncio.FIRST_COMPLETED)
        settling.cancel()
        serving.cancel()
        _, failure = await asyncio.gather(settling, serving, return_exceptions=True)
        if isinstance(failure, Exception) and not isinstance(failure, Fenced):
            raise failure
        with contextlib.suppress(Fenced, DataLost, StorageUnavailable):
            await term.store.release()

    async def _follow_slots(self, term: Term) -> None:
        """Keep the term's slot map new. Returns when a newer one gives this scheduler other partitions."""
        while True:
            try:
                async with asyncio.timeout(self._config.slots_refresh_ms / 1000):
                    await self._slots_wanted.wait()
            except TimeoutError:
                pass
            self._slots_wanted.clear()
            try:
                slots = await require_slot_map(self._client)
            except StorageUnavailable as error:
                log.warning("scheduler %d keeps slot map %d: %s", self._index, term.core.slots_version, error)
                continue
            if slots.version > term.core.slots_version:
                if partitions_of(self._index, slots.schedulers, slots.stores) != term.core.partitions:
                    return
                term.handle(SlotsRead(slots))
                await self._notify()

    async def _notify(self) -> None:
        async with self._followed:
            self._followed.notify_all()
