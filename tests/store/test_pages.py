"""Pages and offline streams on a real Redis: what a checkpoint writes is what a successor reads."""

from __future__ import annotations

import time

import pytest
from redis.asyncio import Redis

from engine.core.journal.journal_records import Spill, removal_of, restore, spill_of
from engine.core.mailbox.mailbox import Mailbox, Message
from engine.core.model.envelope import Envelope, Merge
from engine.core.model.routing import SLOTS, slot_of
from engine.core.shard.mailbox_store import StreamRead
from engine.errors import DataLost, Fenced
from engine.features.windows.core import aggregation
from engine.features.windows.core.aggregation_window import Counted, Ended, WindowItem, Windows
from engine.store.journal import Journal
from engine.store.keys import deadlines_key, looks_key, offline_key, page_key
from engine.store.lua import Script
from engine.store.offline_streams import OfflineStreams
from engine.store.pages import Pages
from tests.support.mailboxes import KEY, mailbox
from tests.support.recorded_runs import recorded_runs
from tests.support.redis_rewind import Moment
from tests.support.stored import LAYOUTS, decode_page

NOW_MS = int(time.time() * 1000)


async def stores_of(client: Redis, key: str = KEY) -> tuple[Pages, OfflineStreams]:
    journal = Journal(client, 0, 1000)
    await journal.take_over([slot_of(key)])
    return Pages(client, journal.loss_detector, LAYOUTS, 10_000), OfflineStreams(client, journal.loss_detector, LAYOUTS)


async def pages_of(client: Redis) -> Pages:
    return (await stores_of(client))[0]


async def test_a_page_comes_back_as_it_was_written(redis_client: Redis) -> None:
    pages = await pages_of(redis_client)
    box = mailbox(NOW_MS, 5)
    spill = spill_of(box)
    await pages.write([spill], NOW_MS)
    read = await pages.read([KEY, "t:nobody"])
    assert read["t:nobody"] is None
    assert read[KEY] == decode_page(KEY, spill.page)
    restored = restore(KEY, read[KEY], NOW_MS)
    assert (restored.head, restored.floor, restored.cold) == (5, 0, (1, 5))


async def test_spilled_messages_are_read_by_their_numbers(redis_client: Redis) -> None:
    pages, offline = await stores_of(redis_client)
    await pages.write([spill_of(mailbox(NOW_MS, 5))], NOW_MS)
    (entries,) = await offline.read([StreamRead(KEY, 2, 4)])
    assert [(entry.seq, entry.envelope.id) for entry in entries] == [(2, "m2"), (3, "m3"), (4, "m4")]


async def test_a_repeated_checkpoint_writes_nothing_twice(redis_client: Redis) -> None:
    pages = await pages_of(redis_client)
    for _ in range(2):
        await pages.write([spill_of(mailbox(NOW_MS, 3))], NOW_MS)
    assert await redis_client.xlen(offline_key(KEY)) == 3


async def test_acknowledged_messages_leave_the_stream(redis_client: Redis) -> None:
    pages = await pages_of(redis_client)
    await pages.write([spill_of(mailbox(NOW_MS, 3))], NOW_MS)
    page = spill_of(mailbox(NOW_MS, 3))
    await pages.write([Spill(KEY, page.page, 3, [], 0)], NOW_MS)
    assert [entry_id for entry_id, _ in await redis_client.xrange(offline_key(KEY))] == [b"3-0"]


async def test_a_stream_lives_as_long_as_its_longest_living_message(redis_client: Redis) -> None:
    pages = await pages_of(redis_client)
    await pages.write([spill_of(mailbox(NOW_MS, 1, ttl_ms=100_000))], NOW_MS)
    assert 0 < await redis_client.pttl(offline_key(KEY)) <= 100_000


async def test_pages_with_open_windows_are_found_until_their_windows_are_closed(redis_client: Redis) -> None:
    pages = await pages_of(redis_client)
    box = mailbox(NOW_MS, 1)
    slots = [slot_of(KEY)]
    await pages.write([spill_of(box)], NOW_MS)
    assert await pages.deadlines(slots) == {slot_of(KEY): []}
    item = WindowItem(
        Envelope("m2", b"digest..", 1, True, b'"id":"m2","data":1', "likes", Merge(300, False, "")), NOW_MS + 60_000, NOW_MS, ""
    )
    box.judge_state = Windows()
    aggregation.apply(box.judge_state, Counted(KEY, 1, item))
    await pages.write([spill_of(box)], NOW_MS)
    assert await pages.deadlines(slots) == {slot_of(KEY): [(KEY, NOW_MS + 300)]}
    page = (await pages.read([KEY]))[KEY]
    assert page is not None
    assert page.windows == box.judge_state
    aggregation.apply(box.judge_state, Ended(KEY, 2, "likes"))
    await pages.write([spill_of(box)], NOW_MS)
    assert await pages.deadlines(slots) == {slot_of(KEY): []}
    restored = (await pages.read([KEY]))[KEY]
    assert restored is not None
    assert restored.windows == Windows(2, {})


