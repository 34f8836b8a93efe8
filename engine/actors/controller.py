"""The controller actor: creates the other actors, checks their health, replaces those that hang, returns the engine's status.

It has no state of its own: actors are found by their names, the slot map is in Redis. When it dies, Ray restarts it and it finds the
running actors; messages flow without it. A round calls `stats()` of every actor, every `health_ms`, and once more when the status is
asked for and the last round is older than `FRESH_MS`. `engine.core.controller.health` decides what the results mean.

Repairs: Ray restarts a process that died, under the same handle; a process that runs and does not answer is killed here, so that Ray
restarts it; an actor that Ray has given up is created anew here.

A controller whose node is cut off from the others sees all of them silent, and Ray carries out what it asked for as soon as the cut is
over. So it kills nobody in a round in which storage did not answer, and silence counts from the next answer of storage. Meanwhile Ray may
have started a successor elsewhere: each controller leaves a fencing epoch in storage, and one that finds another's there ends itself.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import ray
from ray.exceptions import ActorDiedError, RayError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from engine import __version__
from engine.actors.actor_process import REAL, RETRY_S, ProcessContext
from engine.actors.edge import Edge
from engine.actors.engine_key import ConfigLock
from engine.actors.scheduler import Scheduler
from engine.actors.shard import Shard
from engine.config import Config
from engine.core.controller.health import HealthWatch, LatencyWindow, merge, totals
from engine.errors import ConfigError, Fenced, StorageUnavailable
from engine.store.epoch import controller_epoch, take_control
from engine.store.legacy_ids import mark_upgrade
from engine.store.redis_client import claim_data_epoch, display_url
from engine.store.redis_lease import claim_redis, end_lease, renew_lease
from engine.store.sealed_config import SealedConfig
from engine.store.slot_map import claim_slot_map
from engine.store.snapshots import SnapshotSchedule

log = logging.getLogger(__name__)

CONTROLLER: Final = "controller"
"""Name of the controller actor in the engine's namespace."""

FRESH_MS: Final = 400
"""Age of a round beyond which the status starts another one. With the edges' cache of the status, counters are shown within a second."""

_ROLES: Final = ("shard", "scheduler", "edge")
_ANSWER_TIMEOUTS: Final = 4  # a round gives up on an answer after this part of the health timeout
_LATENCY_WINDOW_MS: Final = 10_000  # the past that the quantiles of the status cover
_LEASE_ROUNDS: Final = 5  # an engine that was killed keeps its Redis from another, on another machine, for so many
_REFRESH_TIMEOUT_S: Final = 0.5  # an actor that hangs must not hold up the status, which says so
_LATENCIES: Final = {"latency": "", "send_latency": "send_", "ack_latency": "ack_"}  # shards' histograms: prefix of their quantiles


def actor_options(config: Config, name: str, resources: dict[str, float]) -> dict[str, Any]:
    """Options of every actor of an engine: found by name, restarted without limit, calls never repeated by Ray."""
    return {
        "name": name,
        "namespace": config.namespace,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "max_task_retries": 0,
        "max_concurrency": 1000,  # parked link calls: a few per peer
        "num_cpus": 0,
        "resources": resources,
        "scheduling_strategy": "SPREAD",  # over the nodes with room; Ray's default fills one before it takes the next
        "enable_task_events": False,
    }


def remote_class(actor: type) -> Any:
    """A class for Ray's actors with the public coroutines of this one as its methods, and no others.

    Of a class itself Ray lets everyone call private methods too, and it adds `__ray_call__`, which executes what its caller sends.
    """

    def construct(self: Any, *arguments: Any, **named: Any) -> None:
        self.actor = actor(*arguments, **named)

    methods = {name: _forwarded(name) for name, _ in inspect.getmembers(actor, inspect.iscoroutinefunction) if not name.startswith("_")}
    # With `__ray_actor_class__` it looks as if Ray had added what it adds.
    made = {"__init__": construct, **methods, "__module__": actor.__module__, "__ray_actor_class__": actor}
    return ray.remote(type(actor.__name__, (), made))


def _forwarded(name: str) -> Callable[..., Awaitable[Any]]:
    async def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        return await getattr(self.actor, name)(*arguments, **named)

    return forward


class RayActors:
    """What the controller asks of Ray's control service. The simulator has one of its own."""

    def names(self, namespace: str) -> set[str]:
        """Of the actors that exist, also those that Ray is about to start again."""
        return {entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True) if entry["namespace"] == namespace}

    def create(self, given: Config | SealedConfig, role: str, index: int) -> Any:
        """The handle of the actor of this name, created when there is none."""
        config = given.public if isinstance(given, SealedConfig) else given
        options = actor_options(config, f"{role}-{index}", {f"engine_{role}": 1})
        if role == "shard":
            return remote_class(Shard).options(**options).remote(given, index)
        if role == "scheduler":
            return remote_class(Scheduler).options(**options).remote(given, index)
        return remote_class(Edge).options(**options).remote(given, index, config.port)

    def kill(self, handle: Any, *, restart: bool) -> None:
        """End the actor's process; with `restart` Ray starts the next one."""
        ray.kill(handle, no_restart=not restart)


