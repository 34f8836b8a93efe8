"""A Redis that refuses writes - out of memory, demoted, its disk full, busy: nothing half done, and it is over when it is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from engine.config import Config
from engine.core.journal.journal_records import spill_of
from engine.core.model.action import Action
from engine.core.model.envelope import Envelope
from engine.core.model.routing import slot_of, split_key
from engine.core.scheduler.scheduler_events import StoreRequest, StoreWork
from engine.core.wire.records import OK, Cancel, Schedule, Timer
from engine.errors import StorageUnavailable
from engine.features.actions.store import ActionStreams, append_actions
from engine.features.dead_letters.store import DeadLetterStream
from engine.features.rules.core.versions import VersionInfo, VersionState
from engine.features.rules.rules_store import RulesStore, StoredState
from engine.store.journal import Journal
from engine.store.pages import Pages
from engine.store.redis_client import claim_data_epoch, replace_data_epoch
from engine.store.timer_store import TimerStore
from tests.support.journal_writer import USER, Writer
from tests.support.mailboxes import KEY, mailbox
from tests.support.redis_rewind import Moment
from tests.support.redis_server import RedisServer
from tests.support.stored import LAYOUTS
from tests.support.waiting import until

DEADLINE_S = 20
NOW_MS = int(time.time() * 1000)
OTHER = "t:same-script"

Trouble = Callable[[Redis], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def out_of_memory(client: Redis) -> AsyncIterator[None]:
    await client.config_set("maxmemory", "1")
    try:
        yield
    finally:
        await client.config_set("maxmemory", "0")


@asynccontextmanager
async def demoted(client: Redis) -> AsyncIterator[None]:
    await client.replicaof("127.0.0.1", "1")
    try:
        yield
    finally:
        await client.replicaof("NO", "ONE")


@asynccontextmanager
async def snapshots_fail(client: Redis) -> AsyncIterator[None]:
    """`stop-writes-on-bgsave-error`: the answer is MISCONF."""
    in_the_way = Path((await client.config_get("dir"))["dir"], "dump.rdb")
    in_the_way.unlink(missing_ok=True)
    in_the_way.mkdir()
    try:
        await client.config_set("save", "3600 1")
        await client.bgsave()
        # The status is that of an earlier test until this one has ended.
        await until(lambda: client.info("persistence"), holds=lambda info: not info["rdb_bgsave_in_progress"])
        assert (await client.info("persistence"))["rdb_last_bgsave_status"] == "err"
        yield
    finally:
        in_the_way.rmdir()
        await client.config_set("save", "")


@asynccontextmanager
async def too_few_replicas(client: Redis) -> AsyncIterator[None]:
    await client.config_set("min-replicas-to-write", "1")
    try:
        yield
    finally:
        await client.config_set("min-replicas-to-write", "0")


@asynccontextmanager
async def busy(client: Redis) -> AsyncIterator[None]:
    """Somebody's endless script."""
    await client.config_set("lua-time-limit", "20")
    endless = asyncio.ensure_future(client.eval("while true do end", 0))  # type: ignore[arg-type]
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await client.ping()
                await asyncio.sleep(0.01)
            except RedisError:
                break
    try:
        yield
    finally:
        await client.script_kill()
        with pytest.raises(RedisError):
            await endless


@pytest.fixture
async def client(server: RedisServer) -> AsyncIterator[Redis]:
    client = Redis.from_url(server.url, socket_timeout=5)
    await client.flushall()
    yield client
    await client.aclose()


TROUBLES = [out_of_memory, demoted, snapshots_fail, too_few_replicas, busy]


