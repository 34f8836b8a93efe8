"""The controller actor: creates the other actors, watches them, replaces the silent ones, tells the engine's status.

It holds nothing that cannot be found again: actors by their names, the slot map in Redis. When it dies, Ray starts it again, it
finds everybody alive and disturbs nobody; messages flow without it. Each round asks every actor for its `stats()`; what to make
of the answers is decided in `engine.core.controller.health`.

Who repairs what: a process that died is restarted by Ray under the same handle; one that is there but silent is killed here,
so that Ray restarts it; an actor that Ray has given up (or somebody killed for good) is created anew here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Any, Final

import ray
from ray.exceptions import ActorDiedError, RayError
from redis.exceptions import RedisError

from engine import __version__
from engine.actors.actor_process import RETRY_S, monotonic_ms, vitals
from engine.actors.edge import Edge
from engine.actors.scheduler import Scheduler
from engine.actors.shard import Shard
from engine.config import Config
from engine.core.controller.health import HealthWatch, LatencyWindow, merge, totals
from engine.errors import ConfigError, StorageUnavailable
from engine.store.legacy_ids import mark_upgrade
from engine.store.redis_client import claim_data_epoch, connect, display_url
from engine.store.slot_map import place

log = logging.getLogger(__name__)

CONTROLLER: Final = "controller"
"""Name of the controller actor in the engine's namespace."""

_ROLES: Final = ("shard", "scheduler", "edge")
_ANSWER_TIMEOUTS: Final = 4  # a round gives up on an answer after this part of the health timeout


def actor_options(config: Config, name: str, resources: dict[str, float]) -> dict[str, Any]:
    """How every actor of an engine is created: found by name, restarted for ever, calls never repeated by Ray."""
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
        "enable_task_events": False,
    }


