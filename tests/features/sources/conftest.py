"""An engine that takes rows."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from engine.config import Config
from tests.support.engine_in_process import engine_in_process
from tests.support.ingesting import SECRET
from tests.support.redis_server import RedisServer


@pytest.fixture
async def url(redis_client: Redis, redis_server: RedisServer) -> AsyncIterator[str]:
    config = Config(redis_url=redis_server.url, redis_durability="reported", port=0, jwt_secret=SECRET)
    async with engine_in_process(config, ()) as url:
        yield url
