"""The edge actor: a uvicorn server in the actor's own event loop, and the links that feed it.

    clients <--> uvicorn, Starlette, WebSockets <--> Gateway <--> LinkCaller per shard and scheduler

Start, also after a crash: bind the port (edges of one machine share it), read the slot map, open the links, serve. Nothing is
recovered: clients reconnect with their cursors, publishers repeat. The end of any part ends the process, and Ray starts the
next incarnation.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from uuid import uuid4

import ray
from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import RedisError
from starlette.applications import Starlette

from engine import server
from engine.actors.direct import ActorPeer, find_actor
from engine.actors.link import LinkCaller
from engine.actors.process import tune_memory, vitals
from engine.auth import Authenticator
from engine.config import Config
from engine.core import batch
from engine.core.slots import SlotMap
from engine.errors import StorageUnavailable, Unavailable
from engine.gateway import Gateway
from engine.ids import IdSource
from engine.metrics import EdgeMetrics
from engine.routes import app
from engine.signals import Signals
from engine.store.broadcasts import BroadcastLog
from engine.store.placement import placed
from engine.store.redis import connect
from engine.store.signals import SignalStore

log = logging.getLogger(__name__)

_RETRY_S: Final = 0.1
"""Pause before a peer or storage is asked again."""

_SLOTS_POLL_S: Final = 5.0
"""How often the slot map is read without a reason: one read of about 3 KiB."""

_CACHE_S: Final = 1.0
"""Status and readiness are asked for by anyone at any rate; the answer is at most this old."""

_STATUS_TIMEOUT_S: Final = 5.0


def wall_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def clock() -> int:
    """Milliseconds that never step."""
    return time.monotonic_ns() // 1_000_000


class Edge:
    """One edge. Its name, index and configuration are the same in every incarnation.

    Args:
        config: the engine's settings, `redis_url` filled in.
        index: which edge it is.
        port: to listen on; 0 picks a free one, which `stats` tells.
    """

    def __init__(self, config: Config, index: int, port: int) -> None:
        logging.basicConfig(level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._config = config
        self._index = index
        self._port = port
        self._started_ms = wall_ms()
        self._serving: asyncio.Task[None] | None = None
        self._ready = False
        self._links: dict[str, LinkCaller] = {}
        self._slots_wanted = asyncio.Event()
        self._cache: dict[str, tuple[float, Any]] = {}
        self._tasks: asyncio.TaskGroup
        self._redis: Redis
        self._gateway: Gateway
        self._signals: Signals
        self._server: server.EdgeServer

    # -- What other actors call. -------------------------------------------------------------------------------------------
    async def stats(self) -> dict[str, Any]:
        """Plain numbers; cheap. The first call starts the edge: Ray gives an actor no loop before."""
        if self._serving is None:
            self._serving = asyncio.ensure_future(self._serve())
        base = {**vitals("edge", self._index, self._started_ms), "ready": self._ready, "port": self._port}
        if not self._ready:
            return base
        links_open = all(link.open for link in self._links.values())
        return {**base, "ready": links_open, "link_calls": self._link_calls(), **self._gateway.stats()}

    async def drain(self) -> None:
        """Take nobody new, send everybody away with a hint when to come back, answer what was asked; within `drain_ms`."""
        if not self._ready:
            return
        for listener in self._server.servers:
            listener.close()
        deadline = clock() + self._config.drain_ms
        await self._gateway.drain()
        await self._signals.drain()
        self._server.should_exit = True
        while self._server.server_state.connections and clock() < deadline:
            await asyncio.sleep(_RETRY_S / 2)

    # -- Start. ------------------------------------------------------------------------------------------------------------
    async def _serve(self) -> None:
        try:
            listener = server.bind(self._config, self._port)
            self._port = listener.getsockname()[1]
            self._redis = connect(self._config)
            authenticator = Authenticator(self._config)
            await authenticator.prepare()
            self._gateway = self._make_gateway(await self._first_slots())
            application = self._app(authenticator)
            self._server = server.build(application, self._config, application.state.short_ways)
            async with asyncio.TaskGroup() as self._tasks:
                self._open_links()
                self._tasks.create_task(self._slots_loop())
                self._tasks.create_task(self._gateway.run())
                self._tasks.create_task(self._signals.run())
                self._tasks.create_task(authenticator.run())
                self._tasks.create_task(self._listen(listener))
        except BaseException as error:
            # Half an edge would be worse than none: let Ray start a new incarnation.
            if not isinstance(error, asyncio.CancelledError):
                log.critical("edge %d ends: %r", self._index, error, exc_info=True)
                os._exit(1)
            raise

    def _app(self, authenticator: Authenticator) -> Starlette:
        gateway = self._gateway
        self._signals = Signals(self._config, SignalStore(self._redis), gateway.incarnation, clock, gateway.metrics)
        return app(gateway, authenticator, self._config, self._status, self._checks, self._signals)

    def _make_gateway(self, slots: SlotMap) -> Gateway:
        return Gateway(
            self._config,
            slots,
            incarnation=f"e{self._index}-{uuid4().hex[:8]}",
            wall_ms=wall_ms,
            clock=clock,
            send_shard=self._send_shard,
            send_scheduler=self._send_scheduler,
            need_slots=lambda _version: self._slots_wanted.set(),
            new_id=IdSource(),
            metrics=EdgeMetrics(f"edge-{self._index}", self._link_calls),
            broadcasts=BroadcastLog(self._redis, self._config),
        )

    def _link_calls(self) -> int:
        return sum(link.calls for link in self._links.values())

    async def _listen(self, listener: socket.socket) -> None:
        tune_memory()
        serving = asyncio.ensure_future(self._server.serve(sockets=[listener]))
        while not (self._server.started or serving.done()):
            await asyncio.sleep(0.01)
        self._ready = not serving.done()
        log.info("edge %d listens on %s:%d", self._index, self._config.host, self._port)
        await serving
        if not self._gateway.draining:
            raise RuntimeError("the HTTP server ended by itself")

    # -- Links. ------------------------------------------------------------------------------------------------------------
    def _open_links(self) -> None:
        """A link to every shard of the slot map and to every scheduler, as far as there is none yet."""
        gateway, schedulers = self._gateway, self._config.schedulers
        shards = sorted(set(gateway.slots.owners))
        for shard in shards:
            if f"shard-{shard}" not in self._links:
                on_records, on_reset = partial(gateway.from_shard, shard), partial(gateway.shard_reset, shard)
                self._open_link(f"shard-{shard}", batch.from_shard, on_records, on_reset, len(shards), self._config.link_pacing_ms)
        for scheduler in range(schedulers):
            if f"scheduler-{scheduler}" not in self._links:
                on_records, on_reset = partial(gateway.from_scheduler, scheduler), partial(gateway.scheduler_reset, scheduler)
                self._open_link(
                    f"scheduler-{scheduler}", batch.scheduler_to_edge, on_records, on_reset, schedulers, self._config.link_timer_pacing_ms
                )

    def _open_link(self, peer: str, decoder: Any, on_records: Any, on_reset: Any, peers: int, pacing_ms: float) -> None:
        link = LinkCaller(
            ActorPeer(peer, self._config.namespace),
            f"edge-{self._index}",
            decoder,
            self._config,
            on_records=on_records,
            on_reset=on_reset,
            peers=peers,
            pacing_ms=pacing_ms,
        )
        self._links[peer] = link
        self._tasks.create_task(link.run())

    def _send_shard(self, index: int, record: Struct, eager: bool) -> None:
        link = self._links.get(f"shard-{index}")
        if link is not None:
            link.send(record, eager=eager)

    def _send_scheduler(self, index: int, record: Struct) -> None:
        self._links[f"scheduler-{index}"].send(record)

    # -- The slot map. -----------------------------------------------------------------------------------------------------
    async def _first_slots(self) -> SlotMap:
        while True:
            try:
                return await placed(self._redis)
            except StorageUnavailable as error:
                log.warning("edge %d waits for storage: %s", self._index, error)
                await asyncio.sleep(_RETRY_S)

    async def _slots_loop(self) -> None:
        """Read the slot map when a shard speaks of a newer one, and now and then: a map may have grown by a shard."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SLOTS_POLL_S):
                    await self._slots_wanted.wait()
            self._slots_wanted.clear()
            try:
                slots = await placed(self._redis)
            except StorageUnavailable as error:
                log.warning("edge %d keeps its slot map: %s", self._index, error)
            else:
                if slots.version > self._gateway.slots.version:
                    self._gateway.set_slots(slots)
                    self._open_links()
            await asyncio.sleep(_RETRY_S)

    # -- What the routes ask. ----------------------------------------------------------------------------------------------
    async def _status(self) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = await self._cached("status", self._ask_controller)
        return answer

    async def _ask_controller(self) -> Mapping[str, Any]:
        try:
            controller = await find_actor("controller", self._config.namespace)
            answer: Mapping[str, Any] = await asyncio.wait_for(controller.status.remote(), _STATUS_TIMEOUT_S)
            return answer
        except (TimeoutError, ValueError, ray.exceptions.RayError) as error:
            raise Unavailable("the controller does not answer") from error

    async def _checks(self) -> Mapping[str, bool]:
        links = {name: link.open for name, link in self._links.items()}
        return {**links, "storage": await self._cached("storage", self._ping)}

    async def _ping(self) -> bool:
        try:
            return bool(await self._redis.ping())
        except (RedisError, OSError):
            return False

    async def _cached(self, name: str, ask: Any) -> Any:
        at, answer = self._cache.get(name, (0.0, None))
        if answer is None or time.monotonic() - at > _CACHE_S:
            # Those who come while it is asked share the question.
            answer = asyncio.ensure_future(ask())
            self._cache[name] = (time.monotonic(), answer)
        return await asyncio.shield(answer)