async def test_an_older_epoch_writes_no_page(redis_client: Redis) -> None:
    zombie = await pages_of(redis_client)
    await pages_of(redis_client)
    with pytest.raises(Fenced):
        await zombie.write([spill_of(mailbox(NOW_MS, 3))], NOW_MS)
    assert not await redis_client.exists(page_key(slot_of(KEY)), offline_key(KEY))


async def test_a_page_below_the_stored_one_is_refused_with_all_of_its_run(redis_client: Redis) -> None:
    """A mailbox of an older page would give out numbers again."""
    pages = await pages_of(redis_client)
    await pages.write([spill_of(mailbox(NOW_MS, 7))], NOW_MS)
    other = next(key for number in range(1 << 16) if slot_of(key := f"t:other-{number}") == slot_of(KEY))
    stale = spill_of(mailbox(NOW_MS, 6))
    for spills in ([stale], [spill_of(mailbox(NOW_MS, 1, key=other)), stale]):
        with pytest.raises(Fenced, match=KEY):
            await pages.write(spills, NOW_MS)
        read = await pages.read([KEY, other])
        page = read[KEY]
        assert page is not None
        assert (page.head, read[other]) == (7, None)
    await pages.write([spill_of(mailbox(NOW_MS, 300))], NOW_MS)
    await pages.write([spill_of(mailbox(NOW_MS, 300))], NOW_MS)
    with pytest.raises(Fenced):
        await pages.write([spill_of(mailbox(NOW_MS, 299))], NOW_MS)


async def test_a_page_that_cannot_be_read_is_no_measure_for_the_next(redis_client: Redis) -> None:
    pages = await pages_of(redis_client)
    await pages.write([spill_of(mailbox(NOW_MS, 3))], NOW_MS)
    whole = await redis_client.hget(page_key(slot_of(KEY)), KEY)
    await redis_client.hset(page_key(slot_of(KEY)), KEY, whole[:4] + b"\xcd\x7f\xff" + whole[5:-1])
    assert (await pages.read([KEY]))[KEY] is not None
    assert pages.damaged == [KEY]
    await pages.write([spill_of(mailbox(NOW_MS, 4))], NOW_MS)
    page = (await pages.read([KEY]))[KEY]
    assert page is not None
    assert page.head == 4


async def test_a_checkpoint_is_not_written_where_the_one_before_it_is_lost(redis_client: Redis) -> None:
    """It leaves out what the stream has already: on a stream that lost it, the rest would stand alone."""
    pages = await pages_of(redis_client)
    before = await Moment.taken(redis_client)
    box = mailbox(NOW_MS, 2)
    await pages.write([spill_of(box)], NOW_MS)
    pages.confirm()
    box.spilled = 2
    box.append(Message(3, Envelope("m3", b"", 1, True, b'"id":"m3"'), NOW_MS + 60_000, NOW_MS), b"digest..", 64)
    await before.come_back()
    with pytest.raises(DataLost):
        await pages.write([spill_of(box)], NOW_MS)
    assert not await redis_client.exists(page_key(slot_of(KEY)), offline_key(KEY))


