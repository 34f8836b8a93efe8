"""The engine without any feature delivers: in this process in every run, and as a whole engine whose code has no features."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from redis.asyncio import Redis

from engine.config import Config
from tests.conformance.connections import Server
from tests.conformance.server_promises import DELIVERY
from tests.support.kernel_code import kernel_code
from tests.support.kernel_in_process import kernel_in_process
from tests.support.redis_server import RedisServer
from tests.support.running_engine import running_engine

SECRET = "a secret of the kernel's tests, long enough"


async def check_delivery(url: str, secret: str) -> None:
    """Every promise of delivery, all at once."""
    server = Server(url, secret)
    async with server.http, asyncio.TaskGroup() as tasks:
        assert (await server.ask("GET", "/v1/dead-letters", scope="admin")).status_code == 404, "a feature is there"
        for promise in DELIVERY:
            tasks.create_task(promise(server, random.Random(promise.__name__)), name=promise.__name__)


async def test_edge_shard_and_scheduler_deliver_without_features(
    redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = Config(redis_url=redis_server.url, redis_durability="reported", jwt_secret=SECRET, data_dir=str(tmp_path), drain_ms=1000)
    async with kernel_in_process(config, monkeypatch) as url:
        await check_delivery(url, SECRET)


async def test_an_engine_delivers_whose_code_has_no_features(tmp_path: Path) -> None:
    with running_engine(env=kernel_code(tmp_path)) as engine:
        await check_delivery(engine.url, (engine.data_dir / "jwt-secret").read_text().strip())
        assert engine.status()["ready"]
