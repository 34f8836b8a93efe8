"""Connection and data epoch, against a real Redis."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from engine.config import Config
from engine.errors import ConfigError, StorageUnavailable
from engine.store.redis_client import base36, claim_data_epoch, connect, display_url, durability_warnings, wait_ready
from tests.support.redis_server import RedisServer


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
    with pytest.raises(ConfigError, match="redis_url"):
        connect(Config(redis_url="http://localhost"))


@pytest.mark.parametrize("piped", [False, True])
async def test_a_task_that_only_asks_redis_ends_when_it_is_cancelled_at_whatever_moment(redis_server: RedisServer, piped: bool) -> None:
    async def ask_for_ever(client: Redis) -> None:
        while True:
            if piped:
                await client.pipeline(transaction=False).get("x").execute()
            else:
                await client.get("x")

    for turns in range(60):
        client = connect(Config(redis_url=redis_server.url, redis_connections_max=1))  # who ends without giving it back is noticed
        asking = asyncio.ensure_future(ask_for_ever(client))
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        done, _ = await asyncio.wait([asking], timeout=10)
        assert done, f"cancelled after {turns} turns of the loop"
        assert asking.cancelled()
        assert await client.ping(), "no reply to another question is left on a connection"
        await client.aclose()


async def test_the_first_use_of_a_redis_makes_its_epoch_and_nothing_changes_it(redis_client: Redis) -> None:
    first = await claim_data_epoch(redis_client, 1_700_000_000)
    assert first == base36(1_700_000_000)
    assert await claim_data_epoch(redis_client, 1_800_000_000) == first


async def test_lost_data_means_another_epoch(redis_client: Redis) -> None:
    first = await claim_data_epoch(redis_client, 1_700_000_000)
    await redis_client.flushall()
    assert await claim_data_epoch(redis_client, 1_700_000_001) != first


async def test_more_commands_than_connections_wait_for_their_turn(redis_server_url: str, redis_client: Redis) -> None:
    import asyncio

    client = connect(Config(redis_url=redis_server_url, redis_connections_max=2))
    try:
        assert sorted(await asyncio.gather(*(client.incr("n") for _ in range(50)))) == list(range(1, 51))
    finally:
        await client.aclose()


class _Frozen(asyncio.Protocol):
    """A Redis that greets, and stops reading with the first command after that."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()

    async def thaw(self) -> None:
        """Read on, until the client is gone."""
        self._transport.resume_reading()
        await self.lost.wait()

    def data_received(self, data: bytes) -> None:
        if b"BIG" in data:
            self._transport.pause_reading()
        elif b"HELLO" in data:
            self._transport.write(b"%1\r\n+proto\r\n:3\r\n" + b"+OK\r\n" * data.count(b"\r\n*"))
        else:
            self._transport.write(b"+OK\r\n" * (data.count(b"\r\n*") + data.startswith(b"*")))


async def test_a_command_that_redis_does_not_take_fails_after_the_timeout(tmp_path: Path) -> None:
    path = str(tmp_path / "redis")
    frozen: list[_Frozen] = []
    server = await asyncio.get_running_loop().create_unix_server(lambda: frozen.append(_Frozen()) or frozen[-1], path)
    client = connect(Config(redis_url=f"unix://{path}", redis_timeout_ms=300))
    async with asyncio.timeout(10):
        with pytest.raises(RedisTimeoutError, match="writing"):
            await client.set("BIG", b"x" * (20 << 20))
        with pytest.raises(RedisTimeoutError, match="reading"):
            await client.set("BIG", b"x")
        await client.aclose()
        for connection in frozen:
            await connection.thaw()
    server.close()


async def test_a_redis_that_is_not_there_is_named_without_its_password() -> None:
    config = Config(redis_url="redis://:secret@127.0.0.1:1/0", redis_timeout_ms=200)
    client = connect(config)
    with pytest.raises(StorageUnavailable, match=r"redis://:\*\*\*@127\.0\.0\.1:1/0 does not answer"):
        await wait_ready(client, config, 0.1)
    await client.aclose()


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