async def test_a_late_copy_of_a_checkpoint_does_not_bring_an_old_page_back(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that waited in a dead connection may be applied after its successors."""
    pages = await pages_of(redis_client)
    copies = recorded_runs(monkeypatch)
    await pages.write([spill_of(mailbox(NOW_MS, 1))], NOW_MS)
    newer = spill_of(mailbox(NOW_MS, 2))
    await pages.write([newer], NOW_MS)
    await Script("fenced/slot_checkpoint").run_many(redis_client, copies[0])
    assert await redis_client.hget(page_key(slot_of(KEY)), KEY) == newer.page


async def test_a_corrupt_page_and_a_corrupt_message_are_reported_not_skipped_silently(redis_client: Redis) -> None:
    pages, offline = await stores_of(redis_client)
    await redis_client.hset(page_key(slot_of(KEY)), KEY, b"\xffgarbage")
    assert await pages.read([KEY]) == {KEY: None}
    assert pages.corrupt == [(f"page {KEY}", b"\xffgarbage")]
    await redis_client.xadd(offline_key(KEY), {"m": b"garbage"}, id="1-0")
    assert await offline.read([StreamRead(KEY, 1, 1)]) == [[]]
    assert offline.corrupt == [(f"offline {KEY}", b"garbage")]


async def test_the_sweeper_deletes_what_expired_and_tells_the_oldest_expiry_left(redis_client: Redis) -> None:
    pages, offline = await stores_of(redis_client)
    box = mailbox(NOW_MS, 3, ttl_ms=1000)
    box.hot[3].expires_ms = NOW_MS + 50_000
    await pages.write([spill_of(box)], NOW_MS)
    (swept,) = await offline.sweep([slot_of(KEY)], NOW_MS + 2000, 100)
    assert (swept.key, swept.expires, swept.oldest_expires_ms) == (KEY, True, NOW_MS + 50_000)
    assert [entry_id for entry_id, _ in await redis_client.xrange(offline_key(KEY))] == [b"3-0"]


async def test_an_offline_user_is_bounded_in_bytes_and_what_was_trimmed_is_not_found(redis_client: Redis) -> None:
    """300 messages of 60 KB are 18 MB; a count alone would keep them all."""
    journal = Journal(redis_client, 0, 1000)
    await journal.take_over([slot_of(KEY)])
    pages = Pages(redis_client, journal.loss_detector, LAYOUTS, 10_000, 4 << 20, 64 << 10)
    offline = OfflineStreams(redis_client, journal.loss_detector, LAYOUTS)
    box = Mailbox(KEY, NOW_MS)
    for seq in range(1, 301):
        body = b'"data":"%b"' % (b"x" * 60_000)
        box.append(Message(seq, Envelope(f"m{seq}", b"", 1, True, body), NOW_MS + 60_000, NOW_MS), b"digest..", 64)
        if seq % 30 == 0:
            await pages.write([spill_of(box)], NOW_MS)
            box.spilled = seq
    used = await redis_client.memory_usage(offline_key(KEY), samples=0)
    assert used is not None
    assert used < (4 << 20) + 94 * 61_000
    (found,) = await offline.read([StreamRead(KEY, 1, 300)])
    kept = [stored.seq for stored in found]
    assert kept == list(range(301 - len(kept), 301)), "the newest are kept"
    assert 30 < len(kept) < 170


async def test_a_removed_page_leaves_the_highest_number_of_its_slot_and_nothing_else(redis_client: Redis) -> None:
    pages, offline = await stores_of(redis_client)
    other = next(key for number in range(100_000) if slot_of(key := f"t:other-{number}") == slot_of(KEY))
    box = mailbox(NOW_MS, 3)
    await pages.write([spill_of(box, NOW_MS + 90_000), spill_of(mailbox(NOW_MS, 1, key=other), NOW_MS + 90_000)], NOW_MS)
    box.erase()
    await pages.write([removal_of(box, 0)], NOW_MS)
    assert await pages.read([KEY]) == {KEY: None}
    assert (await pages.read([other]))[other] is not None
    assert not await redis_client.exists(offline_key(KEY))
    assert await redis_client.zrange(looks_key(slot_of(KEY)), 0, -1) == [other.encode()]
    assert await pages.floors(range(SLOTS)) == {slot_of(KEY): 3}
    lower = mailbox(NOW_MS, 1, key=other)
    lower.erase()
    await pages.write([removal_of(lower, 0)], NOW_MS)
    assert await pages.floors(range(SLOTS)) == {slot_of(KEY): 3}
    assert await offline.sweep(range(SLOTS), NOW_MS + 10**10, 100) == []


async def test_a_removed_user_who_got_a_message_meanwhile_has_that_one_only(redis_client: Redis) -> None:
    pages, offline = await stores_of(redis_client)
    box = mailbox(NOW_MS, 3)
    await pages.write([spill_of(box)], NOW_MS)
    await redis_client.zadd(deadlines_key(slot_of(KEY)), {KEY: NOW_MS})  # it had an open window
    box.erase()
    box.append(Message(4, Envelope("m4", b"", 1, True, b'"id":"m4"'), NOW_MS + 60_000, NOW_MS), b"digest..", 64)
    await pages.write([removal_of(box, 0)], NOW_MS)
    (found,) = await offline.read([StreamRead(KEY, 1, 9)])
    assert [stored.seq for stored in found] == [4]
    page = (await pages.read([KEY]))[KEY]
    assert page is not None
    assert (page.head, page.floor, page.cold) == (4, 3, (4, 4))
    assert not await redis_client.exists(deadlines_key(slot_of(KEY)))


async def test_a_checkpoint_of_thousands_leaves_room_for_others_between_its_round_trips(
    redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(redis_client, 0, 1000)
    await journal.take_over(range(SLOTS))
    pages = Pages(redis_client, journal.loss_detector, LAYOUTS, 10_000)
    sizes: list[int] = []
    run_many = Script.run_many

    async def counting(script: Script, client: Redis, calls: list[tuple[list[str], list[object]]]) -> object:
        sizes.append(sum(len(keys) + len(args) for keys, args in calls))
        return await run_many(script, client, calls)

    monkeypatch.setattr(Script, "run_many", counting)
    boxes = [mailbox(NOW_MS, 1, key=f"t:u{n}") for n in range(2000)]
    await pages.write([spill_of(box) for box in boxes], NOW_MS)
    assert len(sizes) >= 20
    assert max(sizes) < 1200, "a thousand and at most one run more, which has the mailboxes of one slot"
    assert set(await pages.read([box.key for box in boxes])) == {box.key for box in boxes}


async def test_runs_of_one_slot_which_expect_each_other_are_not_in_one_round_trip(
    redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = next(key for number in range(100_000) if slot_of(key := f"t:other-{number}") == slot_of(KEY))
    pages = await pages_of(redis_client)
    round_trips = recorded_runs(monkeypatch)
    await pages.write([spill_of(mailbox(NOW_MS, 20)), spill_of(mailbox(NOW_MS, 490, key=other))], NOW_MS)
    assert [len(calls) for calls in round_trips] == [1, 1]
    assert None not in (await pages.read([KEY, other])).values()
