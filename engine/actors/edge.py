"""The edge actor: a uvicorn server in the actor's own event loop, and the links that feed it.

    clients <--> uvicorn, Starlette, WebSockets <--> Gateway <--> LinkCaller per shard and scheduler

Start, also after a crash: read the slot map and which tokens are revoked, open the links, then bind the port (edges of one machine share
it) or take over the socket of the process before (`engine.actors.kept_listener`), and serve. Nothing else is recovered: clients reconnect
with their cursors, publishers repeat. When one task ends, the process ends, and Ray starts the next incarnation. One that runs on
beside its successor ends (`engine.actors.incarnation`).

Two ends on purpose. `drain`, when the engine stops: everything is closed at once, with a hint when to come back. `hand_over`, while
other edges serve:

    serving    --hand_over-->                     leaving    the kernel drops requests for new connections, which other edges then get;
                                                             handshakes under way are accepted
    leaving    --`_HANDSHAKES_S`-->               spreading  the port is closed; connections are closed evenly over `drain_spread_ms`; a
                                                             request is answered, and its HTTP connection closed with the response
    spreading  --no connection, no open request-> left       idle HTTP connections are closed; `stats` says so. The controller ends an edge
                                                             that is to leave for good, before Ray starts a process that nobody wants
    left       --`_LEFT_S`-->                     ended      the process ends, and Ray starts the next

A crash in any of them is a crash of an edge: clients and publishers repeat, at other edges.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final
from uuid import uuid4

from redis.asyncio import Redis
from redis.exceptions import RedisError
from starlette.applications import Starlette

from engine.actors.actor_process import REAL, RETRY_S, Process, ProcessContext
from engine.actors.carrier import find_actor
from engine.actors.controller_calls import ControllerCalls
from engine.actors.edge_links import EdgeLinks
from engine.actors.incarnation import Incarnation
from engine.actors.kept_listener import KeptListener
from engine.api.actor_feature import EdgeAnswer
from engine.api.edge_feature import CallActor, EdgeFeature, EdgePorts
from engine.api.operating import EngineControls
from engine.auth.tokens import Authenticator
from engine.config import Config
from engine.core.model.routing import RoutingTable
from engine.core.shard.slow_connections import SlowConnection
from engine.errors import StorageUnavailable, Unavailable
from engine.gateway.gateway import Gateway
from engine.gateway.metrics import EdgeMetrics
from engine.gateway.ports import EdgeContext
from engine.publish.message_ids import MessageIds
from engine.routes import FEATURES, EdgeServices, app
from engine.store.broadcast_stream import BroadcastLog
from engine.store.outcome_stream import OutcomeWriter
from engine.store.sealed_config import SealedConfig
from engine.store.slot_map import assumed_routing_table
from engine.store.stores import connect_each
from engine.store.tenant_usage import TenantUsage
from engine.transports import http_server
from engine.transports.http_protocol import HttpProtocol
from engine.transports.ray_requests import RayRequests

log = logging.getLogger(__name__)

_CACHE_S: Final = 0.5
"""Status and readiness may be requested at any rate; the answer is at most this old."""

_CACHED_MAX: Final = 1000
"""Answers, one for each tenant that asks; then all are forgotten, which costs a call each."""

_STATUS_TIMEOUT_S: Final = 5.0

_LEFT_S: Final = 1.0
"""For the controller, which looks every 0.1 s, to end an edge that has left."""

_HANDSHAKES_S: Final = 0.5
"""For TCP handshakes under way when an edge hands over: above the round trips of all but satellite links."""


def wall_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def clock() -> int:
    """Milliseconds that never step."""
    return time.monotonic_ns() // 1_000_000


class Edge(Process):
    """One edge. Its name, index and configuration are the same in every incarnation.

    Args:
        config: the engine's settings, `redis_url` filled in; Ray gives them sealed.
        port: to listen on; 0 picks a free one, which `stats` returns.
        context: the ports of its process.
    """

    role: ClassVar[str] = "edge"

    def __init__(self, config: Config | SealedConfig, index: int, port: int, context: ProcessContext = REAL) -> None:
        super().__init__(config, index, context)
        self._port = port
        self._cache: dict[str, tuple[float, Any]] = {}
        self._leaving: asyncio.Task[None] | None = None
        self._releasing: asyncio.Task[None] | None = None
        self._left = False
        self._controller = ControllerCalls(lambda: find_actor("controller", self._config.namespace), _STATUS_TIMEOUT_S)
        self._listener: KeptListener
        self._redis: Redis  # the first store
        self._all_redis: list[Redis]
        self._links: EdgeLinks
        self._outcomes: OutcomeWriter | None = None
        self._gateway: Gateway
        self._features: Sequence[EdgeFeature]
        self._server: http_server.EdgeServer
        self._ray_requests: RayRequests

    # -- Called by other actors. -------------------------------------------------------------------------------------------
    async def stats(self) -> dict[str, Any]:
        """Plain numbers; cheap."""
        base = {**self._vitals(), "port": self._port}
        if not self._ready.is_set():
            return base
        links_open = all(link.open for link in self._links.links.values())
        serving = links_open and self._leaving is None
        return {
            **base,
            "ready": serving,
            "draining": self._leaving is not None,
            "left": self._left,
            "link_calls": self._links.calls,
            "links": self._links.carriers(),
            "slots_versions": [slot_map.version for slot_map in self._gateway.slots.maps],
            **self._gateway.stats(),
            **{feature.name: feature.stats() for feature in self._features if feature.stats is not None},
            **{name: count for feature in self._features if feature.counts is not None for name, count in feature.counts().items()},
        }

    async def connections_of(self, tenant: str, proof: bytes = b"") -> int:
        """Open connections of this tenant."""
        self._lock.check("connections_of", proof)
        return self._gateway.connections_of[tenant] if self._ready.is_set() else 0

    async def request(self, tenant: str, user: str, method: str, target: str, body: bytes) -> EdgeAnswer:
        """The answer to a request of a Ray job. Every job may call; `engine.transports.ray_requests` says what it may.

        Raises:
            Unavailable: this edge does not serve now; another one may.
        """
        if not self._ready.is_set() or self._leaving is not None:
            raise Unavailable("this edge does not serve now")
        return await self._ray_requests.answer(tenant, user, method, target, body)

    async def ingest(self, tenant: str, path: str, bodies: list[bytes], proof: bytes = b"") -> list[EdgeAnswer]:
        """The answers to requests of a feature's actor, one after another; none after a 429 or a 5xx.

        Raises:
            NotProven: it is not the engine that asks.
            Unavailable: this edge does not serve now; another one may.
        """
        self._lock.check("ingest", proof)
        if not self._ready.is_set() or self._leaving is not None:
            raise Unavailable("this edge does not serve now")
        return await self._ray_requests.ingest(tenant, path, bodies)

    async def drain(self, proof: bytes = b"") -> None:
        """Accept no connection, close those open with a hint when to come back, answer open requests; within `drain_ms`."""
        self._lock.check("drain", proof)
        if not self._ready.is_set():
            return
        self._listener.release()
        self._stop_listening()
        deadline = clock() + self._config.drain_ms
        await self._gateway.drain()
        await self._record_the_rest()
        await self._close_server(deadline)

    async def hand_over(self, proof: bytes = b"") -> int:
        """Begin to leave the clients to other edges, which must serve; then the process ends. Returns how many connections there are."""
        self._lock.check("hand_over", proof)
        if not self._ready.is_set():
            return 0
        if self._leaving is None:
            self._leaving = asyncio.ensure_future(self._hand_over())
        return len(self._gateway.connections)

    async def release(self, count: int, proof: bytes = b"") -> None:
        """Begin to let the oldest `count` connections go to other edges, one of which has joined (`Gateway.release`)."""
        self._lock.check("release", proof)
        if self._ready.is_set() and self._leaving is None and (self._releasing is None or self._releasing.done()):
            self._releasing = asyncio.ensure_future(self._gateway.release(count))

    async def _hand_over(self) -> None:
        try:
            log.info("edge %d hands %d connections over", self._index, len(self._gateway.connections))
            self._listener.release()  # first: no next process may get a socket that drops requests
            http_server.drop_new(self._listener.socket)
            await asyncio.sleep(_HANDSHAKES_S)
            self._stop_listening()
            for connection in list(self._server.server_state.connections):
                if isinstance(connection, HttpProtocol):
                    connection.retire()
            await self._gateway.hand_over()
            await self._record_the_rest()
            await self._close_server(clock() + self._config.drain_ms)
            self._left = True
            await asyncio.sleep(_LEFT_S)
        finally:
            self._context.end_process()

    def _stop_listening(self) -> None:
        self._listener.stop()
        for server in self._server.servers:
            server.close()

    async def _record_the_rest(self) -> None:
        for feature in reversed(self._features):  # a later one may use earlier ones
            if feature.drain is not None:
                await feature.drain()
        try:
            if self._outcomes is not None:
                await self._outcomes.flush()
        except StorageUnavailable as error:
            log.warning("edge %d: outcomes are lost: %s", self._index, error)

    async def _close_server(self, deadline: int) -> None:
        """Close idle connections, and the others when their requests are answered; returns at the deadline at the latest."""
        self._server.should_exit = True
        while self._server.server_state.connections and clock() < deadline:
            await asyncio.sleep(RETRY_S / 2)

    # -- Start. ------------------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        self._all_redis = connect_each(self._context.connect, self._config)
        self._redis = self._all_redis[0]
        incarnation = Incarnation(self._credentials.name, self._redis)
        await self._retry_storage(incarnation.begin)
        self._links = EdgeLinks(self._config, self._credentials, self._all_redis, self._context)
        self._gateway = self._make_gateway(await self._retry_storage(lambda: assumed_routing_table(self._all_redis)))
        if (outcomes := self._gateway.shard_client.outcomes) is not None:
            self._outcomes = OutcomeWriter(self._redis, self._config, self._gateway.incarnation, outcomes)
        authenticator = Authenticator(self._config, self._gateway.revoked)
        await authenticator.prepare()
        usage = TenantUsage(*self._all_redis)
        application = self._app(authenticator, usage)
        for feature in self._features:
            if feature.prepare is not None:
                await self._retry_storage(feature.prepare)
        self._ray_requests = RayRequests(application, authenticator, self._gateway, self._config)
        self._server = http_server.build(application, self._config, application.state.fast_paths, self._listening)
        async with asyncio.TaskGroup() as tasks:
            for task in (
                self._links.run(self._gateway),
                self._gateway.run(),
                incarnation.watch(self._config.health_ms),
                *(feature.run() for feature in self._features if feature.run is not None),
                authenticator.run(),
                self._gateway.storage.follow(*self._all_redis),
                self._gateway.tenant_quotas.follow(usage),
            ):
                tasks.create_task(task)
            if self._outcomes is not None:
                tasks.create_task(self._outcomes.run())
            tasks.create_task(self._listen())

    def _app(self, authenticator: Authenticator, usage: TenantUsage) -> Starlette:
        gateway, config = self._gateway, self._config
        ports = EdgePorts(
            config,
            gateway,
            authenticator,
            self._redis,
            self._all_redis,
            self._find_actor,
            f"edge-{self._index}",
            self._status,
            self._slow_clients,
        )
        self._features = [on_edge(ports) for on_edge in FEATURES]
        controls = EngineControls(self._status, self._connections_of, self._checks, usage, self._ask)
        return app(EdgeServices(gateway, authenticator, config, controls, self._features))

    def _make_gateway(self, slots: RoutingTable) -> Gateway:
        ids = MessageIds()
        return Gateway(
            self._config,
            slots,
            EdgeContext(f"e{self._index}-{uuid4().hex[:8]}", wall_ms, clock, ids, ids.short),
            self._links,
            BroadcastLog(self._redis, self._config),
            EdgeMetrics(f"edge-{self._index}", lambda: self._links.calls, self._links.carriers),
        )

    async def _listen(self) -> None:
        self._context.tune_memory()
        address = f"{self._config.host}:{self._port}" if self._port else ""
        self._listener = KeptListener(address, partial(http_server.bind, self._config, self._port))  # not before clients can be served
        listener = self._listener.socket
        self._port = listener.getsockname()[1]
        await self._server.serve(sockets=[listener])
        if not self._gateway.draining:
            raise RuntimeError("the HTTP server ended by itself")

    def _listening(self) -> None:
        self._ready.set()
        log.info("edge %d listens on %s:%d", self._index, self._config.host, self._port)

    # -- Called by the routes. ---------------------------------------------------------------------------------------------
    async def _status(self) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = await self._cached("status", lambda: self._ask("status"))
        return answer

    async def _connections_of(self, tenant: str) -> int:
        return int(await self._cached(f"connections of {tenant}", lambda: self._ask("connections_of", tenant)))

    async def _slow_clients(self, count: int) -> Sequence[SlowConnection]:
        answer: Sequence[SlowConnection] = await self._cached("slow clients", lambda: self._ask("slow_clients", count))
        return answer

    def _find_actor(self, role: str, what: str, storage: str) -> CallActor:
        calls = ControllerCalls(partial(find_actor, f"{role}-0", self._config.namespace), _STATUS_TIMEOUT_S, what, storage)

        async def ask(*question: Any) -> Any:
            return await calls.call("ask", *question, proof=self._lock.proof("ask"))

        return ask

    async def _ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the controller."""
        return await self._controller.call(method, *arguments, proof=self._lock.proof(method))

    async def _checks(self) -> Mapping[str, bool]:
        links = {name: link.open for name, link in self._links.links.items()}
        return {**links, "storage": await self._cached("storage", self._ping)}

    async def _ping(self) -> bool:
        """Whether storage serves anybody. While it does not serve all, the edge is degraded (`StorageState.away`)."""
        answers = await asyncio.gather(*(client.ping() for client in self._all_redis), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, RedisError | OSError):
                raise answer
        return not all(isinstance(answer, BaseException) for answer in answers)

    async def _cached(self, name: str, fetch: Any) -> Any:
        at, answer = self._cache.get(name, (0.0, None))
        if answer is None or time.monotonic() - at > _CACHE_S:
            # Requests that arrive meanwhile await the same answer.
            if len(self._cache) >= _CACHED_MAX:
                self._cache.clear()
            answer = asyncio.ensure_future(fetch())
            self._cache[name] = (time.monotonic(), answer)
        return await asyncio.shield(answer)
