"""What the watcher has found and told, and the deaths that edges received from Ray, in Redis."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import redis.asyncio as redis
from msgspec import Struct

from engine.config import Config
from engine.features.ray_events.core.exported import Death
from engine.features.ray_events.core.jobs import Running, decode_running, encode_running
from engine.features.ray_events.keys import RAY_DEATHS_KEY, RAY_RUNNING_KEY, RAY_STATE_KEY, RAY_TOLD_KEY, RAY_UNHEALTHY_KEY
from engine.store.lua import Replicas, Script
from engine.store.storage_calls import StorageCalls

log = logging.getLogger(__name__)

_APPEND: Final = Script.beside(__file__, "ray_deaths_append")
_MOVE: Final = Script.beside(__file__, "ray_horizon_move")
_DEATHS: Final = msgspec.json.Decoder(list[Death])
_TOLD: Final = " told"


class StoredJobs(Struct, frozen=True):
    """What is stored about jobs, see `engine.features.ray_events.core.jobs`."""

    horizon_ms: int
    told: list[str]
    running: dict[str, Running]


class RayEventsStore:
    """For the watcher, and for edges. Every method raises StorageUnavailable.

    Args:
        client: of the first storage server.
    """

    def __init__(self, client: redis.Redis, config: Config) -> None:
        self._client = client
        self._replicas = Replicas.wanted(config)
        self._waiting_max = config.ray_events_waiting_max

    # -- Jobs. -------------------------------------------------------------------------------------------------------------
    async def jobs(self, now_ms: int) -> StoredJobs:
        """Everything that is stored about jobs; at the very first time the horizon is now."""
        pipeline = self._client.pipeline()
        pipeline.hsetnx(RAY_STATE_KEY, "horizon", now_ms)
        pipeline.hget(RAY_STATE_KEY, "horizon")
        pipeline.zrange(RAY_TOLD_KEY, 0, -1)
        pipeline.hgetall(RAY_RUNNING_KEY)
        _, horizon, told, packed = await _run(pipeline.execute())
        running: dict[str, Running] = {}
        for key, job in packed.items():
            try:
                running[key.decode()] = decode_running(job)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                log.error("a running job that is stored cannot be read: %r", key)
        return StoredJobs(int(horizon), [key.decode(errors="replace") for key in told], running)

    async def set_running(self, jobs: Mapping[str, Running]) -> None:
        await self._write(lambda pipeline: pipeline.hset(RAY_RUNNING_KEY, mapping={key: encode_running(job) for key, job in jobs.items()}))

    async def set_told(self, key: str, end_ms: int) -> None:
        def write(pipeline: Any) -> None:
            pipeline.zadd(RAY_TOLD_KEY, {key: end_ms})
            pipeline.hdel(RAY_RUNNING_KEY, key)

        await self._write(write)

    async def move_horizon(self, horizon_ms: int) -> StoredJobs:
        """Move the horizon forward; what is stored then."""
        await _MOVE.run(self._client, [RAY_STATE_KEY, RAY_TOLD_KEY], [horizon_ms], self._replicas)
        return await self.jobs(horizon_ms)

    # -- Deaths. -----------------------------------------------------------------------------------------------------------
    async def append(self, deaths: Sequence[Death]) -> bool:
        """Append deaths, all or none; False: too many wait."""
        reply = await _APPEND.run(self._client, [RAY_DEATHS_KEY], [self._waiting_max, msgspec.json.encode(deaths)], self._replicas)
        return bool(reply[0] == b"OK")

    async def waiting(self, count: int) -> list[tuple[str, list[Death]]]:
        """The oldest entries of the stream, by their ids."""
        entries: Any = await _run(self._client.xrange(RAY_DEATHS_KEY, count=count))
        found: list[tuple[str, list[Death]]] = []
        for id, members in entries:
            try:
                found.append((id.decode(), _DEATHS.decode(members[b"deaths"])))
            except (msgspec.MsgspecError, UnicodeDecodeError, KeyError):
                log.error("deaths that are stored cannot be read: %r", id)
                found.append((id.decode(), []))
        return found

    async def settle(self, ids: Sequence[str]) -> None:
        """Delete entries whose deaths are told."""
        await self._write(lambda pipeline: pipeline.xdel(RAY_DEATHS_KEY, *ids))

    # -- Serve. ------------------------------------------------------------------------------------------------------------
    async def unhealthy(self) -> dict[str, tuple[int, bool]]:
        """The incidents of applications: since when, ms, and whether they are told; (0, False) where that cannot be read."""
        found: Any = await _run(self._client.hgetall(RAY_UNHEALTHY_KEY))
        incidents: dict[str, tuple[int, bool]] = {}
        for app, stored in found.items():
            since, told, _ = stored.partition(_TOLD.encode())
            if not since.isdigit():
                log.error("an incident that is stored cannot be read: %r", app)
            incidents[app.decode(errors="replace")] = (int(since), bool(told)) if since.isdigit() else (0, False)
        return incidents

    async def set_unhealthy(self, app: str, since_ms: int, *, told: bool) -> None:
        await self._write(lambda pipeline: pipeline.hset(RAY_UNHEALTHY_KEY, app, f"{since_ms}{_TOLD if told else ''}"))

    async def end_unhealthy(self, apps: Sequence[str]) -> None:
        """Delete the incidents of these applications."""
        await self._write(lambda pipeline: pipeline.hdel(RAY_UNHEALTHY_KEY, *apps))

    async def _write(self, write: Callable[[Any], Any]) -> None:
        pipeline = self._client.pipeline()
        write(pipeline)
        await _run(pipeline.execute())
        if self._replicas.count:
            pipeline = self._client.pipeline(transaction=False)
            self._replicas.ask(pipeline)
            self._replicas.check(await _run(pipeline.execute(raise_on_error=False)), "events of Ray")


async def _run(call: Any) -> Any:
    with StorageCalls("events of Ray"):
        return await call