class Controller:
    """One per engine, named `controller`. `config` is complete: `redis_url` and `port` are what they will be."""

    def __init__(self, config: Config) -> None:
        logging.basicConfig(level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._config = config
        self._client = connect(config)
        self._started_ms = time.time_ns() // 1_000_000
        self._handles: dict[tuple[str, int], Any] = {}
        self._watches = {
            (role, index): HealthWatch(role, index, config.health_timeout_ms, monotonic_ms())
            for role, count in zip(_ROLES, (config.shards, config.schedulers, config.edges), strict=True)
            for index in range(count)
        }
        self._latency = LatencyWindow(config.latency_window_ms)
        self._own = self._watch_of_self()
        self._redis: dict[str, Any] = {"url": display_url(config.redis_url), "alive": False, "restarts": 0}
        self._redis_run = ""
        self._created: asyncio.Task[None] = asyncio.ensure_future(self._create_all())
        self._watching: asyncio.Task[None] = asyncio.ensure_future(self._watch())
        self._watching.add_done_callback(_end_when_failed)

    # -- what others call ---------------------------------------------------------------------------------------------

    async def config(self) -> Config:
        """The configuration the engine runs with."""
        return self._config

    async def created(self) -> None:
        """Returns when every actor is created, which does not mean that it is ready: see `status`.

        Raises:
            ConfigError: the data does not allow this configuration; nothing was created.
        """
        await asyncio.shield(self._created)

    async def status(self) -> dict[str, Any]:
        """The engine as of the last round, `health_ms` ago at most.

        {"version", "ready", "shards", "schedulers", "edges", "controller", "redis", "totals"}; a row per actor is its `stats()`
        plus `alive`, `cpu_pct` (of one core), `rss_bytes` and `restarts`; `totals` has sums, and p50, p95 and p99 in ms from
        acceptance to acknowledgement over the recent past.
        """
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
            "totals": {**totals(everyone), **self._latency.quantiles()},
        }

    async def stop(self) -> None:
        """Stop everybody in good order: edges take their leave, then shards and schedulers write what they hold, then all end.

        Bounded by `drain_ms` and twice `stop_timeout_ms`; what an actor did not write in time is in the journal.
        """
        self._watching.cancel()
        self._created.cancel()
        await asyncio.gather(self._watching, self._created, return_exceptions=True)
        margin_ms = 500
        for roles, timeout_ms in (
            (("edge",), self._config.drain_ms + margin_ms),
            (("shard",), self._config.stop_timeout_ms),
            (("scheduler",), self._config.stop_timeout_ms),
        ):
            keys = [key for key in self._handles if key[0] in roles]
            await asyncio.gather(*(self._drain(key, timeout_ms) for key in keys))
            for key in keys:
                ray.kill(self._handles.pop(key), no_restart=True)
        await self._client.aclose()

    async def _drain(self, key: tuple[str, int], timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._handles[key].drain.remote()
        except (RayError, TimeoutError) as error:
            log.warning("%s-%d did not drain: %s", *key, type(error).__name__)

    # -- creating -----------------------------------------------------------------------------------------------------

    async def _create_all(self) -> None:
        await self._prepare_storage()
        for role, index in self._watches:
            self._create(role, index)

    async def _prepare_storage(self) -> None:
        """Data epoch and slot map, unless an engine is running: then both are there, and the map must not change under it."""
        while True:
            try:
                await mark_upgrade(self._client, int(time.time() * 1000))
                await claim_data_epoch(self._client, int(time.time()))
                if not self._anyone_runs():
                    await place(self._client, self._config.shards)
                return
            except (StorageUnavailable, RedisError, OSError) as error:
                log.warning("waiting for storage: %s", error)
                await asyncio.sleep(RETRY_S)

    def _anyone_runs(self) -> bool:
        names = {entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True) if entry["namespace"] == self._config.namespace}
        return any(f"shard-{index}" in names for index in range(self._config.shards))

    def _create(self, role: str, index: int) -> None:
        """The actor of this name, created when there is none."""
        config = self._config
        options = actor_options(config, f"{role}-{index}", {f"engine_{role}": 1})
        if role == "shard":
            handle: Any = ray.remote(Shard).options(**options).remote(config, index)
        elif role == "scheduler":
            handle = ray.remote(Scheduler).options(**options).remote(config, index)
        else:
            handle = ray.remote(Edge).options(**options).remote(config, index, config.port)
        self._handles[role, index] = handle

    # -- watching -----------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        try:
            await asyncio.shield(self._created)
        except ConfigError as error:
            log.error("%s", error)  # `created()` tells it to whoever starts the engine
            return
        period_s = self._config.health_ms / 1000
        while True:
            started = time.monotonic()
            await asyncio.gather(self._ask_redis(), *(self._ask(key) for key in self._watches))
            now_ms = monotonic_ms()
            self._own.answered(self._stats(), now_ms)
            shards = [watch.stats["latency"] for watch in self._watches.values() if "latency" in watch.stats]
            self._latency.add(merge(shards), now_ms)
            # A start is watched closely: whoever started the engine is waiting for it.
            settled = all(watch.row()["ready"] for watch in self._watches.values())
            await asyncio.sleep(max(0.0, (period_s if settled else min(period_s, RETRY_S)) - (time.monotonic() - started)))

    async def _ask(self, key: tuple[str, int]) -> None:
        watch = self._watches[key]
        watch.asked(monotonic_ms())
        try:
            async with asyncio.timeout(self._config.health_timeout_ms / _ANSWER_TIMEOUTS / 1000):
                stats = await self._handles[key].stats.remote()
            watch.answered(stats, monotonic_ms())
        except ActorDiedError as error:
            log.error("%s-%d is gone for good (%s); creating it anew", *key, error)
            watch.failed()
            self._create(*key)
        except (RayError, TimeoutError) as error:
            watch.failed()
            log.info("%s-%d does not answer: %s", *key, type(error).__name__)
        if watch.verdict(monotonic_ms()) == "replace":
            log.error("%s-%d has been silent for %d ms; replacing it", *key, self._config.health_timeout_ms)
            ray.kill(self._handles[key], no_restart=False)

    async def _ask_redis(self) -> None:
        try:
            info = await self._client.info()
        except (RedisError, OSError) as error:
            self._redis |= {"alive": False, "error": str(error)}
            return
        if self._redis_run not in ("", info["run_id"]):
            self._redis["restarts"] += 1
        self._redis_run = info["run_id"]
        self._redis.pop("error", None)
        self._redis |= {
            "alive": True,
            "version": info["redis_version"],
            "pid": info["process_id"],
            "uptime_s": info["uptime_in_seconds"],
            "used_memory_bytes": info["used_memory"],
            "aof_enabled": bool(info.get("aof_enabled")),
            "aof_bytes": info.get("aof_current_size", 0),
        }

    def _watch_of_self(self) -> HealthWatch:
        watch = HealthWatch("controller", 0, self._config.health_timeout_ms, monotonic_ms())
        watch.answered(self._stats(), monotonic_ms())
        return watch

    def _stats(self) -> dict[str, Any]:
        return {**vitals("controller", 0, self._started_ms), "ready": True}


def _end_when_failed(watching: asyncio.Task[None]) -> None:
    """A controller that no longer watches would only look alive: let Ray start it again."""
    if not watching.cancelled() and (error := watching.exception()) is not None:
        log.critical("the controller ends: %r", error, exc_info=error)
        os._exit(1)
