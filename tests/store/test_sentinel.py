"""Sentinel and replicas, with real servers: the master is found, found again, and a write counts when the replicas have it."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.sentinel import Sentinel
from redis.exceptions import ConnectionError

from engine.config import Config
from engine.core.model.envelope import Envelope
from engine.core.scheduler.scheduler_events import StoreRequest, StoreWork
from engine.core.wire.records import SCHEDULED, Schedule, Timer
from engine.errors import ConfigError, DataLost, StorageUnavailable
from engine.store.journal import Journal
from engine.store.keys import journal_head_key, timer_due_key
from engine.store.lua import NO_REPLICAS, Replicas
from engine.store.masters import MasterSearch
from engine.store.redis_client import connect, display_url, durability_warnings, wait_ready
from engine.store.sentinel import _ToMaster, parse
from engine.store.timer_store import TimerStore
from tests.support.chaos.sentinel_group import SentinelGroup
from tests.support.free_port import free_port
from tests.support.journal_writer import Writer
from tests.support.redis_server import RedisServer, find_server, oldest_supported
from tests.support.waiting import until, until_done

ONE_REPLICA = Replicas(1, 300)
DEADLINE_S = 30
BALLAST_BYTES = 32 << 20
"""More than the kernel's buffers hold between two servers: what follows has not reached a stopped replica."""


# -- the URL -----------------------------------------------------------------------------------------------------------
def test_an_url_names_sentinels_service_database_and_both_logins() -> None:
    address = parse("redis+sentinel://app:p%40ss@a:1,b,[::1]:3/orders/2?sentinel_username=s&sentinel_password=x%26y")
    assert address.sentinels == [("a", 1), ("b", 26379), ("::1", 3)]
    assert address.service == "orders"
    assert address.options == {"username": "app", "password": "p@ss", "db": 2}
    assert address.sentinel_options == {"username": "s", "password": "x&y"}


def test_tls_is_spoken_to_sentinels_and_master() -> None:
    address = parse("rediss+sentinel://a/orders?ssl_ca_certs=/ca.pem")
    assert address.options["ssl_ca_certs"] == "/ca.pem"
    assert address.sentinel_options == {"ssl": True, "ssl_ca_certs": "/ca.pem"}


@pytest.mark.parametrize("url", ["redis+sentinel://a:1", "redis+sentinel:///orders", "redis+sentinel://a:port/orders"])
def test_an_incomplete_url_is_refused_by_the_name_of_the_setting(url: str) -> None:
    with pytest.raises(ConfigError, match="redis_url"):
        connect(Config(redis_url=url))


def test_no_password_of_an_url_is_displayed() -> None:
    url = "redis+sentinel://app:secret@a:1,[::1]:2/orders?sentinel_password=hidden&protocol=2"
    assert display_url(url) == "redis+sentinel://app:***@a:1,[::1]:2/orders?sentinel_password=***&protocol=2"


