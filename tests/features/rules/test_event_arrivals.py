"""When events without an id arrived first, in a real Redis."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from engine.config import Config
from engine.errors import StorageUnavailable
from engine.features.rules.event_arrivals import SAME_EVENT_MS, EventArrivals
from engine.features.rules.keys import event_arrival_key


async def test_the_same_content_of_a_tenant_came_first_when_it_came_first(redis_client: Redis) -> None:
    arrivals = EventArrivals(redis_client, Config())
    assert [await arrivals.first("t", "a", now_ms) for now_ms in (100, 200, 300)] == [100, 100, 100]
    assert await arrivals.first("t", "b", 400) == 400
    assert await arrivals.first("u", "a", 500) == 500
    assert [await arrivals.known(*which) for which in (("t", "b"), ("u", "b"))] == [True, False]


async def test_a_repeat_does_not_make_an_arrival_last_longer(redis_client: Redis) -> None:
    arrivals, key = EventArrivals(redis_client, Config()), event_arrival_key("t", "a")
    await arrivals.first("t", "a", 100)
    assert SAME_EVENT_MS - 60_000 < await redis_client.pttl(key) <= SAME_EVENT_MS
    await redis_client.pexpire(key, 50_000)
    await arrivals.first("t", "a", 200)
    assert await redis_client.pttl(key) <= 50_000
    await redis_client.delete(key)  # as when it expires
    assert await arrivals.first("t", "a", 300) == 300


async def test_storage_that_is_away_is_told() -> None:
    async with Redis(host="127.0.0.1", port=1, retry=Retry(NoBackoff(), 0)) as client:
        with pytest.raises(StorageUnavailable):
            await EventArrivals(client, Config()).first("t", "a", 1)
        with pytest.raises(StorageUnavailable):
            await EventArrivals(client, Config()).known("t", "a")
