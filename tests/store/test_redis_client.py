"""Connection and data epoch, against a real Redis."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.exceptions import ConnectionError

from engine.config import Config
from engine.core.shard.mailbox_store import StreamRead
from engine.core.shard.output import SessionEvent
from engine.core.wire.records import WEBSOCKET
from engine.errors import ConfigError, StorageUnavailable
from engine.store.epoch import take_epoch
from engine.store.external_streams import Inherited, forget_handed, read_inherited, write_session_events
from engine.store.journal import Journal
from engine.store.loss_detector import LossDetector
from engine.store.offline_streams import OfflineStreams
from engine.store.redis_client import base36, claim_data_epoch, connect, display_url, durability_warnings, wait_ready
from engine.store.tenant_usage import TenantUsage
from engine.store.user_entries import drop_user_entries
from tests.support.free_port import free_port
from tests.support.redis_server import RedisServer, find_server
from tests.support.stored import LAYOUTS


@given(st.integers(min_value=0, max_value=2**63))
def test_base36_is_a_number_without_a_dash(number: int) -> None:
    assert int(base36(number), 36) == number
    assert "-" not in base36(number)


def test_a_password_is_never_displayed() -> None:
    assert display_url("rediss://user:secret@host:6380/1") == "rediss://user:***@host:6380/1"
    assert display_url("redis://:secret@host") == "redis://:***@host"
    assert display_url("redis://host:6380?password=secret&protocol=3") == "redis://host:6380?password=***&protocol=3"
    assert display_url("unix://user:secret@/run/redis.sock?db=1&password=a@b") == "unix://user:***@/run/redis.sock?db=1&password=***"
    assert display_url("unix:///run/redis.sock") == "unix:///run/redis.sock"
    assert display_url("redis://[::1]:6379/0") == "redis://[::1]:6379/0"


def test_an_url_of_something_else_is_refused_by_the_name_of_the_setting() -> None:
    for url in ("http://localhost", "redis://localhost/shop", "rediss://localhost/1/2"):
        with pytest.raises(ConfigError, match="redis_url"):
            connect(Config(redis_url=url))
    connect(Config(redis_url="redis://localhost:6379/12"))
    connect(Config(redis_url="redis://localhost"))


async def test_the_first_use_of_a_redis_makes_its_epoch_and_nothing_changes_it(redis_client: Redis) -> None:
    first = await claim_data_epoch(redis_client, 1_700_000_000)
    assert first == base36(1_700_000_000)
    assert await claim_data_epoch(redis_client, 1_800_000_000) == first


async def test_lost_data_means_another_epoch(redis_client: Redis) -> None:
    first = await claim_data_epoch(redis_client, 1_700_000_000)
    await redis_client.flushall()
    assert await claim_data_epoch(redis_client, 1_700_000_001) != first


async def test_a_redis_that_is_not_there_is_named_without_its_password() -> None:
    config = Config(redis_url="redis://:secret@127.0.0.1:1/0", redis_timeout_ms=200)
    client = connect(config)
    with pytest.raises(StorageUnavailable, match=r"redis://:\*\*\*@127\.0\.0\.1:1/0 does not answer"):
        await wait_ready(client, config, 0.1)
    await client.aclose()


async def test_a_login_without_permissions_is_told(redis_server_url: str, redis_client: Redis) -> None:
    await redis_client.acl_setuser("few", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-info"])
    config = Config(redis_url=redis_server_url.replace("//", "//few:pw@"))
    async with connect(config) as client:
        with pytest.raises(StorageUnavailable, match=r"refuses: .*'info'"):
            await wait_ready(client, config, 1)
    await redis_client.acl_deluser("few")


async def test_an_unknown_option_of_the_url_is_told(redis_server_url: str) -> None:
    config = Config(redis_url=f"{redis_server_url}?pool=9")
    async with connect(config) as client:
        with pytest.raises(ConfigError, match=r"redis_url: .*'pool'"):
            await wait_ready(client, config, 1)


async def test_a_redis_that_may_forget_is_named_as_such(redis_server_url: str, redis_client: Redis) -> None:
    client = connect(msgspec.structs.replace(Config(), redis_url=redis_server_url))
    try:
        await client.config_set("maxmemory-policy", "noeviction")
        assert await durability_warnings(client) == []
        await client.config_set("maxmemory-policy", "allkeys-lru")
        assert [text for text in await durability_warnings(client) if "evict" in text]
    finally:
        await client.config_set("maxmemory-policy", "noeviction")
        await client.aclose()


@pytest.mark.parametrize("kind", ["command", "script"])
async def test_a_write_to_a_demoted_server_closes_its_connection(kind: str, tmp_path: Path) -> None:
    """The next one gets to the new master where a name or an address moves to it."""
    server, port = RedisServer(find_server(), tmp_path), free_port()
    server.options[:2] = "--port", str(port)
    server.start()
    try:
        async with connect(Config(redis_url=f"redis://127.0.0.1:{port}")) as client:
            before = await client.client_id()
            await client.execute_command("REPLICAOF", "127.0.0.1", 1)
            with pytest.raises(ConnectionError, match="no longer the master"):
                await (client.set("key", 2) if kind == "command" else client.eval("return redis.call('SET', KEYS[1], 2)", 1, "key"))
            assert await client.client_id() != before
    finally:
        server.kill()


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: OfflineStreams(client, LossDetector(), LAYOUTS).read([StreamRead("t:ann", 1, 1)]),
        lambda client: OfflineStreams(client, LossDetector(), LAYOUTS).sweep([0], 0, 100),
        lambda client: drop_user_entries(client, "t:ann"),
        lambda client: Journal(client, 0, 1000).take_over([0]),
        lambda client: write_session_events(client, [SessionEvent("connect", "t:ann", "c1", "phone", "edge-0", WEBSOCKET, 1, 0, None)]),
        lambda client: read_inherited(client, 0, [1], 1),
        lambda client: forget_handed(client, 0, Inherited([], [], [b"1"])),
        take_epoch,
        lambda client: TenantUsage(client).of("t"),
        lambda client: TenantUsage(client).full({"users": 1}),
        lambda client: TenantUsage(client).known_topics("t", ["x"]),
    ],
)
async def test_a_silent_redis_is_unavailable(ask: Callable[[Redis], Awaitable[object]]) -> None:
    client = Redis.from_url("unix:///nonexistent/redis.sock")
    with pytest.raises(StorageUnavailable):
        await ask(client)
    await client.aclose()
