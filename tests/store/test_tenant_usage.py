"""What tenants have in storage, on a real Redis: counted with what is written, whatever is written twice, late or not at all."""

from __future__ import annotations

import time
from random import Random

import pytest
from redis.asyncio import Redis

from engine.config import Config
from engine.core.journal.journal_records import removal_of, restore, spill_of
from engine.core.mailbox.mailbox import Mailbox, Message
from engine.core.model.envelope import Envelope
from engine.core.model.routing import TIMER_PARTITIONS, audience_key, partition_of, slot_of, timer_id
from engine.core.scheduler.scheduler_events import StoreRequest, StoreWork
from engine.core.wire.records import OVERLOADED, SCHEDULED, USERS_FULL, Cancel, CancelAll, ListTimers, Reschedule, Schedule, Timer
from engine.errors import StorageUnavailable
from engine.store import keys
from engine.store.journal import Journal
from engine.store.lua import Script
from engine.store.offline_streams import OfflineStreams
from engine.store.pages import Pages
from engine.store.tenant_usage import TenantUsage
from engine.store.timer_store import TIMER_BYTES, TimerStore
from tests.support.mailboxes import mailbox
from tests.support.recorded_runs import recorded_runs
from tests.support.redis_server import RedisServer
from tests.support.stored import LAYOUTS
from tests.support.tenant_recount import counted, recount

NOW_MS = int(time.time() * 1000)
KEYS = ("t:ann", "t:bob", "t:cleo", "u:ann", "u:a:b")


async def stores_of(client: Redis) -> tuple[Pages, OfflineStreams]:
    """Of a shard that owns all slots of `KEYS`."""
    journal = Journal(client, 0, 1000)
    slots = [slot_of(key) for key in KEYS]
    await journal.take_over(slots)
    return Pages(client, journal.loss_detector, LAYOUTS, 10_000), OfflineStreams(client, journal.loss_detector, LAYOUTS)


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
    await redis_client.delete(keys.offline_key(box.key))
    box.spilled = box.head
    await pages.write([spill_of(box)], NOW_MS)
    assert await counted(redis_client, "t") == await recount(redis_client, "t")
    assert (await counted(redis_client, "t"))["stored_bytes"] < before["stored_bytes"]
    assert await redis_client.exists(keys.held_key(slot_of(box.key))) == 0


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


# -- Timers. -----------------------------------------------------------------------------------------------------------
async def timers_of(client: Redis, **settings: int) -> TimerStore:
    """Of a scheduler that owns all partitions."""
    store = TimerStore(client, Config(**settings), range(TIMER_PARTITIONS), "scheduler-0")
    await store.take_over()
    return store


def timer(key: str, unique: str, size: int = 10) -> Timer:
    return Timer(
        timer_id(key, f"{key}-{unique}"), key, NOW_MS + 60_000, NOW_MS, 60_000, Envelope(unique, b"12345678", 1, True, b"x" * size)
    )


async def turn(store: TimerStore, key: str, *requests: object, fired: dict[str, str] | None = None) -> list[int]:
    """The statuses of a turn of this key's partition."""
    work = StoreWork(partition_of(key), 0, fired or {}, [StoreRequest(request) for request in requests])  # type: ignore[arg-type]
    return [answer.status for answer in (await store.apply([work], NOW_MS))[0].answers]


async def test_a_delayed_message_counts_from_its_acceptance_until_it_is_moved_no_more_and_cancelled(redis_client: Redis) -> None:
    store = await timers_of(redis_client)
    one, other = timer("t:ann", "1"), timer("t:ann", "2", 500)
    for _ in range(2):  # as after an answer that was lost
        await turn(store, "t:ann", Schedule(1, False, one), Schedule(2, False, other))
        figures = await counted(redis_client, "t")
        assert figures == await recount(redis_client, "t")
        assert figures["users"] == 1
        assert figures["stored_bytes"] > 500 + 2 * TIMER_BYTES
    await turn(store, "t:ann", Reschedule(1, "t", one.sid, NOW_MS + 90_000))
    assert await counted(redis_client, "t") == figures
    for _ in range(2):
        await turn(store, "t:ann", Cancel(1, "t", one.sid))
        assert await counted(redis_client, "t") == await recount(redis_client, "t")
    assert (await counted(redis_client, "t"))["users"] == 1
    await turn(store, "t:ann", CancelAll(1, "t:ann"))
    assert await redis_client.keys("*tenants*") == []
    assert await redis_client.keys("*unpaged") == []


