"""What the engine's actors share: the world around their process, how they start and end, what they cost.

An actor takes everything that is not computation from its `ProcessContext`: clocks, the connection to Redis, the handles of other
actors, names for link sessions, and how its process ends. The simulator gives it others.

States of a `Process`:
    created    nothing runs: Ray gives an actor its event loop only with the first call
    starting   the first call began `_serve`; what others ask waits, `stats` says "not ready"
    serving    it is ready; what it runs never ends by itself
    ended      something failed, or the epoch was lost: the process ends itself. Half an actor would be worse than none, and a new
               incarnation recovers everything

Clocks. What is promised in wall-clock time (`ttl`, `at`) is kept by the wall clock. Set forward, it makes things due or expired,
as it should, and a retry comes early. Set back, it would hold up everything the cores measure by it, so a process that
notices a step back ends, and the next one begins with the time as it is. Smaller steps only delay things by as much.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NoReturn, Protocol, TypeVar
from uuid import uuid4

import psutil
import ray
import redis.asyncio as redis

from engine.actors.socket_carrier import NOWHERE, ActorPeer, Address, CalleeConnection, ExchangeHandler, Peer, listen
from engine.config import Config
from engine.errors import ClockSetBack, StorageUnavailable
from engine.store.redis_client import connect

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S: Final = 0.1
"""Pause before storage is asked again after it failed."""

STEP_BACK_MS: Final = 1000
"""A wall clock set back by more than this ends the process. Time services slew what is less."""

_CLOCK_LOOK_S: Final = 1.0

_GC_THRESHOLD: Final = 50_000
"""Allocations between collections: records are acyclic and die young, connections leave no cycles behind. The default 700 costs about
5 % of a shard's CPU and, with 3 000 connections, 2 % of an edge's; a full collection over 200 000 timers would make others late."""

_self = psutil.Process()


def vitals(role: str, index: int, started_ms: int) -> dict[str, Any]:
    """The part of `stats()` that all actors share; about 20 us.

    `cpu_s` is the process's CPU time so far, all threads: its growth per second is the share of a core; `rss_bytes` is its
    resident memory.
    """
    return {
        "role": role,
        "index": index,
        "pid": os.getpid(),
        "node": ray.util.get_node_ip_address(),  # type: ignore[no-untyped-call]
        "started_ms": started_ms,
        "cpu_s": time.process_time(),
        "rss_bytes": _self.memory_info().rss,
    }


def monotonic_ms() -> float:
    """Milliseconds of a clock that never steps."""
    return time.monotonic() * 1000


def session_name() -> str:
    """Unique among all link sessions of all incarnations."""
    return uuid4().hex


def tune_memory() -> None:
    """Collect garbage less often, and never what lives for ever."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 20, 100)


def end_process() -> NoReturn:
    """End this process at once, without a word to anyone: what is not in storage by now is lost, as in any crash."""
    os._exit(1)


@dataclass(frozen=True)
class ProcessContext:
    """The ports of an actor's process. Each default is the real thing."""

    wall_ns: Callable[[], int] = time.time_ns  # since the epoch; may step
    monotonic_ms: Callable[[], float] = monotonic_ms
    session_name: Callable[[], str] = session_name
    connect: Callable[[Config], redis.Redis] = connect
    peer: Callable[[str, str], Peer] = ActorPeer  # (name, namespace) -> another actor
    listen: Callable[[str, str, Callable[[], asyncio.Protocol]], Awaitable[Address]] = listen  # (name, namespace, serves a connection)
    tune_memory: Callable[[], None] = tune_memory
    end_process: Callable[[], None] = end_process


REAL: Final = ProcessContext()


class LinkEnd(ExchangeHandler, Protocol):
    """The called end of links: `engine.actors.link.LinkServer`."""

    async def exchange(self, session: str, seq: int, batch: bytes) -> bytes:
        """One request and its reply."""