async def test_connections_that_open_at_once_ask_the_sentinels_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question would be a connection of its own, and over TLS 49 ms of the event loop."""
    asked = 0

    async def answer(_sentinel: Sentinel, _service: str) -> tuple[str, int]:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)
        return "127.0.0.1", 1

    monkeypatch.setattr(Sentinel, "discover_master", answer)
    client = connect(Config(redis_url="redis+sentinel://a/orders"))
    for times in (1, 2):
        failures = await asyncio.gather(*[client.ping() for _ in range(8)], return_exceptions=True)
        assert all(isinstance(failure, ConnectionError) for failure in failures)
        assert asked == times, "later connections ask anew"
    await client.aclose()


@pytest.mark.parametrize("program", ["newest", "oldest"])
async def test_a_script_on_a_demoted_master_closes_the_connection(program: str, tmp_path: Path) -> None:
    """Redis 6.2 only quotes the error in that of the script."""
    server = RedisServer(find_server() if program == "newest" else oldest_supported().path, tmp_path)
    port = free_port()
    server.options[:2] = "--port", str(port)

    async def find() -> tuple[str, int]:
        return "127.0.0.1", port

    connection = _ToMaster(search=MasterSearch(find))
    server.start()
    try:
        await connection.connect()  # type: ignore[no-untyped-call]
        await connection.send_command("REPLICAOF", "127.0.0.1", 1)
        assert await connection.read_response() == b"OK"
        await connection.send_command("EVAL", "return redis.call('SET', KEYS[1], 1)", 1, "key")
        with pytest.raises(ConnectionError, match="no longer the master"):
            await connection.read_response()
        assert not connection.is_connected
    finally:
        await connection.disconnect()
        server.kill()


def test_connections_to_sentinels_share_the_tls_context() -> None:
    pool: Any = connect(Config(redis_url="rediss+sentinel://a,b/orders")).connection_pool
    contexts = {id(sentinel.connection_pool.make_connection().ssl_context) for sentinel in pool._sentinel.sentinels * 2}
    assert contexts == {id(pool.make_connection().ssl_context)}


# -- replicas that are not there ---------------------------------------------------------------------------------------
async def test_without_replicas_nothing_is_accepted_that_asks_for_one(redis_server: RedisServer, redis_client: Redis) -> None:
    writer = Writer(redis_client)
    writer.journal = Journal(redis_client, 3, 60_000, ONE_REPLICA)
    with pytest.raises(StorageUnavailable, match="0 of 1 replicas"):
        await writer.journal.take_over([writer.slot])
    assert "0 replicas are connected" in (await durability_warnings(redis_client, Config(redis_replicas_min=1)))[0]


# -- a group of servers ------------------------------------------------------------------------------------------------
@pytest.fixture
def group() -> Iterator[SentinelGroup]:
    with tempfile.TemporaryDirectory(prefix="engine-sentinel-") as folder, SentinelGroup(Path(folder), down_ms=500) as running:
        yield running


@pytest.fixture
async def client(group: SentinelGroup) -> AsyncIterator[Redis]:
    config = Config(redis_url=group.url)
    client = connect(config)
    await wait_ready(client, config, DEADLINE_S)
    yield client
    await client.aclose()


async def opened(client: Redis, replicas: Replicas) -> Writer:
    writer = Writer(client)
    writer.journal = Journal(client, 3, 60_000, replicas)
    await writer.journal.take_over([writer.slot])
    return writer


async def until_written(writer: Writer, id: str) -> None:
    """As a shard does: the same group again until it is durable."""
    group = writer.group(id)
    assert await until_done(lambda: writer.journal.append(group), StorageUnavailable, within_s=DEADLINE_S) == {}
    writer.intake.committed()


@pytest.mark.slow
async def test_a_write_that_replicas_have_survives_the_death_of_the_master(group: SentinelGroup, client: Redis) -> None:
    writer = await opened(client, ONE_REPLICA)
    await until_written(writer, "before")
    replica = group.replica()
    replica.signal(signal.SIGSTOP)
    unsure = writer.group("unsure")
    with pytest.raises(StorageUnavailable, match="0 of 1 replicas"):
        await writer.journal.append(unsure)
    with pytest.raises(StorageUnavailable, match="0 of 1 replicas"):
        await writer.journal.append(unsure)  # a copy that finds its work done has to wait for the replicas all the same
    replica.signal(signal.SIGCONT)
    await until_done(lambda: writer.journal.append(unsure), StorageUnavailable, within_s=DEADLINE_S)
    writer.intake.committed()
    group.settled()
    master = group.master()
    master.kill()
    writer.journal._replicas = NO_REPLICAS  # the only other server is the master now
    await until_written(writer, "after")
    assert group.master() is not master
    assert await writer.stored() == ["before", "unsure", "after"]


@pytest.mark.slow
async def test_a_fail_over_to_a_replica_that_lagged_is_noticed(group: SentinelGroup, client: Redis) -> None:
    writer = await opened(client, NO_REPLICAS)
    replica, master = group.replica(), group.master()
    with replica.client() as other:
        await until(lambda: other.get(journal_head_key(writer.slot)), DEADLINE_S)
    replica.signal(signal.SIGSTOP)
    await client.set("ballast", bytes(BALLAST_BYTES))
    await until_written(writer, "lost")
    master.kill()
    replica.signal(signal.SIGCONT)
    with pytest.raises(DataLost):
        await until_written(writer, "next")


@pytest.mark.slow
async def test_a_timer_is_scheduled_when_the_replicas_have_it(group: SentinelGroup, client: Redis) -> None:
    config = Config(redis_url=group.url, redis_replicas_min=1, redis_replicas_timeout_ms=300)
    store = TimerStore(client, config, [3], "scheduler-0")
    await store.take_over()
    now_ms = int(time.time() * 1000)

    def work(sid: str) -> list[StoreWork]:
        timer = Timer(sid, "default:ann", now_ms + 60_000, now_ms, 60_000, Envelope(sid, b"digest..", 1, True, b'"id":"x"'))
        return [StoreWork(3, now_ms, {}, [StoreRequest(Schedule(1, False, timer))], None)]

    (done,) = await store.apply(work("3-a"), now_ms)
    assert done.answers[0].status == SCHEDULED
    replica = group.replica()
    replica.signal(signal.SIGSTOP)
    with pytest.raises(StorageUnavailable, match="0 of 1 replicas"):
        await store.apply(work("3-b"), now_ms)
    replica.signal(signal.SIGCONT)
    with replica.client() as other:
        await until(lambda: other.zcard(timer_due_key(3)), DEADLINE_S, holds=lambda count: count == 2)
