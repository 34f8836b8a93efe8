"""The checks of `engine doctor` against real services, and against ports where nothing listens."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from redis.asyncio import Redis

from engine.cli import service_checks
from engine.cli.feature_checks import of_features
from engine.cli.finding import Finding
from engine.cli.service_checks import key_list, ray_cluster, redis_servers
from engine.config import Config
from tests.support.free_port import free_port
from tests.support.key_server import KeyServer
from tests.support.redis_server import RedisServer, redis_to_break

Check = Callable[[Config], AsyncIterator[Finding]]


async def found_by(check: Check, **settings: Any) -> list[Finding]:
    return [finding async for finding in check(Config(**settings))]


async def levels(check: Check, **settings: Any) -> list[str]:
    return [finding.level for finding in await found_by(check, **settings)]


@pytest.mark.parametrize("check", [redis_servers, ray_cluster, key_list, of_features])
async def test_a_service_that_no_setting_names_is_not_mentioned(check: Check) -> None:
    assert await found_by(check) == []


async def test_a_redis_that_keeps_what_is_promised_passes(redis_server: RedisServer) -> None:
    (finding,) = await found_by(redis_servers, redis_url=redis_server.url)
    assert finding.level == "ok"
    assert re.fullmatch(r"(Valkey|Redis) [\d.]+ at .*, keeps what a 202 promises", finding.found)


async def test_a_redis_that_keeps_less_fails_or_warns_by_the_setting() -> None:
    with redis_to_break() as server:
        async with Redis.from_url(server.url) as client:
            await client.config_set("appendfsync", "everysec")
        assert await levels(redis_servers, redis_url=server.url) == ["failed"]
        (finding,) = await found_by(redis_servers, redis_url=server.url, redis_durability="reported")
    assert (finding.level, "appendfsync everysec" in finding.found) == ("warning", True)


async def test_a_redis_with_another_time_is_told(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 17.0)
    (finding,) = await found_by(redis_servers, redis_url=redis_server.url)
    assert (finding.level, "s apart" in finding.found) == ("warning", True)


@pytest.mark.parametrize("host", ["127.0.0.1", "a" * 64])
async def test_services_that_do_not_answer_are_told(host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(service_checks, "_ANSWER_S", 0.1)
    nowhere = f"{host}:{free_port()}"
    password = "hunter2"
    redis, postgresql = f"redis://:{password}@{nowhere}", f"postgresql://u:{password}@{nowhere}/x"
    found = [
        *await found_by(redis_servers, redis_url=redis),
        *await found_by(ray_cluster, address=nowhere),
        *await found_by(key_list, jwt_jwks_url=f"http://{nowhere}"),
        *await found_by(of_features, history_url=postgresql, data_dir=str(tmp_path)),
    ]
    assert [finding.level for finding in found] == ["failed", "failed", "failed", "failed"]
    assert not any(password in finding.found for finding in found)


@pytest.mark.parametrize("settings", [{"redis_url": "10.0.0.5:6379"}, {"address": "auto"}, {"address": "auto", "redis_url": "unix:///r"}])
async def test_an_unusable_redis_url_is_told(settings: dict[str, str]) -> None:
    (finding,) = await found_by(redis_servers, **settings)
    assert (finding.level, finding.found[:10]) == ("failed", "redis_url:")


async def test_an_impossible_port_of_ray_is_told() -> None:
    assert await levels(ray_cluster, address="127.0.0.1:637900") == ["failed"]


async def test_a_ray_address_without_a_port_is_left_to_ray() -> None:
    assert await found_by(ray_cluster, address="auto") == []


async def test_a_listening_ray_address_passes() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        assert await levels(ray_cluster, address=f"127.0.0.1:{server.sockets[0].getsockname()[1]}") == ["ok"]


async def test_listed_keys_are_counted() -> None:
    with closing(KeyServer()) as server:
        server.publish(one=rsa.generate_private_key(65537, 2048))
        (finding,) = await found_by(key_list, jwt_jwks_url=server.url, jwt_audience="app")
        assert finding.found.startswith("1 listed by")
        server.say(b"[]")
        (finding,) = await found_by(key_list, jwt_jwks_url=server.url, jwt_audience="app")
        assert (finding.level, "not a JWKS document" in finding.found) == ("failed", True)
