"""What a Redis keeps of an accepted message: read on every new connection, from real servers with every setting."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError

from engine.config import Config
from engine.errors import StorageUnavailable
from engine.store.durability import AS_PROMISED, EVERYSEC, EVICTABLE, MEMORY, OS, UNKNOWN, durability, read_durability
from engine.store.redis_client import connect, wait_ready
from tests.support.redis_server import RedisServer, find_server, start_redis

PROMISED = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}


@pytest.fixture
async def admin(server: RedisServer) -> AsyncIterator[Redis]:
    client = Redis.from_url(server.url, socket_timeout=5)
    yield client
    for name, value in PROMISED.items():
        await client.config_set(name, value)
    await client.aclose()


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("appendfsync", "everysec", EVERYSEC),
        ("appendfsync", "no", OS),
        ("appendonly", "no", MEMORY),
        ("maxmemory-policy", "allkeys-lru", EVICTABLE),
        ("maxmemory-policy", "volatile-ttl", EVICTABLE),
    ],
)
async def test_a_server_that_keeps_less_is_refused_on_connecting_or_reported(
    server: RedisServer, admin: Redis, name: str, value: str, word: str
) -> None:
    assert await read_durability(admin) == AS_PROMISED
    await admin.config_set(name, value)
    assert await read_durability(admin) == word
    required = connect(Config(redis_url=server.url))
    with pytest.raises(ConnectionError, match="redis_durability"):
        await required.ping()
    with pytest.raises(StorageUnavailable, match=r"keeps less than a 202 promises .*appendfsync always"):
        await wait_ready(required, Config(redis_url=server.url), 10)  # at once, not after ten seconds
    reported = connect(Config(redis_url=server.url, redis_durability="reported"))
    assert await reported.ping()
    await admin.config_set(name, PROMISED[name])
    assert await required.ping(), "the same pool connects as soon as the server keeps what is promised"
    await required.aclose()
    await reported.aclose()


async def test_after_a_fail_over_a_server_that_keeps_less_counts_as_away(tmp_path: Path) -> None:
    """The address is the same, the server behind it another one: what was open is closed, and the new connection is asked."""
    server = start_redis(tmp_path)
    client = connect(Config(redis_url=server.url))
    assert await client.ping()
    server.kill()
    weaker = RedisServer(server.program, tmp_path)
    weaker.options = [*weaker.options, "--appendfsync", "everysec"]
    weaker.start()
    try:
        with pytest.raises(ConnectionError):
            await client.set("accepted", "1")  # on the connection that is lost
        with pytest.raises(ConnectionError, match="keeps less than a 202 promises"):
            await client.set("accepted", "1")
    finally:
        await client.aclose()
        weaker.stop()


async def test_a_server_that_forbids_the_question_is_used_and_reported_as_unknown(tmp_path: Path) -> None:
    server = RedisServer(find_server(), tmp_path)
    server.options = [*server.options, "--rename-command", "CONFIG", ""]
    server.start()
    client = connect(Config(redis_url=server.url))
    try:
        assert await client.ping()
        assert await read_durability(client) == UNKNOWN
    finally:
        await client.aclose()
        server.stop()


def test_the_worst_that_holds_is_reported() -> None:
    assert durability(PROMISED) == AS_PROMISED
    assert durability(PROMISED | {"appendonly": "no", "appendfsync": "no"}) == MEMORY
    assert durability({"appendonly": "no", "maxmemory-policy": "allkeys-lru"}) == EVICTABLE
    assert durability({}) == UNKNOWN