async def test_a_delayed_message_to_a_topic_or_to_everyone_takes_bytes_and_makes_no_user(redis_client: Redis) -> None:
    store = await timers_of(redis_client, tenant_users_max=1)
    for key in (audience_key("t", "team"), audience_key("t", "")):
        assert await turn(store, key, Schedule(1, False, timer(key, "1"))) == [SCHEDULED]
    figures = await counted(redis_client, "t")
    assert (figures, figures["users"]) == (await recount(redis_client, "t"), 0)


async def test_a_user_is_counted_once_for_a_page_and_for_timers_whichever_comes_or_goes_first(redis_client: Redis) -> None:
    (pages, _), store = await stores_of(redis_client), await timers_of(redis_client)
    box, number = Mailbox("t:ann", NOW_MS), 0

    async def step(what: str) -> None:
        nonlocal number
        if what == "page":
            append(box, 100)
            await pages.write([spill_of(box)], NOW_MS)
            box.spilled = box.head
        elif what == "no page":
            box.erase()
            await pages.write([removal_of(box, NOW_MS)], NOW_MS)
        elif what == "timer":
            number += 1
            await turn(store, box.key, Schedule(1, False, timer(box.key, str(number))))
        elif what == "fires":
            await turn(store, box.key, fired={timer(box.key, str(number)).sid: box.key})
        assert await counted(redis_client, "t") == await recount(redis_client, "t"), what

    for way in (
        ("timer", "page", "fires", "no page"),
        ("timer", "page", "no page", "fires"),
        ("page", "timer", "no page", "fires"),
        ("page", "timer", "fires", "no page"),
        ("timer", "fires", "page", "no page"),
    ):
        for what in way:
            await step(what)
        assert not any((await counted(redis_client, "t")).values()), way


async def test_a_new_user_of_a_tenant_that_has_as_many_as_it_may_gets_no_timer_and_the_others_do(redis_client: Redis) -> None:
    (pages, _), store = await stores_of(redis_client), await timers_of(redis_client, tenant_users_max=2)
    await pages.write([spill_of(mailbox(NOW_MS, 1, key="t:ann"))], NOW_MS)
    taken = next(key for key in (f"t:u{n}" for n in range(1000)) if partition_of(key) == partition_of("t:ann"))
    new = next(key for key in (f"t:v{n}" for n in range(1000)) if partition_of(key) == partition_of("t:ann"))
    work = StoreWork(
        partition_of(new),
        0,
        {},
        [StoreRequest(Schedule(ref, False, timer(key, "1"))) for ref, key in enumerate((taken, new, "t:ann", taken))],
    )
    answers = (await store.apply([work], NOW_MS))[0].answers
    assert [answer.status for answer in answers] == [SCHEDULED, OVERLOADED, SCHEDULED, SCHEDULED]
    assert (answers[1].detail, answers[1].retry_ms) == (USERS_FULL, 60_000)
    assert await turn(store, "u:a:b", Schedule(1, False, timer("u:a:b", "1"))) == [SCHEDULED], "another tenant"
    await turn(store, taken, CancelAll(1, taken))
    assert await turn(store, new, Schedule(1, False, timer(new, "1"))) == [SCHEDULED]
    for tenant in ("t", "u"):
        assert await counted(redis_client, tenant) == await recount(redis_client, tenant)


