"""The scheduler actor: the I/O around SchedulerCore: Redis, links and one timer.

One event loop, so calls of the core never overlap:
    timer    one asyncio timer, set to the next time the core asks for, at most a second ahead
    store    one turn of storage work at a time; the next one contains all work that has accumulated meanwhile
    slots    reads the slot map periodically, and at once when a shard opens a link
    links    a server for edges and shards

Start, also after a crash: take a new epoch, which fences older incarnations, read the slot map, count what an older version has stored for
its tenants (once, some seconds per million timers), then serve. Timers due soon are read ahead from then on, oldest first. An incarnation
that is fenced ends its process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, ClassVar, Final

import redis.asyncio as redis
from msgspec import Struct

from engine.actors.actor_process import REAL, ProcessContext, Server
from engine.actors.link import LinkServer
from engine.config import Config
from engine.core.model.routing import partitions_of
from engine.core.scheduler.scheduler import SchedulerCore
from engine.core.scheduler.scheduler_events import (
    Closed,
    Effect,
    Event,
    Opened,
    Quarantined,
    Received,
    Send,
    SlotsRead,
    StoreWork,
    Ticked,
    TimersNotWritten,
    TimersWritten,
    WriteTimers,
)
from engine.core.wire import records as wire
from engine.errors import CorruptRecord, StorageUnavailable
from engine.store.sealed_config import SealedConfig
from engine.store.slot_map import require_slot_map
from engine.store.timer_store import TimerStore

log = logging.getLogger(__name__)

_TICK_MS: Final = 2  # the wheel advances no more often: what is due meanwhile is handed out together
_SLEEP_MAX_MS: Final = 1000
"""Timers follow the wall clock and asyncio the monotonic one, so a step of the wall clock takes effect after at most this."""


class Scheduler(Server):
    """One scheduler. Its name, index and configuration are the same in every incarnation."""

    role: ClassVar[str] = "scheduler"

    def __init__(self, config: Config | SealedConfig, index: int, context: ProcessContext = REAL) -> None:
        super().__init__(config, index, context)
        self._work: list[StoreWork] = []
        self._work_wanted = asyncio.Event()
        self._slots_wanted = asyncio.Event()
        self._settled = asyncio.Event()  # storage has everything
        self._timer: asyncio.TimerHandle | None = None
        self._quarantined = 0
        self._client: redis.Redis
        self._core: SchedulerCore
        self._store: TimerStore
        self._links: LinkServer
        self._failure: asyncio.Future[None]

    # -- What other actors call. ---------------------------------------------------------------------------------------
    async def stats(self) -> dict[str, Any]:
        """Counters for the controller; cheap. `lateness` is [[upper bound in ms, timers sent], ...], with -1 for no bound."""
        base = self._vitals()
        if not self._ready.is_set():
            return base
        core = self._core
        return {
            **base,
            "epoch": self._store.epoch,
            "caught_up": core.caught_up,
            "lag_ms": core.lag_ms(self._now_ms()),
            "quarantined": self._quarantined,
            **core.stats(),
        }

    async def drain(self, proof: bytes = b"") -> None:
        """Wait until storage has every confirmation, `drain_ms` at most. Timers it lacks are sent again and have no second effect."""
        self._lock.check("drain", proof)
        if self._ready.is_set():
            try:
                async with asyncio.timeout(self._config.drain_ms / 1000):
                    await self._settled.wait()
            except TimeoutError:
                log.warning("scheduler %d drains while storage is away", self._index)

    # -- Start. --------------------------------------------------------------------------------------------------------
    def _tasks(self) -> Iterable[Coroutine[Any, Any, None]]:
        self._handle(Ticked())
        return self._store_loop(), self._slots_loop(), self._watch()

    async def _watch(self) -> None:
        """Re-raise what failed in a callback, in a task whose failure ends the process."""
        try:
            await self._failure
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def _recover(self) -> str:
        """Fence older incarnations and create an empty core."""
        config = self._config
        self._failure = asyncio.get_running_loop().create_future()
        self._client = self._context.connect(config)
        self._store = TimerStore(self._client, config, partitions_of(self._index, config.schedulers))
        slots = await self._retry_storage(lambda: require_slot_map(self._client))
        await self._retry_storage(self._store.take_over)
        await self._retry_storage(self._store.count)
        self._core = SchedulerCore(config, self._index, slots, self._now_ms(), self._store.claimed)
        self._links = LinkServer(
            wire.to_scheduler,
            config,
            on_open=self._on_open,
            on_records=lambda session, records: self._handle(Received(session, records)),
            on_close=lambda session: self._handle(Closed(session)),
            pacing_ms=config.link_timer_pacing_ms,
            context=self._context,
        )
        return f"epoch {self._store.epoch}"

    # -- Between core, links and storage. ------------------------------------------------------------------------------
    def _on_open(self, session: str) -> None:
        self._handle(Opened(session))
        self._slots_wanted.set()

    def _handle(self, event: Event) -> None:
        """Pass an event to the core, execute its effects, set the timer. An exception ends the process."""
        try:
            self._execute(self._core.handle(event, self._now_ms()))
        except CorruptRecord:
            raise  # sent by a peer: the link closes that session
        except Exception as error:
            if not self._failure.done():
                self._failure.set_exception(error)
            return
        if self._core.idle:
            self._settled.set()
        else:
            self._settled.clear()
        self._arm()

    def _execute(self, effects: Sequence[Effect]) -> None:
        sends: list[tuple[str, Struct]] = []
        for effect in effects:
            match effect:
                case Send(session, record):
                    sends.append((session, record))
                case WriteTimers(work):
                    self._work = work
                    self._work_wanted.set()
                case Quarantined(sids):
                    self._quarantined += len(sids)
                    log.error("scheduler %d: stored timers that cannot be decoded were quarantined: %s", self._index, ", ".join(sids))
        self._links.send_all(sends)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at_ms = self._core.next_at()
        sleep_ms = _SLEEP_MAX_MS if at_ms is None else min(at_ms - self._context.wall_ns() / 1_000_000, _SLEEP_MAX_MS)
        self._timer = asyncio.get_running_loop().call_later(max(sleep_ms, _TICK_MS) / 1000, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._handle(Ticked())

    async def _store_loop(self) -> None:
        failing = False
        while True:
            await self._work_wanted.wait()
            self._work_wanted.clear()
            try:
                done = await self._store.apply(self._work, self._now_ms())
            except StorageUnavailable as error:
                if not failing:
                    log.error("scheduler %d: storage is away: %s", self._index, error)
                failing = True
                self._handle(TimersNotWritten())
            else:
                if failing:
                    log.info("scheduler %d: storage is back", self._index)
                failing = False
                self._handle(TimersWritten(done))

    async def _slots_loop(self) -> None:
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
                log.warning("scheduler %d keeps slot map %d: %s", self._index, self._core.slots_version, error)
                continue
            if slots.version != self._core.slots_version:
                self._handle(SlotsRead(slots))
