"""Two processes of one actor, on a real Redis."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from engine.actors.incarnation import Incarnation
from engine.errors import Fenced
from engine.store.keys import META_KEY

PERIOD_MS = 5


async def test_an_older_process_ends_when_there_is_a_newer_one_and_the_newer_goes_on(redis_client: Redis) -> None:
    older, newer = Incarnation("edge-0", redis_client), Incarnation("edge-0", redis_client)
    await older.begin()
    watching = asyncio.ensure_future(older.watch(PERIOD_MS))
    other = Incarnation("edge-1", redis_client)
    await other.begin()
    await newer.begin()
    going_on = [asyncio.ensure_future(process.watch(PERIOD_MS)) for process in (newer, other)]
    with pytest.raises(Fenced, match="edge-0 has a newer process"):
        async with asyncio.timeout(60):
            await watching
    assert not any(task.done() for task in going_on)
    for task in going_on:
        task.cancel()


async def test_a_claim_that_storage_has_lost_is_made_again(redis_client: Redis) -> None:
    process = Incarnation("edge-0", redis_client)
    await process.begin()
    before = await redis_client.hget(META_KEY, "edge-0")
    await redis_client.delete(META_KEY)
    watching = asyncio.ensure_future(process.watch(PERIOD_MS))
    async with asyncio.timeout(60):
        while await redis_client.hget(META_KEY, "edge-0") != before:
            await asyncio.sleep(0.005)
    assert not watching.done()
    watching.cancel()


async def test_a_process_that_does_not_reach_storage_goes_on() -> None:
    client = Redis.from_url("unix:///nonexistent/redis.sock")
    process = Incarnation("edge-0", client)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10 * PERIOD_MS / 1000):
            await process.watch(PERIOD_MS)
    await client.aclose()