@pytest.mark.parametrize("seed", range(3))
async def test_the_figures_are_those_of_the_timers_that_are_there_after_any_history(redis_client: Redis, seed: int) -> None:
    """Turns that may be repeated, beside checkpoints of the same users, over successors."""
    (pages, _), store = await stores_of(redis_client), await timers_of(redis_client)
    rng = Random(seed)
    boxes = {key: Mailbox(key, NOW_MS) for key in KEYS}
    known: dict[str, list[str]] = {key: [] for key in (*KEYS, audience_key("t", "x"))}
    for number in range(60):
        key = rng.choice(list(known))
        requests: list[object] = []
        for n in range(rng.randint(0, 4)):
            known[key].append(timer(key, f"{number}.{n}").sid)
            requests.append(Schedule(n, False, timer(key, f"{number}.{n}", rng.choice((1, 3000)))))
        requests += [Cancel(9, key.partition(":")[0], rng.choice(known[key]))] if known[key] and rng.random() < 0.4 else []
        requests += [CancelAll(10, key)] if rng.random() < 0.1 else []
        fired = dict.fromkeys(rng.sample(known[key], rng.randint(0, min(len(known[key]), 6))), rng.choice(("", key)))
        for _ in range(rng.choice((1, 1, 2))):
            await turn(store, key, *rng.sample(requests, len(requests)), fired=fired)
        if key in boxes and rng.random() < 0.5:
            box = boxes[key]
            if rng.random() < 0.5:
                box.erase()
                await pages.write([removal_of(box, NOW_MS)], NOW_MS)
            else:
                append(box, 100)
                await pages.write([spill_of(box)], NOW_MS)
                box.spilled = box.head
        if rng.random() < 0.1:
            store = await timers_of(redis_client)
        for tenant in ("t", "u"):
            assert await counted(redis_client, tenant) == await recount(redis_client, tenant)


async def test_a_user_whose_timer_was_in_quarantine_is_counted_until_the_rest_is_erased(redis_client: Redis) -> None:
    store = await timers_of(redis_client)
    key, partition = "t:ann", partition_of("t:ann")
    lost = timer(key, "lost")
    await turn(store, key, Schedule(1, False, lost), Schedule(2, False, timer(key, "kept")))
    await redis_client.hdel(keys.timer_key(partition), lost.sid)
    await turn(store, key, CancelAll(3, key), ListTimers(4, key, 10))
    assert await redis_client.exists(keys.timer_user_prefix(partition) + key) == 0
    assert (await counted(redis_client, "t"))["users"] == 0


async def test_a_tenant_has_what_it_has_in_all_stores(redis_client: Redis, redis_server: RedisServer) -> None:
    second = Redis.from_url(f"{redis_server.url}?db=1", socket_timeout=5)
    usage = TenantUsage(redis_client, second)
    for client, users, topics in ((redis_client, {"a": 6, "b": 9, "c": 1}, {"a": 3}), (second, {"a": 4, "b": 0, "d": 5}, {"a": 5})):
        await client.zadd(keys.tenants_key("users"), {tenant: count for tenant, count in users.items() if count})
        await client.zadd(keys.tenants_key("topics"), topics)
        await client.hset(keys.SUBSCRIBERS_PREFIX + "a", f"topic-{len(users)}-{users['a']}", "1")
    assert await usage.of("a") == {"users": 10, "stored_bytes": 0, "topics": 5, "signal_names": 0}
    assert await usage.full({"users": 10, "topics": 5}) == {"users": {"a"}, "topics": {"a"}}
    assert await usage.full({"users": 9, "topics": 6}) == {"users": {"a", "b"}, "topics": frozenset()}
    assert await usage.known_topics("a", ["topic-3-6", "topic-3-4", "none"]) == {"topic-3-6", "topic-3-4"}
    await second.aclose()


async def test_the_largest_tenants_are_named_with_all_their_figures(redis_client: Redis) -> None:
    await redis_client.zadd(keys.tenants_key("stored_bytes"), {"big": 900, "small": 5, "gone": 0})
    await redis_client.zadd(keys.tenants_key("users"), {"big": 1, "small": 2, "many": 70})
    await redis_client.zadd(keys.tenants_key("topics"), {"big": 3})
    usage = TenantUsage(redis_client)
    figures = {"users": 0, "stored_bytes": 0, "topics": 0, "signal_names": 0}
    assert await usage.largest(2) == {
        "big": {**figures, "users": 1, "stored_bytes": 900, "topics": 3},
        "small": {**figures, "users": 2, "stored_bytes": 5},
    }
    assert list(await usage.largest(10)) == ["big", "small", "many"]
    with pytest.raises(StorageUnavailable):
        await TenantUsage(Redis(host="127.0.0.1", port=1)).largest(2)
