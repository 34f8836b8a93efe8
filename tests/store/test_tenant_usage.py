"""What tenants have in storage, on a real Redis: counted with what is written, whatever is written twice, late or not at all."""

from __future__ import annotations

import time
from random import Random

import pytest
from redis.asyncio import Redis

from engine.core.journal.journal_records import removal_of, restore, spill_of
from engine.core.mailbox.mailbox import Mailbox, Message
from engine.core.model.envelope import Envelope
from engine.core.model.routing import slot_of
from engine.errors import StorageUnavailable
from engine.store.journal import Journal
from engine.store.keys import held_key, offline_key, tenants_key, topics_key
from engine.store.lua import Script
from engine.store.offline_streams import OfflineStreams
from engine.store.pages import Pages
from engine.store.tenant_usage import TenantUsage
from tests.support.mailboxes import mailbox
from tests.support.recorded_runs import recorded_runs
from tests.support.tenant_recount import counted, recount

NOW_MS = int(time.time() * 1000)
KEYS = ("t:ann", "t:bob", "t:cleo", "u:ann", "u:a:b")


async def stores_of(client: Redis) -> tuple[Pages, OfflineStreams]:
    """Of a shard that owns all slots of `KEYS`, which are counted."""
    journal = Journal(client, 0, 1000)
    slots = [slot_of(key) for key in KEYS]
    await journal.take_over(slots)
    await TenantUsage(client).count_slots(slots)
    return Pages(client, journal.loss_detector, 10_000), OfflineStreams(client, journal.loss_detector)


def append(box: Mailbox, size: int) -> None:
    body = b'"id":"m%d","data":"%b"' % (box.head + 1, b"x" * size)
    message = Message(box.head + 1, Envelope(f"m{box.head + 1}", b"", 1, True, body), NOW_MS + 60_000, NOW_MS)
    box.append(message, b"digest..", 64)


async def test_users_bytes_and_topics_are_counted_with_the_page_and_fall_with_it(redis_client: Redis) -> None:
    pages, _ = await stores_of(redis_client)
    ann, bob = mailbox(NOW_MS, 3, key="t:ann"), mailbox(NOW_MS, 1, key="t:bob")
    ann.topics, bob.topics = {"x": 1, "y": 2}, {"y": 2}
    for _ in range(2):  # as after an answer that was lost
        await pages.write([spill_of(ann), spill_of(bob)], NOW_MS)
        figures = await recount(redis_client, "t")
        assert (figures["users"], figures["topics"]) == (2, 2)
        assert await counted(redis_client, "t") == figures
        assert await counted(redis_client, "u") == {"users": 0, "stored_bytes": 0, "topics": 0, "signal_names": 0}
    usage = TenantUsage(redis_client)
    assert await usage.known_topics("t", ["x", "y", "z"]) == {"x", "y"}
    assert await usage.known_topics("u", ["x"]) == set()
    assert await usage.full({"users": 2, "topics": 3}) == {"users": {"t"}, "topics": frozenset()}
    ann.topics = {}
    await pages.write([spill_of(ann)], NOW_MS)
    assert await usage.known_topics("t", ["x", "y"]) == {"y"}
    bob.erase()
    ann.settle_through(3, None, NOW_MS, None)  # type: ignore[arg-type]
    await pages.write([removal_of(ann, NOW_MS), removal_of(bob, NOW_MS)], NOW_MS)
    assert not any((await counted(redis_client, "t")).values())
    assert await redis_client.keys("*tenants*") == []


