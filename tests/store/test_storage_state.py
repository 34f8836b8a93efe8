"""How full storage is, as edges see it: of a real Redis that is filled and emptied."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from engine.errors import Overloaded
from engine.store.durability import AS_PROMISED, EVERYSEC, EVICTABLE
from engine.store.storage_state import StorageState
from tests.support.redis_server import RedisServer
from tests.support.waiting import until

MIB = 1 << 20


@pytest.fixture
async def client(server: RedisServer) -> AsyncIterator[Redis]:
    client = Redis.from_url(server.url, socket_timeout=5)
    await client.flushall()
    yield client
    await client.config_set("maxmemory", 0)
    await client.config_set("appendfsync", "always")
    await client.aclose()


async def test_a_filled_redis_refuses_new_messages_before_it_refuses_writes_and_accepts_again_when_it_is_emptied(client: Redis) -> None:
    used = int((await client.info("memory"))["used_memory"])
    await client.config_set("maxmemory", used + 40 * MIB)
    state = StorageState()
    await state.read(client)
    state.check_room()
    filled = 0
    while not state.full:
        await client.set(f"message-{filled}", b"x" * MIB)
        filled += 1
        await state.read(client)
    assert 30 <= filled <= 39
    with pytest.raises(Overloaded, match=r"MiB that it may \(redis_memory_bytes_max\).*until messages are acknowledged") as refused:
        state.check_room()
    assert refused.value.backlog_ms == 5000
    for number in range(2):
        await client.set(f"own-write-{number}", b"x" * MIB)  # the engine's own writes go on
    await client.delete("message-0")
    await state.read(client)
    assert state.full, "one message less is no reason to begin again"
    await client.delete(*(f"message-{number}" for number in range(1, 10)))
    await state.read(client)
    state.check_room()


async def test_a_server_without_a_limit_never_refuses(client: Redis) -> None:
    state = StorageState()
    await state.read(client)
    assert state.used_bytes > 0
    assert state.limit_bytes == 0
    state.check_room()


async def test_the_state_is_followed_and_holds_while_the_server_does_not_answer(client: Redis, server: RedisServer) -> None:
    state = StorageState()
    following = asyncio.ensure_future(state.follow(client))
    await client.config_set("maxmemory", 1)  # near its limit it is read ten times a second
    await until(lambda: state.full)
    await client.config_set("appendfsync", "everysec")
    await until(lambda: state.durability == EVERYSEC)
    server.kill()
    await state.read(client)
    assert state.full
    server.start()
    await until(lambda: not state.full and state.durability == AS_PROMISED)
    following.cancel()


async def test_of_several_stores_the_fullest_and_the_weakest_count(client: Redis, redis_client: Redis) -> None:
    await client.config_set("maxmemory", int((await client.info("memory"))["used_memory"]) + 1000)
    await client.config_set("appendfsync", "everysec")
    for clients in ((client, redis_client), (redis_client, client)):
        state = StorageState()
        await state.read(*clients)
        assert state.full
        assert state.durability == EVERYSEC
        await redis_client.config_set("maxmemory-policy", "allkeys-lru")
        await state.read(*clients)
        await redis_client.config_set("maxmemory-policy", "noeviction")
        assert state.durability == EVICTABLE
    await client.config_set("maxmemory", 0)


async def test_stores_that_do_not_answer_are_named_while_others_do(redis_client: Redis) -> None:
    state = StorageState()
    silent = Redis.from_url("redis://127.0.0.1:1")
    await state.read(redis_client, silent)
    assert (state.stores_away, "store 1" in state.away) == ([1], True)
    await state.read(redis_client)
    assert (state.stores_away, state.away) == ([], "")
    await silent.aclose()
