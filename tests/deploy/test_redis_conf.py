"""deploy/redis.conf: it keeps what the engine asks a Redis to keep, and Ray's own user sees Ray's keys only."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.asyncio import Redis

from engine.store.durability import read_durability
from engine.store.redis_client import durability_warnings
from tests.support.redis_server import RedisServer, find_server

DEPLOY = Path(__file__).parents[2] / "deploy"


def credentials() -> str:
    """The lines that every deployment keeps in a file of its own."""
    lines = re.findall(r"^#   (requirepass .*|user ray .*)$", (DEPLOY / "redis.conf").read_text(), re.MULTILINE)
    assert len(lines) == 2
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "auth.conf").write_text(credentials())
        started = RedisServer(find_server(), Path(folder))
        started.options = f"--port 0 --include {DEPLOY}/redis.conf --include {folder}/auth.conf".split()
        started.start()
        yield started
        started.kill()


async def test_the_engine_accepts_what_it_keeps(server: RedisServer) -> None:
    async with Redis.from_url(server.url, password="CHANGE-ME", decode_responses=True) as client:
        assert await read_durability(client) == ""
        assert await durability_warnings(client) == []


def test_nobody_gets_in_without_a_password(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client, pytest.raises(redis.AuthenticationError):
        client.ping()


def test_rays_user_sees_rays_keys_only(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url, username="ray", password="CHANGE-ME-TOO") as client:
        assert client.hset("RAYdefault@ACTOR", "key", "value") == 1
        assert client.info("server")
        for refused in (
            lambda: client.get("s0:epoch"),
            lambda: client.config_get("*"),
            client.flushall,
            lambda: client.eval("return 1", 0),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                refused()
