"""Who owns which slot, over several runs with different numbers of shards."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from engine.core.model.routing import SLOTS, spread
from engine.errors import ConfigError, StorageUnavailable
from engine.store.keys import journal_key
from engine.store.slot_map import claim_slot_map, read_slot_map


async def test_the_first_use_spreads_all_slots_evenly(redis_client: Redis) -> None:
    assert await read_slot_map(redis_client) is None
    claimed = await claim_slot_map(redis_client, 3, 1)
    assert claimed == spread(3)
    assert await read_slot_map(redis_client) == claimed
    assert {len(claimed.slots_of(shard)) for shard in range(3)} <= {SLOTS // 3, SLOTS // 3 + 1}


async def test_the_same_number_of_shards_keeps_the_map(redis_client: Redis) -> None:
    assert await claim_slot_map(redis_client, 2, 1) == await claim_slot_map(redis_client, 2, 1)


async def test_another_number_after_a_stop_in_good_order_spreads_anew_under_a_higher_version(redis_client: Redis) -> None:
    first = await claim_slot_map(redis_client, 2, 1)
    second = await claim_slot_map(redis_client, 5, 1)
    assert second.version > first.version
    assert set(second.owners) == set(range(5))
    assert await read_slot_map(redis_client) == second


async def test_another_number_is_refused_while_a_journal_holds_messages(redis_client: Redis) -> None:
    before = await claim_slot_map(redis_client, 2, 1)
    await redis_client.xadd(journal_key(1), {"b": b"..."})
    with pytest.raises(ConfigError, match="--shards 2"):
        await claim_slot_map(redis_client, 3, 1)
    assert await read_slot_map(redis_client) == before


async def test_controllers_that_start_at_once_agree(redis_client: Redis) -> None:
    claimed = await asyncio.gather(*(claim_slot_map(redis_client, 4, 1) for _ in range(8)))
    assert len(set(claimed)) == 1


async def test_storage_that_is_away_is_an_error_that_passes() -> None:
    client = Redis(host="127.0.0.1", port=1, socket_timeout=0.2, retry=Retry(NoBackoff(), 0))
    with pytest.raises(StorageUnavailable):
        await claim_slot_map(client, 2, 1)
    await client.aclose()
