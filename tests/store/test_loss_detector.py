"""A shard notices that storage has lost what it had confirmed, before it does anything that builds on it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from redis.asyncio import Redis

from engine.core.journal.journal_records import StoredMessage, spill_of
from engine.core.model.routing import slot_of
from engine.core.shard.mailbox_store import StreamRead
from engine.errors import DataLost, Fenced, StorageUnavailable
from engine.store.keys import journal_head_key, journal_key, page_key
from engine.store.lua import Script
from engine.store.offline_streams import OfflineStreams
from engine.store.pages import Pages
from engine.store.redis_client import claim_data_epoch
from tests.support.journal_writer import Writer
from tests.support.mailboxes import KEY, mailbox
from tests.support.redis_rewind import Moment
from tests.support.stored import LAYOUTS, decode_journal
from tests.support.waiting import until

SLOT = slot_of(KEY)
NOW_MS = int(time.time() * 1000)
SAME_SLOT = next(key for number in range(100_000) if slot_of(key := f"t:other-{number}") == SLOT)


@pytest.fixture
async def writer(redis_client: Redis) -> Writer:
    await claim_data_epoch(redis_client, 1_700_000_000)
    writer = Writer(redis_client, key=KEY)
    await writer.journal.take_over([SLOT])
    return writer


async def test_whole_storage_is_no_loss(writer: Writer, redis_client: Redis) -> None:
    epoch = await claim_data_epoch(redis_client, 0)
    for id in ("a", "b"):
        await writer.write(id)
        assert await writer.journal.loss_detector.check(redis_client) == epoch
    await writer.journal.rollback(writer.group("c"))
    writer.intake.refused()
    assert await writer.journal.loss_detector.check(redis_client) == epoch
    await writer.journal.covered(None, [SLOT])
    await writer.journal.covered(2, [SLOT])
    assert await writer.journal.loss_detector.check(redis_client) == epoch


async def test_a_group_is_not_appended_behind_a_lost_one(writer: Writer, redis_client: Redis) -> None:
    await writer.write("a")
    before = await Moment.taken(redis_client)
    await writer.write("b")
    await before.come_back()
    with pytest.raises(DataLost):
        await writer.write("c")
    with pytest.raises(DataLost):
        await writer.journal.loss_detector.check(redis_client)
    assert await writer.stored() == ["a"]


async def test_a_lost_rollback_is_noticed(writer: Writer, redis_client: Redis) -> None:
    """Otherwise the next group would carry the numbers of the one that is there again."""
    group = writer.group("refused")
    await writer.journal.append(group)
    before = await Moment.taken(redis_client)
    await writer.journal.rollback(group)
    writer.intake.refused()
    await before.come_back()
    with pytest.raises(DataLost):
        await writer.journal.loss_detector.check(redis_client)
    with pytest.raises(DataLost):
        await writer.write("next")


async def test_an_append_whose_answer_was_lost_is_no_loss(writer: Writer, redis_client: Redis) -> None:
    group = writer.group("a")
    writes = writer.journal.loss_detector.slots[SLOT]
    head = writes.head
    await writer.journal.append(group)
    writes.head = head  # the answer never came
    await writer.journal.loss_detector.check(redis_client)
    assert await writer.journal.append(group) == {}
    assert await writer.stored() == ["a"]


async def test_a_lost_fence_is_a_loss_and_a_newer_one_is_not(writer: Writer, redis_client: Redis) -> None:
    before = await Moment.taken(redis_client)
    successor = Writer(redis_client, key=KEY)
    await successor.journal.take_over([SLOT])
    with pytest.raises(Fenced):
        await writer.journal.loss_detector.check(redis_client)
    await before.come_back()
    with pytest.raises(DataLost):
        await successor.write("a")
    with pytest.raises(DataLost):
        await successor.journal.loss_detector.check(redis_client)


async def test_an_epoch_is_never_given_out_twice_even_by_a_redis_that_forgot_it(writer: Writer, redis_client: Redis) -> None:
    before = await Moment.taken(redis_client)
    first = await Writer(redis_client, key=KEY).journal.take_over([])
    await before.come_back()
    # A server that comes back takes longer than the millisecond that the epoch is.
    await until(redis_client.time, holds=lambda now: now[0] * 1000 + now[1] // 1000 > first)
    assert await Writer(redis_client, key=KEY).journal.take_over([]) > first


async def test_nothing_is_read_where_a_checkpoint_is_missing(writer: Writer, redis_client: Redis) -> None:
    loss_detector = writer.journal.loss_detector
    pages, offline = Pages(redis_client, loss_detector, LAYOUTS, 100), OfflineStreams(redis_client, loss_detector, LAYOUTS)
    before = await Moment.taken(redis_client)
    await writer.journal.covered(None, [], await pages.write([spill_of(mailbox(NOW_MS, 3))], NOW_MS))
    pages.confirm()
    assert len((await offline.read([StreamRead(KEY, 1, 3)]))[0]) == 3
    await before.come_back()
    with pytest.raises(DataLost):
        await offline.read([StreamRead(KEY, 1, 3)])
    with pytest.raises(DataLost):
        await pages.read([KEY])
    with pytest.raises(DataLost):
        await writer.journal.covered(0, [SLOT])


async def test_the_journal_keeps_what_pages_held_that_were_lost_before_the_checkpoint_was_said_to_be_written(
    writer: Writer, redis_client: Redis
) -> None:
    """A replica that has every group, and not yet the pages, is promoted between the two steps of a checkpoint: nothing is lost."""
    pages = Pages(redis_client, writer.journal.loss_detector, LAYOUTS, 100)
    await writer.write("a")
    before = await Moment.taken(redis_client)
    written = await pages.write([spill_of(mailbox(NOW_MS, 3))], NOW_MS)
    await before.come_back()
    with pytest.raises(StorageUnavailable):
        await writer.journal.covered(1, [SLOT], written)
    assert await writer.stored() == ["a"]
    await writer.journal.covered(1, [SLOT], await pages.write([spill_of(mailbox(NOW_MS, 3))], NOW_MS))
    assert await writer.stored() == []


async def test_a_checkpoint_is_not_missed_where_it_was_not_confirmed_and_is_where_it_was(writer: Writer, redis_client: Redis) -> None:
    pages = Pages(redis_client, writer.journal.loss_detector, LAYOUTS, 100)
    before = await Moment.taken(redis_client)
    await pages.write([spill_of(mailbox(NOW_MS, 3))], NOW_MS)  # and too few replicas had it
    await before.come_back()
    await pages.write([spill_of(mailbox(NOW_MS, 3))], NOW_MS)
    pages.confirm()
    assert await pages.read([KEY]) != {KEY: None}
    await before.come_back()
    with pytest.raises(DataLost):
        await pages.write([spill_of(mailbox(NOW_MS, 3))], NOW_MS)


async def test_the_second_half_of_a_slot_is_not_written_where_the_first_is_missing(
    writer: Writer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica without the first run is promoted between two round trips of one checkpoint, and the client repeats only the second."""
    pages = Pages(redis_client, writer.journal.loss_detector, LAYOUTS, 1000)
    before = await Moment.taken(redis_client)
    round_trips = 0
    run_many = Script.run_many

    async def losing_the_first(script: Script, client: Redis, calls: Any, *more: Any) -> Any:
        nonlocal round_trips
        if script.name == "fenced/slot_checkpoint":
            round_trips += 1
            if round_trips == 2:
                await before.come_back()
        return await run_many(script, client, calls, *more)

    monkeypatch.setattr(Script, "run_many", losing_the_first)
    spills = [spill_of(mailbox(NOW_MS, 400)), spill_of(mailbox(NOW_MS, 400, key=SAME_SLOT))]
    with pytest.raises(StorageUnavailable):
        await pages.write(spills, NOW_MS)
    assert round_trips == 2
    await writer.journal.covered(None, [SLOT], await pages.write(spills, NOW_MS))


