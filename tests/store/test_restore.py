"""Restoring what a shard holds into a Redis that has lost it."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from engine.core.journal.journal_records import Handled, StoredMessage
from engine.core.model.routing import slot_of, spread
from engine.core.shard.shard import ShardCore
from engine.errors import DataLost, Fenced, StorageUnavailable
from engine.store.journal import Journal
from engine.store.keys import EPOCH_FIELD, META_KEY, journal_key
from engine.store.redis_client import claim_data_epoch
from engine.store.restore import restore_storage
from engine.store.slot_map import read_slot_map
from tests.support.mailboxes import KEY, mailbox
from tests.support.shard_world import small_config
from tests.support.stored import decode_journal

SLOTS = spread(1)
NOW_S = 1_800_000_000
SYNC_MS = 1000


async def shard_of(client: Redis) -> tuple[Journal, ShardCore]:
    """A shard with two pending messages in memory."""
    epoch = await claim_data_epoch(client, NOW_S)
    core = ShardCore(0, small_config(), SLOTS, epoch)
    core.mailbox_store.restore(KEY, None, NOW_S * 1000)
    core.mailboxes[KEY] = mailbox(NOW_S * 1000, 2)
    journal = Journal(client, 0, 60_000)
    await journal.take_over(SLOTS.slots_of(0))
    return journal, core


async def records(journal: Journal) -> list[object]:
    return [record async for _, payload in journal.entries(slot_of(KEY)) for record in decode_journal(payload)]


async def test_an_emptied_redis_gets_slot_map_data_epoch_and_mailboxes(redis_client: Redis) -> None:
    journal, core = await shard_of(redis_client)
    await redis_client.flushall()
    await restore_storage(redis_client, journal, core, core.slot_map, 1 << 20, NOW_S, SYNC_MS)
    assert await read_slot_map(redis_client) == SLOTS
    replaced = await redis_client.hget(META_KEY, EPOCH_FIELD)  # type: ignore[misc]
    assert replaced is not None
    assert replaced.decode() != core.data_epoch, "a cursor of the lost data must not match"
    found = await records(journal)
    assert [record.seq for record in found if isinstance(record, StoredMessage)] == [1, 2]
    assert isinstance(found[-1], Handled)


async def test_it_may_run_again_after_it_failed_half_way(redis_client: Redis) -> None:
    journal, core = await shard_of(redis_client)
    await redis_client.flushall()
    for _ in range(2):
        await restore_storage(redis_client, journal, core, core.slot_map, 1 << 20, NOW_S, SYNC_MS)
    assert {record.seq for record in await records(journal) if isinstance(record, StoredMessage)} == {1, 2}


async def test_small_entries_hold_the_same(redis_client: Redis) -> None:
    journal, core = await shard_of(redis_client)
    await redis_client.flushall()
    await restore_storage(redis_client, journal, core, core.slot_map, 1, NOW_S, SYNC_MS)
    assert await redis_client.xlen(journal_key(slot_of(KEY))) == len(await records(journal)) > 2


async def test_it_returns_when_the_disk_has_all_of_it(redis_client: Redis) -> None:
    journal, core = await shard_of(redis_client)
    await redis_client.config_resetstat()
    await restore_storage(redis_client, journal, core, core.slot_map, 1 << 20, NOW_S, SYNC_MS)
    assert (await redis_client.info("commandstats"))["cmdstat_waitaof"]["failed_calls"] == 0


async def test_a_redis_that_cannot_tell_of_its_disk_gets_all_of_it(redis_client: Redis) -> None:
    journal, core = await shard_of(redis_client)
    await redis_client.flushall()
    await redis_client.execute_command("ACL", "SETUSER", "default", "-waitaof")
    try:
        await restore_storage(redis_client, journal, core, core.slot_map, 1 << 20, NOW_S, SYNC_MS)
    finally:
        await redis_client.execute_command("ACL", "SETUSER", "default", "+waitaof")
    assert await records(journal)


async def test_a_slot_map_that_is_left_stays(redis_client: Redis) -> None:
    journal, core = await shard_of(redis_client)
    await restore_storage(redis_client, journal, core, core.slot_map, 1 << 20, NOW_S, SYNC_MS)
    core.slot_map = spread(2)
    await restore_storage(redis_client, journal, core, core.slot_map, 1 << 20, NOW_S, SYNC_MS)
    assert await read_slot_map(redis_client) == SLOTS


async def test_a_newer_incarnation_keeps_an_older_one_from_restoring(redis_client: Redis) -> None:
    journal, core = await shard_of(redis_client)
    await Journal(redis_client, 0, 60_000).take_over(SLOTS.slots_of(0))
    with pytest.raises(Fenced):
        await restore_storage(redis_client, journal, core, core.slot_map, 1 << 20, NOW_S, SYNC_MS)
    assert await redis_client.xlen(journal_key(slot_of(KEY))) == 0


async def test_a_loss_while_it_runs_is_raised(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, core = await shard_of(redis_client)
    append = journal.append

    async def lose_all_before(group: object) -> object:
        await redis_client.flushall()
        return await append(group)  # type: ignore[arg-type]

    monkeypatch.setattr(journal, "append", lose_all_before)
    with pytest.raises(DataLost):
        await restore_storage(redis_client, journal, core, core.slot_map, 1 << 20, NOW_S, SYNC_MS)


async def test_a_silent_redis_is_unavailable(redis_client: Redis) -> None:
    _, core = await shard_of(redis_client)
    silent = Redis.from_url("unix:///nonexistent/redis.sock")
    with pytest.raises(StorageUnavailable):
        await restore_storage(silent, Journal(silent, 0, 60_000), core, core.slot_map, 1 << 20, NOW_S, SYNC_MS)
    await silent.aclose()
