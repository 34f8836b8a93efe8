"""Fencing epochs on a real Redis."""

from __future__ import annotations

import asyncio
import time

from redis.asyncio import Redis

from engine.store.epoch import claim_name, controller_epoch, take_control, take_epoch
from engine.store.keys import EPOCH_KEY


async def test_concurrent_callers_get_different_growing_epochs(redis_client: Redis) -> None:
    first = await take_epoch(redis_client)
    others = await asyncio.gather(*(take_epoch(redis_client) for _ in range(50)))
    assert len({first, *others}) == 51
    assert min(others) > first
    assert await take_epoch(redis_client) > max(others)


async def test_a_server_that_lost_its_counter_issues_none_twice(redis_client: Redis) -> None:
    before = await take_epoch(redis_client)
    while (now := await redis_client.time())[0] * 1000 + now[1] // 1000 <= before:
        pass  # the clock, in ms, takes the place of the counter
    await redis_client.delete(EPOCH_KEY)
    assert await take_epoch(redis_client) > before


async def test_a_counter_ahead_of_the_clock_still_grows_by_one(redis_client: Redis) -> None:
    ahead = int(time.time() * 1000) + 1_000_000
    await redis_client.set(EPOCH_KEY, ahead)
    assert await take_epoch(redis_client) == ahead + 1


async def test_the_controller_that_took_control_last_has_it(redis_client: Redis) -> None:
    assert await controller_epoch(redis_client) == 0
    first = await take_control(redis_client)
    assert await controller_epoch(redis_client) == first
    second = await take_control(redis_client)
    assert await controller_epoch(redis_client) == second > first


async def test_a_late_copy_of_an_older_claim_has_no_effect(redis_client: Redis) -> None:
    older, newer = await take_epoch(redis_client), await take_epoch(redis_client)
    assert await claim_name(redis_client, "edge-0", newer) == newer
    assert await claim_name(redis_client, "edge-0", older) == newer
    assert await claim_name(redis_client, "edge-1", older) == older
    assert await claim_name(redis_client, "edge-0", newer) == newer