async def test_what_a_successor_wrote_is_no_loss_and_nobody_takes_the_shard_back_from_it(writer: Writer, redis_client: Redis) -> None:
    loss_detector = writer.journal.loss_detector
    pages, offline = Pages(redis_client, loss_detector, LAYOUTS, 100), OfflineStreams(redis_client, loss_detector, LAYOUTS)
    await writer.journal.covered(None, [SLOT])
    successor = Writer(redis_client, key=KEY)
    await successor.journal.take_over([SLOT])
    with pytest.raises(Fenced):
        await pages.read([KEY])
    with pytest.raises(Fenced):
        await offline.read([StreamRead(KEY, 1, 3)])
    with pytest.raises(Fenced):
        await loss_detector.check(redis_client)
    with pytest.raises(Fenced):
        await writer.journal.take_over([SLOT])
    await successor.write("a")


async def test_an_empty_redis_is_a_loss_to_everyone(writer: Writer, redis_client: Redis) -> None:
    pages = Pages(redis_client, writer.journal.loss_detector, LAYOUTS, 100)
    await redis_client.flushall()
    with pytest.raises(DataLost):
        await writer.write("a")
    with pytest.raises(DataLost):
        await writer.journal.loss_detector.check(redis_client)
    with pytest.raises(DataLost):
        await pages.write([spill_of(mailbox(NOW_MS, 3))], NOW_MS)
    assert not await redis_client.exists(page_key(SLOT), journal_key(SLOT))


async def test_late_copies_of_finished_writes_change_nothing(writer: Writer, redis_client: Redis) -> None:
    """A command that waited in a dead connection may be applied after its successors."""
    first = writer.group("a")
    writes = writer.journal.loss_detector.slots[SLOT]
    head = writes.head
    await writer.journal.append(first)
    await writer.journal.rollback(first)
    writer.intake.refused()
    await writer.write("b")
    expected, writes.head = writes.head, head
    await writer.journal.rollback(first)
    await writer.journal.append(first)
    writes.head = expected
    assert await redis_client.get(journal_head_key(SLOT)) == expected.encode()
    second = writer.group("c")
    assert await writer.journal.append(second) == {}
    records = [record async for _, payload in writer.journal.entries(SLOT) for record in decode_journal(payload)]
    assert [record.envelope.id for record in records if isinstance(record, StoredMessage)] == ["b", "c"]
