"""An edge, a shard and a scheduler without some features, in the process of the test, on a real Redis and a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from engine.actors import edge, shard
from engine.actors.actor_process import ProcessContext
from engine.actors.carrier import RayPeer
from engine.actors.edge import Edge
from engine.actors.scheduler import Scheduler
from engine.actors.shard import Shard
from engine.config import Config
from engine.store.redis_client import claim_data_epoch, connect
from engine.store.slot_map import claim_slot_map
from tests.support.vitals import vitals_without_ray
from tests.support.waiting import until


class _Actor:
    """Calls an actor of this process as Ray's handles do."""

    def __init__(self, actor: Any) -> None:
        self.exchange = self
        self.remote = actor.exchange


def _end() -> None:
    raise AssertionError("an actor has ended itself")


@asynccontextmanager
async def engine_in_process(config: Config, without: Collection[str]) -> AsyncIterator[str]:
    """Yields the URL of the edge. `without`: names of features, of which neither the edge nor the shard has a part."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (edge, shard):
            left = [part for part in module.FEATURES if part.__module__.split(".")[2] not in without]
            patch.setattr(module, "FEATURES", left)
        async with _engine(config) as url:
            yield url


@asynccontextmanager
async def _engine(config: Config) -> AsyncIterator[str]:
    actors: dict[str, Any] = {}
    clients: list[Redis] = []

    def connected(config: Config) -> Redis:
        clients.append(connect(config))
        return clients[-1]

    context = ProcessContext(
        connect=connected,
        peer=lambda name, _credentials: RayPeer(_Actor(actors[name])),
        tune_memory=lambda: None,
        lasting=contextlib.nullcontext,
        end_process=_end,
        vitals=vitals_without_ray,
    )
    async with connect(config) as client:
        await claim_data_epoch(client, int(time.time()))
        await claim_slot_map(client, 1, 1)
    actors |= {"shard-0": Shard(config, 0, context), "scheduler-0": Scheduler(config, 0, context), "edge-0": Edge(config, 0, 0, context)}
    for actor in actors.values():
        actor.begin()
    try:
        await until(actors["edge-0"].stats, holds=lambda stats: stats["ready"])
        yield f"http://{config.host}:{(await actors['edge-0'].stats())['port']}"
    finally:
        await actors["edge-0"].drain()
        tasks = [actor._serving for actor in actors.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in clients:
            await client.aclose()