class Controller:
    """One per engine, named `controller`. The configuration is complete: `redis_url`, `port` and `shards` are what they will be.

    Ray gives it sealed. Until it has the engine key it creates nobody and checks nobody (`engine.actors.engine_key`).

    Args:
        engine: name of the engine for its lease on Redis (`engine.store.redis_lease`); "": nobody else can have this Redis.
    """

    def __init__(
        self, given: Config | SealedConfig, context: ProcessContext = REAL, actors: RayActors | None = None, engine: str = ""
    ) -> None:
        self._given = given
        self._engine = engine
        self._lock = ConfigLock(given)
        self._config = config = self._lock.public  # with its secrets from `_create_all` on
        logging.basicConfig(level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._context = context
        self._actors = actors or RayActors()
        self._client: Redis | None = None
        self._started_ms = context.wall_ns() // 1_000_000
        self._handles: dict[tuple[str, int], Any] = {}
        self._watches = {
            (role, index): HealthWatch(role, index, config.health_timeout_ms, context.monotonic_ms())
            for role, count in zip(_ROLES, (config.shards, config.schedulers, config.edges), strict=True)
            for index in range(count)
        }
        self._drained: dict[tuple[str, int], int] = {}  # the process of an edge that was last told to leave
        self._latencies = {name: LatencyWindow(_LATENCY_WINDOW_MS, prefix) for name, prefix in _LATENCIES.items()}
        self._round: asyncio.Future[None] | None = None
        self._round_at_ms = 0.0  # when it began
        self._own = self._watch_of_self()
        self._redis: dict[str, Any] = {"url": "", "alive": False, "restarts": 0}
        self._redis_run = ""
        self._snapshots: SnapshotSchedule | None = None
        self._snapshotting: asyncio.Task[None] | None = None
        self._epoch = 0
        self._created: asyncio.Task[None] = asyncio.ensure_future(self._create_all())
        self._watching: asyncio.Task[None] = asyncio.ensure_future(self._watch())
        self._watching.add_done_callback(self._end_when_failed)

    # -- remote methods ---------------------------------------------------------------------------------------------

    async def unlock(self, key: bytes) -> Config | SealedConfig:
        """Take the engine key; returns the configuration the engine runs with, which the key opens.

        Raises:
            NotProven: it is another key: this is the controller of an engine with another Redis.
        """
        self._lock.unlock(key)
        return self._given

    async def public_config(self) -> Config:
        """The configuration the engine runs with, without secrets. Anyone may ask."""
        return self._lock.public

    async def created(self) -> None:
        """Returns when every actor is created, which does not mean that it is ready: see `status`.

        Raises:
            ConfigError: the data does not allow this configuration; nothing was created.
        """
        await asyncio.shield(self._created)

    async def status(self, fresh: bool = True, proof: bytes = b"") -> dict[str, Any]:
        """The engine as of the last round.

        Args:
            fresh: start a round when the last one began more than `FRESH_MS` ago, and wait for it, but not for actors that hang.
                Otherwise the status is up to `health_ms` old and costs the actors nothing.

        Returns:
            {"version", "ready", "shards", "schedulers", "edges", "controller", "redis", "totals"}. A row per actor is its `stats()`,
            plus `alive`, `cpu_pct` (of one core), `rss_bytes` and `restarts`. `totals` has sums, and quantiles of the recent past in
            ms: `send_p50_ms` (`p95`, `p99`) from acceptance to the first send, `ack_p50_ms` from the send to the ACK, and `p50_ms` from
            acceptance to the ACK, which includes the time in which a user was away.
        """
        self._lock.check("status", proof)
        old = self._context.monotonic_ms() - self._round_at_ms > FRESH_MS
        if fresh and old and self._round is not None and not self._watching.done():
            await asyncio.wait({self._begin_round()}, timeout=_REFRESH_TIMEOUT_S)
        rows: dict[str, list[dict[str, Any]]] = {role: [] for role in _ROLES}
        for (role, _), watch in self._watches.items():
            rows[role].append(watch.row())
        everyone = [row for of_role in rows.values() for row in of_role]
        return {
            "version": __version__,
            "ready": self._redis["alive"] and all(row["ready"] for row in everyone),
            "shards": rows["shard"],
            "schedulers": rows["scheduler"],
            "edges": rows["edge"],
            "controller": self._own.row(),
            "redis": dict(self._redis),
            "totals": {**totals(everyone), **{name: ms for window in self._latencies.values() for name, ms in window.quantiles().items()}},
        }

    async def connections_of(self, tenant: str, proof: bytes = b"") -> int:
        """Open connections of this tenant, at the edges that answer at once."""
        self._lock.check("connections_of", proof)
        edges = [handle for (role, _), handle in self._handles.items() if role == "edge"]
        calls = [asyncio.ensure_future(handle.connections_of.remote(tenant, self._lock.proof("connections_of"))) for handle in edges]
        done, late = await asyncio.wait(calls, timeout=_REFRESH_TIMEOUT_S) if calls else (set(), set())
        for call in late:
            call.cancel()
        return sum(call.result() for call in done if call.exception() is None)

    async def drain_edge(self, index: int, proof: bytes = b"") -> tuple[str, int]:
        """Let an edge hand its clients over to the others and start anew (`Edge.hand_over`). Returns when it has begun.

        Returns:
            Why it is refused, "" when it is not, and how many connections the edge has.
        """
        self._lock.check("drain_edge", proof)
        key = ("edge", index)
        if not self._serves(key):
            return f"edge-{index} does not serve, or is being drained", 0
        if not any(self._serves(other) for other in self._watches if other[0] == "edge" and other != key):
            return f"no edge but edge-{index} serves: its clients would have nowhere to go", 0
        self._drained[key] = self._watches[key].row()["pid"]
        return "", await self._handles[key].hand_over.remote(self._lock.proof("hand_over"))

    def _serves(self, key: tuple[str, int]) -> bool:
        """Whether the actor was ready at its last answer, and was not told to leave since."""
        row = self._watches[key].row()
        return bool(row["ready"]) and self._drained.get(key) != row["pid"]

    async def stop(self, proof: bytes = b"") -> None:
        """Stop all actors in order: edges close their connections, then shards and schedulers write their state, then all end.

        Takes at most `drain_ms` and twice `stop_timeout_ms`; what an actor did not write in time is in the journal.
        """
        self._lock.check("stop", proof)
        tasks = [task for task in (self._watching, self._created, self._round, self._snapshotting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        margin_ms = 500
        for roles, timeout_ms in (
            (("edge",), self._config.drain_ms + margin_ms),
            (("shard",), self._config.stop_timeout_ms),
            (("scheduler",), self._config.stop_timeout_ms),
        ):
            keys = [key for key in self._handles if key[0] in roles]
            await asyncio.gather(*(self._drain(key, timeout_ms) for key in keys))
            for key in keys:
                self._actors.kill(self._handles.pop(key), restart=False)
        if self._client is not None:
            await self._end_lease(self._client)
            await self._client.aclose()

    async def _end_lease(self, client: Redis) -> None:
        try:
            if self._engine:
                await end_lease(client, self._engine)
        except (RedisError, OSError) as error:
            log.warning("the lease on Redis is left to expire: %s", error)

    async def _drain(self, key: tuple[str, int], timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._handles[key].drain.remote(self._lock.proof("drain"))
        except (RayError, TimeoutError) as error:
            log.warning("%s-%d did not drain: %s", *key, type(error).__name__)

    # -- creating -----------------------------------------------------------------------------------------------------

    async def _create_all(self) -> None:
        self._config = await self._lock.config()
        self._client = self._context.connect(self._config)
        self._redis["url"] = display_url(self._config.redis_url)
        await self._prepare_storage(self._client)
        for role, index in self._watches:
            self._create(role, index)
        if self._config.snapshot_interval_s:
            self._snapshots = SnapshotSchedule(self._config, self._client)
            self._snapshotting = asyncio.ensure_future(self._snapshots.follow())
            self._snapshotting.add_done_callback(self._end_when_failed)

    async def _prepare_storage(self, client: Redis) -> None:
        """Write data epoch and slot map, unless an engine is running: then both exist, and the map must not change."""
        while True:
            try:
                if self._engine:
                    await claim_redis(client, self._engine, self._lease_ms)
                self._epoch = await take_control(client)
                await mark_upgrade(client, self._wall_ms())
                await claim_data_epoch(client, self._wall_ms() // 1000)
                if not self._anyone_runs():
                    await claim_slot_map(client, self._config.shards, self._config.schedulers)
                return
            except (StorageUnavailable, RedisError, OSError) as error:
                log.warning("waiting for storage: %s", error)
                await asyncio.sleep(RETRY_S)

    @property
    def _lease_ms(self) -> int:
        """Of its lease on Redis: several rounds."""
        return _LEASE_ROUNDS * self._config.health_ms

    def _wall_ms(self) -> int:
        return self._context.wall_ns() // 1_000_000

    def _anyone_runs(self) -> bool:
        names = self._actors.names(self._config.namespace)
        return any(f"shard-{index}" in names for index in range(self._config.shards))

    def _create(self, role: str, index: int) -> None:
        """The actor of this name, created when there is none."""
        self._handles[role, index] = self._actors.create(self._given, role, index)

    # -- watching -----------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        try:
            await asyncio.shield(self._created)
        except ConfigError as error:
            log.error("%s", error)  # `created()` raises it in `engine up`
            return
        period_ms, short_ms = self._config.health_ms, min(self._config.health_ms, RETRY_S * 1000)
        while True:
            # During a start the rounds are close: `engine up` waits for the last actor.
            settled = all(watch.row()["ready"] for watch in self._watches.values())
            wait_ms = self._round_at_ms + (period_ms if settled else short_ms) - self._context.monotonic_ms()
            if self._round is not None and wait_ms > 0:
                await asyncio.sleep(wait_ms / 1000)  # a status may have begun a round meanwhile
            else:
                await asyncio.shield(self._begin_round())

    def _begin_round(self) -> asyncio.Future[None]:
        """A round of calls, or the one that is under way."""
        if self._round is None or self._round.done():
            self._round_at_ms = self._context.monotonic_ms()
            self._round = asyncio.ensure_future(self._ask_all())
            self._round.add_done_callback(self._end_when_failed)
        return self._round

    async def _ask_all(self) -> None:
        await asyncio.gather(self._ask_redis(), *(self._ask(key) for key in self._watches))
        now_ms = self._context.monotonic_ms()
        for key, watch in self._watches.items():
            if not self._redis["alive"]:
                watch.excuse(now_ms)
            elif watch.verdict(now_ms) == "replace":
                log.error("%s-%d has been silent for %d ms; replacing it", *key, self._config.health_timeout_ms)
                self._actors.kill(self._handles[key], restart=True)
        self._own.answered(self._stats(), now_ms)
        for name, window in self._latencies.items():
            window.add(merge(watch.stats[name] for watch in self._watches.values() if name in watch.stats), now_ms)

    async def _ask(self, key: tuple[str, int]) -> None:
        watch = self._watches[key]
        watch.asked(self._context.monotonic_ms())
        try:
            async with asyncio.timeout(self._config.health_timeout_ms / _ANSWER_TIMEOUTS / 1000):
                stats = await self._handles[key].stats.remote()
                if stats.get("locked"):
                    await self._handles[key].unlock.remote(self._lock.key)
            watch.answered(stats, self._context.monotonic_ms())
        except ActorDiedError as error:
            log.error("%s-%d is gone for good (%s); creating it anew", *key, error)
            watch.failed()
            self._create(*key)
        except (RayError, TimeoutError) as error:
            watch.failed()
            log.info("%s-%d does not answer: %s", *key, type(error).__name__)

    async def _ask_redis(self) -> None:
        client = self._client
        assert client is not None  # rounds begin when everyone is created
        try:
            info, epoch = await asyncio.gather(client.info(), controller_epoch(client))
        except (RedisError, OSError) as error:
            self._redis |= {"alive": False, "error": str(error)}
            return
        if epoch not in (0, self._epoch):
            raise Fenced(f"another controller has taken control, with epoch {epoch}")
        await self._renew_lease(client)
        if self._redis_run not in ("", info["run_id"]):
            self._redis["restarts"] += 1
        self._redis_run = info["run_id"]
        self._redis.pop("error", None)
        self._redis |= {
            "alive": True,
            "version": info.get("valkey_version") or info["redis_version"],
            "pid": info["process_id"],
            "uptime_s": info["uptime_in_seconds"],
            "used_memory_bytes": info["used_memory"],
            "memory_bytes_max": info.get("maxmemory", 0),
            "aof_enabled": bool(info.get("aof_enabled")),
            "aof_bytes": info.get("aof_current_size", 0),
        }
        if self._snapshots is not None:
            self._redis["snapshots"] = self._snapshots.status()

    async def _renew_lease(self, client: Redis) -> None:
        try:
            if self._engine:
                await renew_lease(client, self._engine, self._lease_ms)
        except (RedisError, OSError) as error:
            log.warning("the lease on Redis is not renewed: %s", error)

    def _watch_of_self(self) -> HealthWatch:
        now_ms = self._context.monotonic_ms()
        watch = HealthWatch("controller", 0, self._config.health_timeout_ms, now_ms)
        watch.answered(self._stats(), now_ms)
        return watch

    def _stats(self) -> dict[str, Any]:
        return {**self._context.vitals("controller", 0, self._started_ms), "ready": True}

    def _end_when_failed(self, task: asyncio.Future[None]) -> None:
        """End the process when this task failed: Ray restarts the actor, which would otherwise look alive and check nobody."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("the controller ends: %r", error, exc_info=error)
            self._context.end_process()
