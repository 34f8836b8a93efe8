"""Two engines and one Redis: who gets it, and when."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from engine.errors import ConfigError
from engine.store.keys import LEASE_KEY
from engine.store.redis_lease import claim_redis, end_lease, renew_lease

LONG_MS = 600_000


async def test_an_engine_gets_a_redis_that_nobody_has_and_its_own_again(redis_client: Redis) -> None:
    for _ in range(2):
        await claim_redis(redis_client, "one", LONG_MS)
    assert await redis_client.get(LEASE_KEY) == b"one"
    assert 0 < await redis_client.pttl(LEASE_KEY) <= LONG_MS


async def test_an_engine_is_refused_the_redis_of_one_that_runs(redis_client: Redis) -> None:
    await claim_redis(redis_client, "one", LONG_MS)

    async def runs() -> None:
        while True:
            await asyncio.sleep(0.05)
            await renew_lease(redis_client, "one", LONG_MS)

    running = asyncio.ensure_future(runs())
    with pytest.raises(ConfigError, match="redis_url: the engine one uses this database of Redis"):
        await asyncio.wait_for(claim_redis(redis_client, "two", LONG_MS), 60)
    running.cancel()
    assert await redis_client.get(LEASE_KEY) == b"one"


async def test_an_engine_gets_the_redis_of_one_that_was_killed_when_the_lease_ends(redis_client: Redis) -> None:
    await claim_redis(redis_client, "one", 1000)
    await asyncio.wait_for(claim_redis(redis_client, "two", LONG_MS), 60)
    assert await redis_client.get(LEASE_KEY) == b"two"


async def test_an_engine_that_stops_gives_back_its_own_lease_only(redis_client: Redis) -> None:
    await claim_redis(redis_client, "one", LONG_MS)
    await end_lease(redis_client, "two")
    assert await redis_client.get(LEASE_KEY) == b"one"
    await end_lease(redis_client, "one")
    assert await redis_client.get(LEASE_KEY) is None
