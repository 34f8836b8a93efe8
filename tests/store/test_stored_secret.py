"""The link key in a real Redis."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from engine.errors import StorageUnavailable
from engine.store.keys import LINK_KEY_KEY
from engine.store.stored_secret import claim_link_key


async def test_all_actors_get_the_same_key_whoever_asks_first(redis_client: Redis) -> None:
    first, *others = await asyncio.gather(*(claim_link_key(redis_client) for _ in range(10)))
    assert len(first) == 32
    assert set(others) == {first}
    assert await redis_client.ttl(LINK_KEY_KEY) == -1


async def test_a_key_that_was_deleted_is_followed_by_another(redis_client: Redis) -> None:
    first = await claim_link_key(redis_client)
    await redis_client.delete(LINK_KEY_KEY)
    assert await claim_link_key(redis_client) != first


async def test_what_is_no_key_is_refused_with_what_to_do(redis_client: Redis) -> None:
    await redis_client.set(LINK_KEY_KEY, "short")
    with pytest.raises(StorageUnavailable, match=r"engine:link-key in Redis has not 32 bytes; delete it") as refused:
        await claim_link_key(redis_client)
    assert "short" not in str(refused.value)
