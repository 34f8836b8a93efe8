"""Who owns which slot, over several runs with different numbers of shards."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from engine.core.model.formats import FIRST, FORMATS
from engine.core.model.routing import SLOTS, SlotMap, spread
from engine.errors import ConfigError, FormatsTooNew, StorageUnavailable
from engine.store.journal import Journal
from engine.store.keys import SLOTS_KEY
from engine.store.slot_map import (
    assumed_routing_table,
    claim_slot_map,
    encode_slot_map,
    hand_over_slots,
    read_slot_map,
    require_slot_map,
    swap_slot_map,
)


async def test_the_first_use_spreads_all_slots_evenly(redis_client: Redis) -> None:
    assert await read_slot_map(redis_client) is None
    claimed = await claim_slot_map(redis_client, 3, 1)
    assert claimed == spread(3)
    assert await read_slot_map(redis_client) == claimed
    assert {len(claimed.slots_of(shard)) for shard in range(3)} <= {SLOTS // 3, SLOTS // 3 + 1}


async def test_the_same_number_of_shards_keeps_the_map(redis_client: Redis) -> None:
    assert await claim_slot_map(redis_client, 2, 1) == await claim_slot_map(redis_client, 2, 1)


async def test_another_number_of_shards_leaves_the_stored_map_as_it_is_for_slots_move_while_both_ends_serve(redis_client: Redis) -> None:
    before = await claim_slot_map(redis_client, 2, 1)
    assert await claim_slot_map(redis_client, 5, 1) == before


async def test_another_number_of_schedulers_is_taken_for_they_keep_nothing(redis_client: Redis) -> None:
    before = await claim_slot_map(redis_client, 2, 1)
    after = await claim_slot_map(redis_client, 2, 3)
    assert (after.owners, after.schedulers, after.version) == (before.owners, 3, before.version + 1)
    assert await read_slot_map(redis_client) == after


async def test_controllers_that_start_at_once_agree(redis_client: Redis) -> None:
    claimed = await asyncio.gather(*(claim_slot_map(redis_client, 4, 1) for _ in range(8)))
    assert len(set(claimed)) == 1


async def test_storage_that_is_away_is_an_error_that_passes() -> None:
    client = Redis(host="127.0.0.1", port=1, socket_timeout=0.2, retry=Retry(NoBackoff(), 0))
    with pytest.raises(StorageUnavailable):
        await claim_slot_map(client, 2, 1)
    await client.aclose()


@pytest.mark.parametrize("first_is_away", [False, True])
async def test_an_even_map_is_assumed_of_a_second_store_that_is_away(redis_client: Redis, first_is_away: bool) -> None:
    stored = await claim_slot_map(redis_client, 4, 2, 0, 2)
    away = Redis(host="127.0.0.1", port=1, socket_timeout=0.2, retry=Retry(NoBackoff(), 0))
    if first_is_away:
        with pytest.raises(StorageUnavailable):
            await assumed_routing_table([away, redis_client])
    else:
        first, second = (await assumed_routing_table([redis_client, away])).maps
        assert first == stored
        assert second == msgspec.structs.replace(spread(4, 0, 2, 1, 2), formats=FIRST)
    await away.aclose()


async def store(client: Redis, slot_map: SlotMap) -> None:
    await client.set(SLOTS_KEY, encode_slot_map(slot_map))


async def test_new_data_and_data_whose_engine_starts_as_a_whole_are_written_in_the_formats_of_this_version(redis_client: Redis) -> None:
    assert (await claim_slot_map(redis_client, 2, 1)).formats == FORMATS
    await store(redis_client, msgspec.structs.replace(spread(2), version=7, formats=FORMATS - 1))
    assert (await require_slot_map(redis_client)).formats == FORMATS - 1
    claimed = await claim_slot_map(redis_client, 2, 1)
    assert (claimed.formats, claimed.version) == (FORMATS, 8)


async def test_a_version_that_does_not_read_the_formats_of_the_data_serves_nothing_of_them(redis_client: Redis) -> None:
    await store(redis_client, msgspec.structs.replace(spread(2), formats=FORMATS + 1))
    with pytest.raises(FormatsTooNew, match="install"):
        await require_slot_map(redis_client)
    with pytest.raises(ConfigError, match="install"):
        await claim_slot_map(redis_client, 2, 1)


async def test_whoever_changes_the_owners_keeps_the_formats(redis_client: Redis) -> None:
    before = msgspec.structs.replace(spread(2), formats=FORMATS - 1)
    await store(redis_client, before)
    assert await swap_slot_map(redis_client, before.with_owner([0], 1))
    assert (await require_slot_map(redis_client)).formats == FORMATS - 1


async def test_a_hand_over_whose_answer_was_lost_is_answered_after_the_adoption(redis_client: Redis) -> None:
    before = await claim_slot_map(redis_client, 2, 1)
    source, target = (Journal(redis_client, shard, 60_000) for shard in range(2))
    slot = before.slots_of(0)[0]
    after = before.with_owner([slot], 1)
    epochs = {slot: await source.take_over([slot])}
    assert await hand_over_slots(redis_client, epochs, after, 1)
    await target.take_over([slot])
    assert await hand_over_slots(redis_client, epochs, after, 1)