class Process:
    """An actor's start, its wait for storage, its end. Subclasses say what it does in between.

    Args:
        config: the engine's settings.
        index: which of its kind it is; the same in every incarnation.
        surroundings: the process it lives in.
    """

    role: ClassVar[str]

    def __init__(self, config: Config, index: int, surroundings: ProcessContext = REAL) -> None:
        logging.basicConfig(level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._config = config
        self._index = index
        self._surroundings = surroundings
        self._latest_ms = 0  # the furthest moment anything here was told
        self._started_ms = self._now_ms()
        self._serving: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    def _now_ms(self) -> int:
        """Milliseconds since the epoch, rounded down: a timer is never seen as due early."""
        now_ms = self._surroundings.wall_ns() // 1_000_000
        self._latest_ms = max(self._latest_ms, now_ms)
        return now_ms

    # -- Start and end. ------------------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Start serving, if that has not begun. To be called from the event loop."""
        if self._serving is None:
            self._serving = asyncio.ensure_future(self._serve())

    def _vitals(self) -> dict[str, Any]:
        """The common part of `stats()`. Starts serving, because it is the first thing anyone asks."""
        self.begin()
        return {**vitals(self.role, self._index, self._started_ms), "ready": self._ready.is_set()}

    async def _run(self) -> None:
        """Start, set `_ready`, and serve. Never returns."""
        raise NotImplementedError

    async def _serve(self) -> None:
        try:
            await self._run()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            log.critical("%s %d ends: %r", self.role, self._index, error, exc_info=True)
            self._surroundings.end_process()
            raise

    async def _patiently(self, action: Callable[[], Awaitable[T]]) -> T:
        """The action's result, however long storage is away."""
        while True:
            try:
                return await action()
            except StorageUnavailable as error:
                log.warning("%s %d waits for storage: %s", self.role, self._index, error)
                await asyncio.sleep(RETRY_S)


class Server(Process):
    """An actor that serves links. Subclasses say what they recover and run."""

    def __init__(self, config: Config, index: int, surroundings: ProcessContext = REAL) -> None:
        super().__init__(config, index, surroundings)
        self._address = NOWHERE
        self._links: LinkEnd

    # -- What other actors call. ---------------------------------------------------------------------------------------
    async def exchange(self, session: str, seq: int, batch: bytes) -> bytes:
        """The link; see engine.core.link. Waits while the actor starts."""
        await self._started()
        return await self._links.exchange(session, seq, batch)

    async def address(self) -> Address:
        """Where actors of this node may connect instead; see engine.actors.direct. Waits while the actor starts."""
        await self._started()
        return self._address

    async def _started(self) -> None:
        """Wait until it serves."""
        self.begin()
        if not self._ready.is_set():
            await self._ready.wait()

    # -- For subclasses to implement. ----------------------------------------------------------------------------------
    async def _recover(self) -> str:
        """Fence older incarnations, rebuild the state; returns what the log says about it. May wait for storage for ever."""
        raise NotImplementedError

    def _tasks(self) -> Iterable[Coroutine[Any, Any, None]]:
        """What runs while it serves. None of them ever returns."""
        raise NotImplementedError

    # -- Start. --------------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        recovered = await self._recover()
        self._surroundings.tune_memory()
        self._address = await self._surroundings.listen(
            f"{self.role}-{self._index}", self._config.namespace, lambda: CalleeConnection(lambda: self._links, self._ready.is_set)
        )
        self._ready.set()
        log.info("%s %d serves: %s", self.role, self._index, recovered)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_clock())
            for task in self._tasks():
                tasks.create_task(task)

    async def _watch_clock(self) -> None:
        """Raises ClockSetBack, also when the clock was set forward before, and what was done meanwhile lies in the future now."""
        while True:
            await asyncio.sleep(_CLOCK_LOOK_S)
            back_ms = self._latest_ms - self._now_ms()
            if back_ms > STEP_BACK_MS:
                raise ClockSetBack(f"the wall clock was set back by {back_ms} ms")
