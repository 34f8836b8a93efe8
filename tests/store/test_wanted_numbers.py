"""The wanted numbers in a real Redis."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from engine.core.controller.wanted import WantedNumbers
from engine.errors import Fenced, StorageUnavailable
from engine.store.epoch import take_control
from engine.store.keys import META_KEY, WANTED_FIELD
from engine.store.wanted_numbers import read_wanted, write_wanted


async def test_what_was_wanted_last_is_read(redis_client: Redis) -> None:
    assert await read_wanted(redis_client) is None
    epoch = await take_control(redis_client)
    await write_wanted(redis_client, WantedNumbers(4, 2, 3, "even", "somebody", 5), epoch)
    await write_wanted(redis_client, WantedNumbers(4, 2, 3, "", "somebody", 5), epoch)
    assert await read_wanted(redis_client) == WantedNumbers(4, 2, 3, "", "somebody", 5)


async def test_a_write_that_comes_late_takes_nothing_back(redis_client: Redis) -> None:
    epoch = await take_control(redis_client)
    newest = WantedNumbers(4, 1, 1, by='"at_ms":9', at_ms=7)
    for wanted in (WantedNumbers(2, 1, 1, at_ms=5), newest, WantedNumbers(3, 1, 1, at_ms=6)):
        await write_wanted(redis_client, wanted, epoch)
    assert await read_wanted(redis_client) == newest


async def test_a_controller_that_was_replaced_cannot_want_anything(redis_client: Redis) -> None:
    before, after = await take_control(redis_client), await take_control(redis_client)
    await write_wanted(redis_client, WantedNumbers(4, 1, 1), after)
    with pytest.raises(Fenced):
        await write_wanted(redis_client, WantedNumbers(2, 1, 1), before)
    assert await read_wanted(redis_client) == WantedNumbers(4, 1, 1)


@pytest.mark.parametrize("stored", [b"{", b'{"at_ms":9', b'{"shards":"many","schedulers":1,"edges":1}', b"\xff"])
async def test_damaged_wanted_numbers_count_as_none(redis_client: Redis, stored: bytes) -> None:
    await redis_client.hset(META_KEY, WANTED_FIELD, stored)
    assert await read_wanted(redis_client) is None
    await write_wanted(redis_client, WantedNumbers(4, 1, 1), await take_control(redis_client), unreadable=True)
    assert await read_wanted(redis_client) == WantedNumbers(4, 1, 1)


async def test_storage_that_is_away_is_an_error_of_its_own() -> None:
    client = Redis(host="127.0.0.1", port=1)
    try:
        with pytest.raises(StorageUnavailable):
            await read_wanted(client)
        with pytest.raises(StorageUnavailable):
            await write_wanted(client, WantedNumbers(1, 1, 1), 1)
    finally:
        await client.aclose()