async def everything(client: Redis) -> dict[bytes, bytes]:
    return {key: value for key, (value, _) in (await Moment.taken(client)).values.items()}


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_refused_write_leaves_nothing_behind_and_goes_through_afterwards(client: Redis, trouble: Trouble) -> None:
    await claim_data_epoch(client, 1)
    writer = Writer(client)
    await writer.journal.take_over({writer.slot, slot_of(KEY), slot_of(OTHER)})
    await writer.write("before")
    pages = Pages(client, writer.journal.loss_detector, LAYOUTS, 100)
    await pages.write([spill_of(mailbox(NOW_MS, 1))], NOW_MS)
    group = writer.group("a", "b", "c")
    spills = [spill_of(mailbox(NOW_MS, 3)), spill_of(mailbox(NOW_MS, 2, key=OTHER))]
    writes: list[Callable[[], Awaitable[object]]] = [
        lambda: writer.journal.append(group),
        lambda: pages.write(spills, NOW_MS),
        lambda: Journal(client, 4, 1000).take_over([1]),
        lambda: replace_data_epoch(client, "1", 2),
    ]
    before = await everything(client)
    async with trouble(client):
        for write in writes:
            with pytest.raises(StorageUnavailable):
                await write()
    assert await everything(client) == before
    assert await writer.journal.append(group) == {}
    await pages.write(spills, NOW_MS)
    await writer.journal.covered(None, [])
    assert await writer.stored() == ["before", "a", "b", "c"]
    assert (await pages.read([KEY]))[KEY] is not None


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_an_action_is_neither_lost_nor_doubled_by_a_refused_write(client: Redis, trouble: Trouble) -> None:
    config, streams = Config(), ActionStreams(client, Config(), "edge-0")
    first, second = (
        Timer(f"3-{number}", KEY, NOW_MS, 0, 60_000, Envelope(f"m{number}", b"", 1, True, b'"id":"m"'), None, Action("https://h/", "k"))
        for number in range(2)
    )
    await append_actions(client, config, [first])
    (action,) = await streams.read("https://h/", 1)
    before = await everything(client)
    async with trouble(client):
        for write in (lambda: append_actions(client, config, [second]), lambda: streams.give_up(action, "no", 1)):
            with pytest.raises(StorageUnavailable):
                await write()
    assert await everything(client) == before
    assert await append_actions(client, config, [first, second]) == ([first.sid, second.sid], [])
    for _ in range(2):
        await streams.give_up(action, "no", 1)
    assert (await DeadLetterStream(client, config).page(split_key(KEY)[0])).total == 1
    assert [one.id for one in await streams.read("https://h/", 9)] == ["m1"]


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_version_of_the_rules_is_stored_whole_or_not_at_all(client: Redis, trouble: Trouble) -> None:
    store = RulesStore(client, Config())
    first = await store.change(StoredState(), VersionState().stored(VersionInfo(1, 0, "ann", 1, 1, "d"), 9).activated(1, "ann", 0), "one")
    assert first is not None
    before = await everything(client)
    second = first.state.stored(VersionInfo(2, 0, "ann", 1, 1, "e"), 9)
    async with trouble(client):
        with pytest.raises(StorageUnavailable):
            await store.change(first, second, "two")
    assert await everything(client) == before
    assert await store.change(first, second, "two") is not None
    assert await store.texts([1, 2]) == {1: "one", 2: "two"}


@pytest.mark.parametrize("written", [True, False])
async def test_a_rollback_needs_no_memory(client: Redis, written: bool) -> None:
    """Publishers were told 503; the shard must not wait for memory to make that true, and to say so to the next ones at once."""
    writer = Writer(client)
    await writer.journal.take_over([writer.slot])
    group = writer.group("a")
    if written:
        await writer.journal.append(group)
    async with out_of_memory(client):
        await writer.journal.rollback(group)
    writer.intake.refused()
    assert await writer.stored() == []
    assert await writer.write("a") == {}


async def test_a_repeat_is_recognized_without_memory(client: Redis) -> None:
    writer = Writer(client)
    await writer.journal.take_over([writer.slot])
    await writer.write("a", "b")
    writer.mailboxes[USER].recent.clear()  # only storage remembers them
    before = await everything(client)
    async with out_of_memory(client):
        assert set(await writer.write("new", "a")) == {1}
        with pytest.raises(StorageUnavailable):
            await writer.write("new")
    assert await everything(client) == before


async def test_without_memory_nothing_more_is_claimed_and_requests_go_on(client: Redis) -> None:
    """Timers beyond the claim wait: the shards could not journal them either."""
    store = TimerStore(client, Config(), [3], "scheduler-0")
    await store.take_over()
    timer = Timer("3-a", "t:u", NOW_MS + 5000, NOW_MS, 60_000, Envelope("a", b"12345678", 1, True, b""))
    await store.apply([StoreWork(3, NOW_MS, {}, [StoreRequest(Schedule(1, False, timer))])], NOW_MS, NOW_MS + 1000)
    async with out_of_memory(client):
        (done,) = await store.apply([StoreWork(3, NOW_MS, {}, [StoreRequest(Cancel(2, "t", "3-a"))])], NOW_MS, NOW_MS + 2000)
        assert store.reach_ms == NOW_MS + 1000
        assert [answer.status for answer in done.answers] == [OK]
    await store.apply([], NOW_MS, NOW_MS + 2000)
    assert store.reach_ms == NOW_MS + 2000


@pytest.mark.parametrize("work", ["claim", "schedule", "move"])
async def test_a_turn_on_a_demoted_server_fails_as_a_whole(work: str, client: Redis) -> None:
    """Its connection is to be closed, which only an error does: else no turn would ever get to the new master."""
    store = TimerStore(client, Config(), [3], "scheduler-0")
    await store.take_over()
    first, second = (
        Timer(f"3-{name}", "t:u", NOW_MS + 5000, NOW_MS, 60_000, Envelope(name, b"12345678", 1, True, b"")) for name in ("a", "b")
    )
    await store.apply([StoreWork(3, NOW_MS, {}, [StoreRequest(Schedule(1, False, first))])], NOW_MS)
    turns: dict[str, tuple[list[StoreWork], int]] = {
        "claim": ([], NOW_MS + 1000),
        "schedule": ([StoreWork(3, NOW_MS, {}, [StoreRequest(Schedule(2, False, second))])], 0),
        "move": ([StoreWork(3, NOW_MS, {}, [], moved={first.sid: (NOW_MS + 9000, first.key)})], 0),
    }
    turn, claim_ms = turns[work]
    async with demoted(client):
        with pytest.raises(StorageUnavailable):
            await store.apply(turn, NOW_MS, claim_ms)
    await store.apply(turn, NOW_MS, claim_ms)
