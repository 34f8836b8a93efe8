"""Offline streams on a real Redis: range reads, damaged entries, the sweep."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from redis.asyncio import Redis

from engine.core.commit.user_step import apply_mark
from engine.core.inbox.inbox import PINNED, InboxLimits
from engine.core.journal.journal_records import Marked, restore, spill_of
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.envelope import Envelope
from engine.core.model.message import Message
from engine.core.model.routing import SLOTS, slot_of
from engine.core.shard.mailbox_store import StreamRead
from engine.store.journal import Journal
from engine.store.keys import looks_key, offline_key, page_key
from engine.store.offline_streams import OfflineStreams
from engine.store.pages import Pages
from tests.support.mailboxes import KEY, mailbox
from tests.support.shard_world import RETRY
from tests.support.stored import LAYOUTS

NOW_MS = int(time.time() * 1000)
LONG_MS = 600_000
BOB = "t:bob"


async def stores_of(client: Redis, slots: Sequence[int] = (slot_of(KEY), slot_of(BOB))) -> tuple[Pages, OfflineStreams]:
    journal = Journal(client, 0, 1000)
    await journal.take_over(slots)
    return Pages(client, journal.loss_detector, LAYOUTS, 10_000), OfflineStreams(client, journal.loss_detector, LAYOUTS)


async def sweep(offline: OfflineStreams, now_ms: int, pages_max: int = 100) -> list[tuple[str, bool, int]]:
    swept = await offline.sweep(range(SLOTS), now_ms, pages_max)
    return [(found.key, found.expires, found.oldest_expires_ms) for found in swept]


async def ids_in(client: Redis, key: str = KEY) -> list[bytes]:
    return [entry_id for entry_id, _ in await client.xrange(offline_key(key))]


async def test_ranges_of_several_users_are_read_in_the_order_asked(redis_client: Redis) -> None:
    pages, offline = await stores_of(redis_client)
    await pages.write([spill_of(mailbox(NOW_MS, 4)), spill_of(mailbox(NOW_MS, 2, key=BOB))], NOW_MS)
    reads = [StreamRead(BOB, 1, 9), StreamRead(KEY, 2, 3), StreamRead("t:nobody", 1, 9), StreamRead(KEY, 5, 9)]
    assert [[stored.seq for stored in found] for found in await offline.read(reads)] == [[1, 2], [2, 3], [], []]


async def test_while_messages_are_large_fewer_ranges_are_to_be_read_at_once(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.store.offline_streams._REPLY_BYTES", 1000)
    pages, offline = await stores_of(redis_client)
    await pages.write([spill_of(mailbox(NOW_MS, 40))], NOW_MS)
    wanted = []
    for last in (40, 40, 40, 1, 1, 1, 1, 1, 1, 1):
        await offline.read([StreamRead(KEY, 1, last)])
        wanted.append(offline.ranges_max)
    assert wanted == [2, 1, 1, 2, 4, 8, 16, 32, 64, 64]


async def test_a_damaged_entry_is_left_out_and_kept_while_its_neighbours_are_read(redis_client: Redis) -> None:
    pages, offline = await stores_of(redis_client)
    await pages.write([spill_of(mailbox(NOW_MS, 1))], NOW_MS)
    await redis_client.xadd(offline_key(KEY), {"m": b"garbage"}, id="2-0")
    await redis_client.xadd(offline_key(KEY), {"other": b"field"}, id="3-0")
    (found,) = await offline.read([StreamRead(KEY, 1, 9)])
    assert [stored.seq for stored in found] == [1]
    assert offline.corrupt == [(f"offline {KEY}", b"garbage"), (f"offline {KEY}", b"")]


async def test_the_sweep_reads_streams_longer_than_one_chunk(redis_client: Redis) -> None:
    pages, offline = await stores_of(redis_client)
    box = mailbox(NOW_MS, 250, ttl_ms=LONG_MS)
    for seq in (1, 120, 249):
        box.hot[seq].expires_ms = NOW_MS + 1000
    await pages.write([spill_of(box)], NOW_MS)
    assert await sweep(offline, NOW_MS + 2000) == [(KEY, True, NOW_MS + LONG_MS)]
    left = await ids_in(redis_client)
    assert len(left) == 247
    assert not {b"1-0", b"120-0", b"249-0"} & set(left)


async def test_a_swept_stream_without_entries_left_has_no_oldest_expiry(redis_client: Redis) -> None:
    pages, offline = await stores_of(redis_client)
    await pages.write([spill_of(mailbox(NOW_MS, 3, ttl_ms=LONG_MS))], NOW_MS)
    assert await sweep(offline, NOW_MS + LONG_MS) == [(KEY, True, 0)]
    assert await ids_in(redis_client) == []


async def test_the_sweep_touches_no_stream_whose_page_has_nothing_expired_or_cannot_be_read(redis_client: Redis) -> None:
    pages, offline = await stores_of(redis_client)
    await pages.write([spill_of(mailbox(NOW_MS, 3, ttl_ms=LONG_MS))], NOW_MS)
    await redis_client.hset(page_key(slot_of(KEY)), "t:damaged", b"garbage")  # type: ignore[misc]
    await redis_client.zadd(looks_key(slot_of(KEY)), {"t:damaged": NOW_MS})
    assert await sweep(offline, NOW_MS) == []
    assert await redis_client.zrange(looks_key(slot_of(KEY)), 0, -1) == [KEY.encode()]
    assert len(await ids_in(redis_client)) == 3


async def test_of_an_inbox_the_sweep_only_says_what_is_over_and_the_next_checkpoint_deletes_that(redis_client: Redis) -> None:
    keeps = InboxLimits(messages_max=10, keep_ms=LONG_MS, pinned_max=2, numbers_max=100)
    pages, _ = await stores_of(redis_client)
    offline = OfflineStreams(redis_client, pages._loss_detector, LAYOUTS, keeps)
    box = Mailbox(KEY, NOW_MS)
    box.inbox_limits = keeps
    for seq, accepted_ms in ((1, NOW_MS), (2, NOW_MS), (3, NOW_MS + 5)):
        envelope = Envelope(f"m{seq}", b"d" * 8, 1, True, b'"id":"m%d"' % seq)
        box.append(Message(seq, envelope, NOW_MS + 10 * LONG_MS, accepted_ms), b"", 10)
    box.settle_through(3, None, NOW_MS, RETRY)
    apply_mark(box, Marked(KEY, PINNED, True, [2]))
    await pages.write([spill_of(box)], NOW_MS)
    assert await ids_in(redis_client) == [b"1-0", b"2-0", b"3-0"]
    assert await offline.sweep(range(SLOTS), NOW_MS + LONG_MS - 1, 10) == []
    (swept,) = await offline.sweep(range(SLOTS), NOW_MS + LONG_MS, 10)
    assert (swept.overdue.expired, swept.overdue.aged, swept.overdue.due_ms) == ([], [1, 2], NOW_MS + LONG_MS + 5)
    assert len(await ids_in(redis_client)) == 3
    restored = restore(KEY, swept.page, NOW_MS, keeps)
    restored.outdated(swept.overdue.expired, swept.overdue.aged, swept.overdue.due_ms)
    await pages.write([spill_of(restored)], NOW_MS)
    assert await ids_in(redis_client) == [b"2-0", b"3-0"]
    assert restored.inbox is not None
    assert restored.inbox.upto(9) == [2, 3]


async def test_the_sweep_comes_back_to_what_is_too_old_and_pending(redis_client: Redis) -> None:
    keeps = InboxLimits(messages_max=10, keep_ms=1000, pinned_max=2, numbers_max=100)
    pages, _ = await stores_of(redis_client)
    offline = OfflineStreams(redis_client, pages._loss_detector, LAYOUTS, keeps)
    box = Mailbox(KEY, NOW_MS)
    box.inbox_limits = keeps
    box.append(Message(1, Envelope("m1", b"d" * 8, 1, True, b'"id":"m1"'), NOW_MS + LONG_MS, NOW_MS), b"", 10)
    for at_ms in (NOW_MS + 1000, NOW_MS + LONG_MS):
        await pages.write([spill_of(box)], NOW_MS)
        box.spilled = 1
        (swept,) = await offline.sweep(range(SLOTS), at_ms, 10)
        box.outdated(swept.overdue.expired, swept.overdue.aged, swept.overdue.due_ms)
        assert box.inbox is not None
        assert box.inbox.upto(9) == ([1] if at_ms < NOW_MS + LONG_MS else [])
        box.settle_through(1, None, NOW_MS, RETRY)


async def test_the_sweep_costs_the_same_for_a_thousand_and_for_a_hundred_thousand_users(redis_client: Redis) -> None:
    """What is due costs, not who is there."""
    _, offline = await stores_of(redis_client)
    pages, _ = await stores_of(redis_client)
    slots = range(16)
    blob = spill_of(mailbox(NOW_MS, 1, ttl_ms=LONG_MS)).page
    costs = []
    for users in (1000, 100_000):
        pipeline = redis_client.pipeline(transaction=False)
        for slot in slots:
            names = [f"t:{slot}-{number}" for number in range(users // len(slots))]
            pipeline.hset(page_key(slot), mapping=dict.fromkeys(names, blob))
            pipeline.zadd(looks_key(slot), dict.fromkeys(names, NOW_MS + LONG_MS))
        await pipeline.execute()
        await pages.write([spill_of(mailbox(NOW_MS, 3, ttl_ms=1000))], NOW_MS)
        before = (await redis_client.info("stats"))["total_commands_processed"]
        (swept,) = await offline.sweep([*slots, slot_of(KEY)], NOW_MS + 2000, 100)
        costs.append((await redis_client.info("stats"))["total_commands_processed"] - before)
        assert swept.key == KEY
    assert max(costs) <= len(slots) + 5, costs


async def test_a_sweep_takes_so_many_pages_and_the_rest_with_the_next(redis_client: Redis) -> None:
    boxes = [mailbox(NOW_MS, 1, ttl_ms=1000, key=f"{KEY}-{number}") for number in range(5)]
    pages, offline = await stores_of(redis_client, range(SLOTS))
    await pages.write([spill_of(box) for box in boxes], NOW_MS)
    first = await sweep(offline, NOW_MS + 2000, 3)
    assert len(first) == 3
    assert len(await sweep(offline, NOW_MS + 2000, 9)) == 5, "until their pages are stored anew"