async def test_a_late_copy_of_a_checkpoint_is_counted_once(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    pages, _ = await stores_of(redis_client)
    copies = recorded_runs(monkeypatch)
    await pages.write([spill_of(mailbox(NOW_MS, 1))], NOW_MS)
    await pages.write([spill_of(mailbox(NOW_MS, 5))], NOW_MS)
    for calls in list(copies):
        await Script("fenced/slot_checkpoint").run_many(redis_client, calls)
    assert await counted(redis_client, "t") == await recount(redis_client, "t")


async def test_a_stream_that_expired_or_was_swept_is_no_longer_counted_once_its_page_is_written(redis_client: Redis) -> None:
    pages, _ = await stores_of(redis_client)
    box = mailbox(NOW_MS, 3)
    await pages.write([spill_of(box)], NOW_MS)
    before = await counted(redis_client, "t")
    await redis_client.delete(offline_key(box.key))
    box.spilled = box.head
    await pages.write([spill_of(box)], NOW_MS)
    assert await counted(redis_client, "t") == await recount(redis_client, "t")
    assert (await counted(redis_client, "t"))["stored_bytes"] < before["stored_bytes"]
    assert await redis_client.hkeys(held_key(slot_of(box.key))) == [b""]


@pytest.mark.parametrize("seed", range(3))
async def test_the_figures_are_those_of_what_is_there_after_any_history(redis_client: Redis, seed: int) -> None:
    """Mailboxes that grow, are acknowledged, subscribe, are erased, forgotten and read again, in checkpoints that may be repeated."""
    pages, _ = await stores_of(redis_client)
    rng = Random(seed)
    boxes = {key: Mailbox(key, NOW_MS) for key in KEYS}
    for _ in range(40):
        spills = []
        for key in rng.sample(KEYS, rng.randint(1, len(KEYS))):
            box, step = boxes[key], rng.randrange(5)
            if step == 0:
                box.erase()
                spills.append(removal_of(box, NOW_MS))
                continue
            if step == 1:
                box.settle_through(rng.randint(0, box.head), None, NOW_MS, None)  # type: ignore[arg-type]
            elif step == 2:
                box.topics = dict.fromkeys(rng.sample("abcdef", rng.randint(0, 3)), 1)
            else:
                for _ in range(rng.randint(1, 4)):
                    append(box, rng.choice((1, 5000)))
            spills.append(spill_of(box))
        for _ in range(rng.choice((1, 1, 2))):
            await pages.write(spills, NOW_MS)
        for spill in spills:
            boxes[spill.key].spilled = boxes[spill.key].head
        for tenant in ("t", "u"):
            assert await counted(redis_client, tenant) == await recount(redis_client, tenant)
        if rng.random() < 0.2:  # a successor
            pages, _ = await stores_of(redis_client)
            boxes = {key: restore(key, page, NOW_MS) for key, page in (await pages.read(KEYS)).items()}


async def test_what_an_older_version_has_stored_is_counted_once_when_a_shard_begins(redis_client: Redis) -> None:
    pages, _ = await stores_of(redis_client)
    await pages.write([spill_of(mailbox(NOW_MS, 3, key=key)) for key in KEYS], NOW_MS)
    slots = [slot_of(key) for key in KEYS]
    await redis_client.delete(*(held_key(slot) for slot in slots), *(topics_key(slot) for slot in slots))
    await redis_client.delete(*(tenants_key(figure) for figure in ("users", "stored_bytes", "topics")))
    await pages.write([spill_of(mailbox(NOW_MS, 4, key="t:ann"))], NOW_MS)
    assert (await counted(redis_client, "t"))["users"] == 0, "nothing is counted before all is"
    for _ in range(2):
        await TenantUsage(redis_client).count_slots(slots)
        for tenant, users in (("t", 3), ("u", 2)):
            assert await counted(redis_client, tenant) == await recount(redis_client, tenant)
            assert (await counted(redis_client, tenant))["users"] == users
    pages, _ = await stores_of(redis_client)
    bob = restore("t:bob", (await pages.read(["t:bob"]))["t:bob"], NOW_MS)
    await pages.write([spill_of(bob)], NOW_MS)
    assert await counted(redis_client, "t") == await recount(redis_client, "t")


async def test_a_silent_redis_is_unavailable() -> None:
    client = Redis.from_url("unix:///nonexistent/redis.sock")
    usage = TenantUsage(client)
    for call in (usage.of("t"), usage.full({"users": 1}), usage.known_topics("t", ["x"]), usage.count_slots([1])):
        with pytest.raises(StorageUnavailable):
            await call
    await client.aclose()
