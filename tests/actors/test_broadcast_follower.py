"""A shard's follower on a real Redis: it mirrors the log from its beginning, keeps up, sweeps, and appends what timers made due."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from engine.actors.broadcast_follower import BroadcastFollower
from engine.config import Config
from engine.core.mailbox.broadcast_log import BroadcastEntry
from engine.core.model.constants import LOW
from engine.core.model.envelope import Envelope
from engine.core.model.routing import audience_key, spread
from engine.core.shard.shard import ShardCore
from engine.core.wire.records import FireDone, FireFailed, Timer
from engine.store.broadcast_stream import BroadcastLog, Read
from engine.store.keys import BROADCAST_LOG_KEY
from engine.store.redis_client import connect
from tests.support.background_task import background
from tests.support.redis_server import RedisServer
from tests.support.shard_world import small_config
from tests.support.waiting import until

LONG_MS = 10**15


class Shard:
    def __init__(self, client: Redis, **settings: Any) -> None:
        self.log = BroadcastLog(client, Config(**settings))
        self.core = ShardCore(0, small_config(), spread(1), "e1")
        self.follower = BroadcastFollower(self.log, self.core)

    async def append(self, *ids: str, expires_ms: int = LONG_MS, tenant: str = "t") -> list[int]:
        entries = [(BroadcastEntry(tenant, "", Envelope(id, b"digest..", LOW, True, b"{}"), expires_ms, 0), id) for id in ids]
        return [appended.pos for appended in await self.log.append(entries)]

    @property
    def held(self) -> list[str]:
        return [broadcast.envelope.id for broadcast in self.core.broadcast_audience.log.after("t", "", 0)]


@pytest.fixture
async def shard(redis_client: Redis, redis_server: RedisServer) -> AsyncIterator[Shard]:
    """On an empty Redis, through the engine's own client: the library's may lose a cancellation."""
    client = connect(Config(redis_url=redis_server.url))
    yield Shard(client)
    await client.aclose()


async def test_a_start_reads_the_whole_log_page_by_page(shard: Shard) -> None:
    ids = [f"i{number}" for number in range(450)]
    await shard.append(*ids)
    await shard.follower.catch_up()
    assert shard.held == ids


@pytest.mark.parametrize("at_once", [3, 7])
async def test_the_mirror_holds_what_the_log_holds_when_one_tenant_floods_it(
    redis_client: Redis, redis_server: RedisServer, at_once: int
) -> None:
    client = connect(Config(redis_url=redis_server.url))
    shard = Shard(client, broadcasts_max=5)
    await shard.append("a", "b")
    for round_ in range(3):
        await shard.append(*(f"f{round_}{n}" for n in range(at_once)), tenant="flood")
        await shard.follower.catch_up()
        assert shard.held == ["a", "b"]
        assert len(shard.core.broadcast_audience.log) == await redis_client.xlen(BROADCAST_LOG_KEY) == 5
    await client.aclose()


async def test_it_hears_what_comes_and_drops_what_the_log_dropped(shard: Shard, redis_client: Redis) -> None:
    positions = await shard.append("a", "b", "c")
    await shard.follower.catch_up()
    async with background(shard.follower.run(lambda: None)):
        await redis_client.xdel(BROADCAST_LOG_KEY, *[f"{pos}-0" for pos in positions[:2]])  # as newer ones push them out
        await shard.append("d")
        await until(lambda: shard.held == ["c", "d"])


async def test_it_ends_when_cancelled_at_whatever_moment(redis_server: RedisServer) -> None:
    config = Config(redis_url=redis_server.url)
    for turns in range(40):
        client = connect(config)
        shard = Shard(client)
        running = asyncio.ensure_future(shard.follower.run(lambda: None))
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        done, _ = await asyncio.wait([running], timeout=10)
        assert done, f"cancelled after {turns} turns of the loop"
        await client.aclose()


async def test_sweeping_takes_what_expired_out_of_log_and_mirror(shard: Shard, redis_client: Redis) -> None:
    await shard.append("short", expires_ms=100)
    await shard.append("long")
    await shard.follower.catch_up()
    await shard.follower.sweep(100)
    assert shard.held == ["long"]
    assert await redis_client.xlen(BROADCAST_LOG_KEY) == 1


async def test_it_learns_what_left_the_log_before_it_could_read_it_and_what_had_left_when_it_starts(
    shard: Shard, redis_client: Redis
) -> None:
    await shard.append("a")
    await shard.follower.catch_up()
    log = shard.core.broadcast_audience.log
    unread = await shard.append("b", "c")
    await shard.log.drop(unread)
    await shard.follower.sweep(0)
    await shard.follower.catch_up()
    assert (log.head, [lost.pos for lost in log.lost_after("t", "", 0)]) == (unread[1], [unread[1]])
    successor = Shard(redis_client)
    await successor.follower.catch_up()
    assert [lost.pos for lost in successor.core.broadcast_audience.log.lost_after("t", "", 0)] == [unread[1]]
    assert successor.held == ["a"]


async def test_nobody_passes_what_left_the_log_before_its_loss_is_known(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = await shard.append("a")
    await shard.follower.catch_up()
    audience, seen = shard.core.broadcast_audience, []
    read = audience.read

    def reading(*arguments: Any) -> None:
        read(*arguments)
        look = lambda: seen.append((audience.log.head, [lost.pos for lost in audience.log.lost_after("t", "", first)]))  # noqa: E731
        asyncio.get_running_loop().call_soon(look)  # as a group that takes what is due

    monkeypatch.setattr(audience, "read", reading)
    gone, last = await shard.append("b", "c")
    await shard.log.drop([gone])
    await shard.follower.catch_up()
    assert seen[0] == (last, [gone])


async def test_two_readers_at_once_skip_no_entry(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    await shard.append("a")
    await shard.follower.catch_up()
    await shard.log.drop(await shard.append("gone"))
    await shard.follower.sweep(0)
    real, calls, found_nothing, third = shard.log.read, itertools.count(), asyncio.Event(), asyncio.Event()
    others: list[asyncio.Task[None]] = []

    async def read(after: int, *, wait: bool) -> Read:
        call = next(calls)
        if call == 1:
            others.append(asyncio.create_task(shard.follower.catch_up()))
            await found_nothing.wait()
            await shard.append("b")
        elif call == 3:
            third.set()
            await others[0]
        found = await real(after, wait=wait)
        if call == 1:
            await shard.append("c")
            await shard.log.drop(await shard.append("gone too"))
        elif call == 2:
            found_nothing.set()
            await third.wait()
        return found

    monkeypatch.setattr(shard.log, "read", read)
    await shard.follower.catch_up()
    assert shard.held == ["a", "b", "c"]


async def test_a_broadcast_with_another_bit_is_lost_to_those_whom_it_concerns(shard: Shard, redis_client: Redis) -> None:
    positions = await shard.append("a", "b", "c")
    entries: Any = await redis_client.xrange(BROADCAST_LOG_KEY)
    await redis_client.delete(BROADCAST_LOG_KEY)
    for entry_id, fields in entries:
        await redis_client.xadd(BROADCAST_LOG_KEY, {**fields, b"b": fields[b"b"].replace(b"\xa1b", b"\xa1c")}, id=entry_id)
    await shard.follower.catch_up()
    log = shard.core.broadcast_audience.log
    assert shard.held == ["a", "c"]
    assert (log.head, [lost.pos for lost in log.lost_after("t", "", 0)]) == (positions[2], [positions[1]])


async def test_a_follower_that_missed_more_drops_than_are_stored_reads_them_anew(redis_server: RedisServer) -> None:
    client = connect(Config(redis_url=redis_server.url))
    shard = Shard(client, broadcasts_max=3)
    await shard.append("a", "b")
    await shard.follower.catch_up()
    positions = await shard.append(*(f"c{n}" for n in range(9)))
    await shard.follower.catch_up()
    assert shard.held == ["c6", "c7", "c8"]
    assert [lost.pos for lost in shard.core.broadcast_audience.log.lost_after("t", "", 0)] == [positions[5]]
    await client.aclose()


def timer(sid: str) -> Timer:
    return Timer(sid, audience_key("t", ""), 1000, 0, LONG_MS, Envelope(sid, b"digest..", LOW, True, b"{}"))


async def test_a_due_broadcast_is_appended_once_and_confirmed_each_time(shard: Shard) -> None:
    for _ in range(2):
        shard.core.fire([timer("1-a"), timer("1-b")], 1000)
        await shard.follower.announce()
    await shard.follower.announce()  # nothing is due
    await shard.follower.catch_up()
    assert shard.held == ["1-a", "1-b"]
    assert [record for _, record in shard.core.output.to_schedulers] == [FireDone(["1-a", "1-b"])] * 2


async def test_what_storage_does_not_take_has_failed(shard: Shard, redis_client: Redis) -> None:
    shard.core.fire([timer("1-a")], 1000)
    await redis_client.set(BROADCAST_LOG_KEY, "not a stream")
    with pytest.raises(Exception, match="broadcast_log/append"):
        await shard.follower.announce()
    assert [record for _, record in shard.core.output.to_schedulers] == [FireFailed(["1-a"])]
    await redis_client.delete(BROADCAST_LOG_KEY)
    shard.core.fire([timer("1-a")], 1000)
    await shard.follower.announce()
    await shard.follower.catch_up()
    assert shard.held == ["1-a"]
