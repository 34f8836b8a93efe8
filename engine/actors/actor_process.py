"""Base classes of the engine's actors: the ports of their process, their start and their end, their vital statistics.

An actor gets everything that is not computation from its `ProcessContext`: clocks, the connection to Redis, the handles of other
actors, names of link sessions, and the way its process ends. The simulator passes others.

States of a `Process`:
    created    nothing runs: whoever makes it calls `begin` (`ray_actors.ray_side`)
    starting   `_serve` runs; calls wait, `stats` returns `ready: False`, and `locked` until the secrets of its configuration can be read
               (`engine.actors.engine_key`)
    serving    ready; its tasks never return
    ended      a task failed, or the epoch was lost: the process ends itself. Half an actor would be worse than none, and the next
               incarnation recovers everything

Clocks. Promises in wall-clock time (`ttl`, `at`) are kept by the wall clock. A step forward makes things due or expired, as it should,
and a retry early. A step back would stop everything that the cores measure by it, so a process that detects one ends, and the next one
starts with the new time. Steps below `STEP_BACK_MS` only delay things by as much.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, TypeVar
from uuid import uuid4

import psutil
import ray
import redis.asyncio as redis

from engine.actors import warm_processes
from engine.actors.carrier import NOWHERE, ActorPeer, Peer, listen
from engine.actors.engine_key import ConfigLock
from engine.actors.socket_carrier import Address, CalleeConnection, ServedBy
from engine.actors.tcp_carrier import LinkCredentials
from engine.config import Config
from engine.core.model.formats import FORMATS
from engine.errors import ClockSetBack, FormatsTooNew, StorageUnavailable, Unavailable
from engine.store.redis_client import connect
from engine.store.sealed_config import SealedConfig

if TYPE_CHECKING:
    from engine.actors.link import LinkServer

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S: Final = 0.1
"""Pause before storage is asked again after it failed."""

USERS_RETRY_S: Final = 0.03
"""The same where users wait for the answer: Redis is started again in a tenth of a second."""

TOO_OLD_S: Final = 10.0
"""Before a process ends that starts with code older than the data: Ray starts the next one at once, and nothing changes until somebody
installs another version on the node."""

STEP_BACK_MS: Final = 1000
"""A wall clock set back by more than this ends the process. Time services slew smaller corrections."""

_CLOCK_LOOK_S: Final = 1.0

_SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")


def vitals(role: str, index: int, started_ms: int) -> dict[str, Any]:
    """The part of `stats()` that all actors share; about 30 us.

    `cpu_s` is the process's CPU time so far, all threads: its growth per second is the share of a core; `queued_s` is for how long the
    calling thread has been ready to run without a core; `rss_bytes` is its resident memory; `has_place`: whether it takes a place of its
    node, or started there without one; `spares`: processes of its node that stand ready for an actor (`engine.actors.warm_processes`);
    `formats`: what its code reads (`engine.core.model.formats`).
    """
    return {
        "role": role,
        "index": index,
        "pid": os.getpid(),
        "node": ray.util.get_node_ip_address(),  # type: ignore[no-untyped-call]
        "node_id": _node_id(),
        "has_place": _has_place(),
        "spares": warm_processes.count(),
        "formats": FORMATS,
        "started_ms": started_ms,
        "cpu_s": time.process_time(),
        "queued_s": _queued_s(),
        "rss_bytes": _own_process().memory_info().rss,
    }


def _queued_s() -> float:
    """Of this thread, from the second number that the kernel's `schedstat` has (Documentation/scheduler/sched-stats.rst); 0 without it."""
    try:
        return int(_SCHEDSTAT.read_bytes().split()[1]) / 1e9
    except OSError:
        return 0.0


@cache
def _own_process() -> psutil.Process:
    return psutil.Process()  # not of the module: the process that loaded it may have been forked since


@cache
def _has_place() -> bool:
    try:
        return bool(ray.get_runtime_context().get_assigned_resources())  # type: ignore[no-untyped-call]
    except AssertionError:  # Ray's, in a process that it did not start and gave no place
        return True


@cache
def _node_id() -> str:
    return str(ray.get_runtime_context().get_node_id())


def monotonic_ms() -> float:
    """Milliseconds of a clock that never steps."""
    return time.monotonic() * 1000


def session_name() -> str:
    """Unique among all link sessions of all incarnations."""
    return uuid4().hex


def tune_memory() -> None:
    """Exclude what is allocated by now from collections of garbage: it lives as long as the process.

    Nothing is collected here: with 200 000 users that took 0.9 s, and users wait for the actor (`engine.actors.ray_actors` did before).
    """
    gc.freeze()


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Collect no garbage while the block makes what lives as long as the process, and exclude that from later collections.

    Looking for garbage among 200 000 users took 0.6 of the 2.2 s of CPU in which a shard recovers them.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def end_process() -> NoReturn:
    """End this process at once, without any cleanup: what is not in storage is lost, as in a crash."""
    os._exit(1)


@dataclass(frozen=True)
class ProcessContext:
    """The ports of an actor's process. The defaults are those of production."""

    wall_ns: Callable[[], int] = time.time_ns  # since the epoch; may step
    monotonic_ms: Callable[[], float] = monotonic_ms
    session_name: Callable[[], str] = session_name
    connect: Callable[[Config], redis.Redis] = connect
    peer: Callable[[str, LinkCredentials], Peer] = ActorPeer  # (name, credentials of this one) -> another actor
    listen: Callable[[Config, LinkCredentials, ServedBy], Awaitable[Address]] = listen
    tune_memory: Callable[[], None] = tune_memory
    lasting: Callable[[], contextlib.AbstractContextManager[None]] = lasting  # around what a process makes once
    vitals: Callable[[str, int, int], dict[str, Any]] = vitals
    end_process: Callable[[], None] = end_process


