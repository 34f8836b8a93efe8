"""The engine's own Redis of a data directory, without an engine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import msgspec
from redis.asyncio import Redis

from engine.config import Config
from engine.store.embedded_redis import EmbeddedRedis
from engine.store.redis_client import connect
from engine.store.server_program import ServerProgram


@contextlib.asynccontextmanager
async def served(config: Config, *servers: ServerProgram) -> AsyncIterator[Redis]:
    """A client of the own Redis of a data directory, which runs meanwhile."""
    redis = EmbeddedRedis(config, servers)
    await redis.start()
    client = connect(msgspec.structs.replace(config, redis_url=redis.url, redis_durability="reported"))
    try:
        yield client
    finally:
        await client.aclose()
        await redis.stop()
