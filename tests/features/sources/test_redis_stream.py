"""A Redis stream as a source, on a real Redis."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from engine.features.sources import redis_stream
from engine.features.sources.core import RedisSource
from engine.features.sources.redis_stream import RedisStream
from tests.support.redis_server import RedisServer


async def test_a_redrive_ends_though_the_engine_refuses_all_again(
    redis_client: Redis, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = RedisSource(name="orders", connection=redis_server.url)
    operator, ingester = RedisStream(source), RedisStream(source)
    for number in range(3):
        await redis_client.xadd("notifications:dead", {"id": str(number), "reason": "no user", "body": "{}"})
    ask = operator._ask

    async def refused(answer: Any) -> Any:
        found = await ask(answer)
        await ingester.settle([], [(row, "no user") for row in await ingester.read(10)])
        return found

    monkeypatch.setattr(operator, "_ask", refused)
    monkeypatch.setattr(redis_stream, "_REDRIVEN", 2)
    async with asyncio.timeout(20):
        assert await operator.redrive() == 3
        assert await operator.redrive() == 3
    assert len(await operator.dead_rows(10)) == 3
    await operator.close()
    await ingester.close()


@pytest.mark.parametrize("options", ["", "?protocol=3"])
async def test_new_entries_are_read_behind_one_that_waits(redis_client: Redis, redis_server: RedisServer, options: str) -> None:
    reader = RedisStream(RedisSource(name="orders", connection=f"{redis_server.url}{options}"))
    for number in range(4):
        await redis_client.xadd("notifications", {"body": str(number)})
    waits, other = await reader.read(2)
    await reader.settle([other], [])
    assert await reader.read(1) == [waits]
    assert [row.body for row in await reader.read(10)] == [b"0", b"2", b"3"]
    await reader.close()


async def test_an_entry_that_the_engine_did_not_set_aside_is_shown_and_stays(
    redis_client: Redis, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = RedisStream(RedisSource(name="orders", connection=redis_server.url))
    monkeypatch.setattr(redis_stream, "_REDRIVEN", 1)
    await redis_client.xadd("notifications:dead", {"note": "of another program"})
    await redis_client.xadd("notifications:dead", {"id": "1", "reason": "no user", "body": "{}"})
    assert [tuple(row) for row in await operator.dead_rows(10)] == [("", "", ""), ("1", "no user", "{}")]
    async with asyncio.timeout(20):
        assert await operator.redrive() == 1
    assert [fields for _, fields in await redis_client.xrange("notifications:dead")] == [{b"note": b"of another program"}]
    assert [fields for _, fields in await redis_client.xrange("notifications")] == [{b"body": b"{}"}]
    await operator.close()
