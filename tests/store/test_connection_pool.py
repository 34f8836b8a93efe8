"""The pool and its connections on a real Redis: fast path, waiting, cancellation, packing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.asyncio.connection import Connection
from redis.exceptions import TimeoutError as RedisTimeoutError

from engine.config import Config
from engine.store.connection_pool import CancellableConnection, ConnectionPool
from engine.store.redis_client import connect
from tests.support.redis_server import RedisServer


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
    async with asyncio.timeout(60):
        with pytest.raises(RedisTimeoutError, match="writing"):
            await client.set("BIG", b"x" * (20 << 20))
        with pytest.raises(RedisTimeoutError, match="reading"):
            await client.set("BIG", b"x")
        await client.aclose()
        for connection in frozen:
            await connection.thaw()
    server.close()


class PackingConnection(CancellableConnection, Connection):
    """As `connect` makes them."""


@given(st.lists(st.one_of(st.binary(max_size=20), st.text(max_size=20), st.integers(), st.floats(allow_nan=False)), max_size=5))
def test_commands_are_packed_as_redis_reads_them(args: list[bytes | str | int | float]) -> None:
    packed = b"".join(PackingConnection().pack_command("CLIENT SETNAME", *args))
    reader = hiredis.Reader()
    reader.feed(packed)
    expected = [arg if isinstance(arg, bytes) else str(arg).encode() for arg in args]
    assert reader.gets()[:2] == [b"CLIENT", b"SETNAME"]
    reader.feed(packed)
    found = reader.gets()[2:]
    assert [float(one) if isinstance(arg, float) else one for arg, one in zip(args, found, strict=True)] == [
        arg if isinstance(arg, float) else one for arg, one in zip(args, expected, strict=True)
    ]


async def test_a_connection_is_used_again_and_none_is_opened_that_is_not_needed(redis_server_url: str) -> None:
    client = connect(Config(redis_url=redis_server_url))
    ids = {await client.client_id() for _ in range(5)}
    assert len(ids) == 1
    assert isinstance(client.connection_pool, ConnectionPool)
    await client.aclose()
