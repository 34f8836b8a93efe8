"""Sums of counter signals on a real Redis: each batch once, each tenant apart."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from engine.errors import StorageUnavailable
from engine.features.signals.core import CounterBatch
from engine.features.signals.keys import signals_writer_key
from engine.features.signals.store import CounterSums


async def test_batches_add_up_per_tenant_and_name(redis_client: Redis) -> None:
    sums = CounterSums(redis_client)
    await sums.add("e0", CounterBatch(1, {"acme:clicks": 3, "acme:views": 10, "other:clicks": 7}))
    await sums.add("e1", CounterBatch(1, {"acme:clicks": 2}))
    await sums.add("e0", CounterBatch(2, {"acme:clicks": -1}))
    assert await sums.read("acme", ["clicks", "views", "never"]) == [4, 10, 0]
    assert await sums.read("other", ["clicks", "views"]) == [7, 0]


async def test_a_name_may_hold_colons(redis_client: Redis) -> None:
    sums = CounterSums(redis_client)
    await sums.add("e0", CounterBatch(1, {"acme:page:home": 3}))
    assert await sums.read("acme", ["page:home"]) == [3]


@pytest.mark.parametrize("number", [1, 2])
async def test_a_repeated_or_older_batch_of_a_writer_changes_nothing(redis_client: Redis, number: int) -> None:
    sums = CounterSums(redis_client)
    await sums.add("e0", CounterBatch(2, {"acme:clicks": 3}))
    await sums.add("e0", CounterBatch(number, {"acme:clicks": 3}))
    assert await sums.read("acme", ["clicks"]) == [3]


async def test_the_number_of_a_writer_is_stored_for_a_day(redis_client: Redis) -> None:
    await CounterSums(redis_client).add("e0", CounterBatch(2, {"acme:clicks": 3}))
    assert await redis_client.get(signals_writer_key("e0")) == b"2"
    assert 86_000 < await redis_client.ttl(signals_writer_key("e0")) <= 86_400


@pytest.mark.parametrize("amount", [1 << 62, 1 << 63, 1 << 70])
async def test_a_sum_that_overflows_is_clamped_and_counts_the_others_once(redis_client: Redis, amount: int) -> None:
    sums = CounterSums(redis_client)
    await sums.add("e0", CounterBatch(1, {"acme:huge": 1 << 62}))
    for _ in range(3):
        await sums.add("e0", CounterBatch(2, {"acme:views": 5, "acme:huge": amount, "other:views": 7}))
    assert await sums.read("acme", ["views", "huge"]) == [5, (1 << 63) - 1]
    assert await sums.read("other", ["views"]) == [7]


async def test_a_silent_redis_is_unavailable() -> None:
    client = Redis.from_url("unix:///nonexistent/redis.sock")
    for call in (CounterSums(client).add("e0", CounterBatch(1, {"a:b": 1})), CounterSums(client).read("a", ["b"])):
        with pytest.raises(StorageUnavailable):
            await call
    await client.aclose()