REAL: Final = ProcessContext()


class Process:
    """An actor's start, its retries while storage is away, and its end. Subclasses implement `_run`.

    Args:
        config: the engine's settings; Ray gives them sealed.
        index: number among the actors of its role; the same in every incarnation.
        context: the ports of its process.
    """

    role: ClassVar[str]

    def __init__(self, config: Config | SealedConfig, index: int, context: ProcessContext = REAL) -> None:
        self._lock = ConfigLock(config)
        self._config = self._lock.public  # with its secrets from `_run` on
        logging.basicConfig(level=self._config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._index = index
        self._context = context
        self._latest_ms = 0  # the latest time that was returned
        self._started_ms = self._now_ms()
        self._serving: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._credentials: LinkCredentials

    def _now_ms(self) -> int:
        """Milliseconds since the epoch, rounded down, so that no timer is due early."""
        now_ms = self._context.wall_ns() // 1_000_000
        self._latest_ms = max(self._latest_ms, now_ms)
        return now_ms

    async def unlock(self, key: bytes) -> None:
        """Take the engine key: called by the controller of an actor that is `locked`. Raises NotProven when it is another key."""
        self._lock.unlock(key)

    # -- Start and end. ------------------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Start serving. Call it once, from the event loop."""
        self._serving = asyncio.ensure_future(self._serve())

    def _vitals(self) -> dict[str, Any]:
        """The common part of `stats()`."""
        return {
            **self._context.vitals(self.role, self._index, self._started_ms),
            "ready": self._ready.is_set(),
            "locked": self._lock.locked,
        }

    async def _run(self) -> None:
        """Start, set `_ready`, and serve. Never returns."""
        raise NotImplementedError

    async def _serve(self) -> None:
        try:
            self._config = await self._lock.config()
            prove = self._lock.proof if self._lock.key else None
            self._credentials = LinkCredentials(self._config, f"{self.role}-{self._index}", self._context.connect, prove)
            await self._run()
        except asyncio.CancelledError:
            raise
        except FormatsTooNew as error:
            log.critical("%s %d ends: %s", self.role, self._index, error)
            if not self._ready.is_set():
                await asyncio.sleep(TOO_OLD_S)
            self._context.end_process()
            raise
        except BaseException as error:
            log.critical("%s %d ends: %r", self.role, self._index, error, exc_info=True)
            self._context.end_process()
            raise

    async def _retry_storage(self, action: Callable[[], Awaitable[T]]) -> T:
        """The action's result; repeats the action, without limit, while storage is away."""
        while True:
            try:
                return await action()
            except StorageUnavailable as error:
                log.warning("%s %d waits for storage: %s", self.role, self._index, error)
                await asyncio.sleep(USERS_RETRY_S)


class Server(Process):
    """An actor that serves links. Subclasses implement `_recover` and `_tasks`."""

    def __init__(self, config: Config | SealedConfig, index: int, context: ProcessContext = REAL) -> None:
        super().__init__(config, index, context)
        self._address = NOWHERE
        self._links: LinkServer

    # -- What other actors call. ---------------------------------------------------------------------------------------
    async def exchange(self, session: str, seq: int, batch: bytes, proof: bytes = b"") -> bytes:
        """One exchange of a link; see `engine.core.wire.link`. Waits while the actor starts.

        Raises:
            NotProven: the proof is not that of the session.
        """
        await self._started()
        self._lock.check(session, proof)
        return await self._links.exchange(session, seq, batch)

    async def address(self) -> Address:
        """Where it listens for links; see `engine.actors.carrier`. Waits while the actor starts.

        Raises:
            Unavailable: who asked has given up by now. Ray would keep the call, and let no more than a thousand in beside each other.
        """
        try:
            async with asyncio.timeout((self._config.link_timeout_ms + self._config.link_park_ms) / 1000):
                await self._started()
        except TimeoutError:
            raise Unavailable(f"{self.role} {self._index} is starting") from None
        return self._address

    async def _started(self) -> None:
        """Wait until the actor is ready."""
        if not self._ready.is_set():
            await self._ready.wait()

    # -- For subclasses to implement. ----------------------------------------------------------------------------------
    async def _recover(self) -> str:
        """Fence older incarnations and rebuild the state; returns a summary for the log. Waits while storage is away."""
        raise NotImplementedError

    def _tasks(self) -> Iterable[Coroutine[Any, Any, None]]:
        """The tasks of the serving state. None of them returns."""
        raise NotImplementedError

    # -- Start. --------------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        recovered = await self._recover()
        self._context.tune_memory()
        self._address = await self._context.listen(
            self._config,
            self._credentials,
            lambda vouched: CalleeConnection(lambda: self._links, self._ready.is_set, vouched),
        )
        self._ready.set()
        log.info("%s %d serves: %s", self.role, self._index, recovered)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_clock())
            for task in self._tasks():
                tasks.create_task(task)

    async def _watch_clock(self) -> None:
        """Raises ClockSetBack when the clock is behind a time it returned before, also when that time was wrong."""
        while True:
            await asyncio.sleep(_CLOCK_LOOK_S)
            back_ms = self._latest_ms - self._now_ms()
            if back_ms > STEP_BACK_MS:
                raise ClockSetBack(f"the wall clock was set back by {back_ms} ms")
