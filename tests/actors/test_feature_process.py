"""The shell of an actor that belongs to a feature, around work that this test controls, on a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from engine.actors.actor_process import ProcessContext
from engine.actors.feature_process import FeatureProcess
from engine.actors.incarnation import Incarnation
from engine.api.actor_feature import ActorPorts
from engine.config import Config
from engine.errors import Fenced, StorageUnavailable
from tests.support.redis_server import RedisServer
from tests.support.vitals import vitals_without_ray
from tests.support.waiting import until


class Recorded:
    """Work that notes what it is asked to do."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self.done: list[Any] = []

    def stats(self) -> dict[str, Any]:
        return {"done": len(self.done)}

    async def run(self, ports: ActorPorts) -> None:
        self.done.append((ports.config.health_ms, ports.index, await ports.redis.ping()))
        await asyncio.Event().wait()

    async def answer(self, *question: Any) -> Any:
        return ["answer", *question]

    async def drain(self) -> None:
        self.done.append("drained")


class Recorder(FeatureProcess):
    role = "recorder"
    make = Recorded


@pytest.mark.usefixtures("redis_client")
async def test_the_shell_starts_the_work_and_ends_beside_a_newer_process(redis_server: RedisServer, redis_client: Redis) -> None:
    ended: list[bool] = []
    context = ProcessContext(vitals=vitals_without_ray, end_process=lambda: ended.append(True), tune_memory=lambda: None)
    made = Recorder(Config(redis_url=redis_server.url, redis_durability="reported", health_ms=100), 1, context)
    made.begin()
    await made.drain()
    with pytest.raises(StorageUnavailable, match="the recorder is starting"):
        await made.ask("first")
    await until(made.stats, holds=lambda stats: stats["ready"] and stats["done"] == 1)
    assert await made.ask(1, "two") == ["answer", 1, "two"]
    await made.drain()
    assert isinstance(made.work, Recorded)
    assert made.work.done == [(100, 1, True), "drained"]
    await Incarnation("recorder-1", redis_client).begin()
    await until(lambda: ended)
    assert made._serving is not None
    with pytest.raises(ExceptionGroup) as raised:
        await made._serving
    assert raised.group_contains(Fenced)
