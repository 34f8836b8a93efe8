"""Subscribing over HTTP: who may, what the shard is asked, what the client is told."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import jwt
import pytest

from engine.core.wire import records as wire
from tests.support.edge_world import SECRET, EdgeWorld, edge_world


@pytest.fixture
async def world() -> AsyncIterator[EdgeWorld]:
    async with edge_world(topics_per_user_max=3) as world:
        yield world


def token(user: str = "u1", scope: str = "connect", **claims: Any) -> str:
    return jwt.encode({"sub": user, "scope": scope, "exp": time.time() + 600, **claims}, SECRET, "HS256")


async def call(world: EdgeWorld, method: str, path: str = "", *, status: int = 200, **claims: Any) -> Any:
    async with world.http() as client:
        headers = {"Authorization": f"Bearer {token(**claims)}"}
        answer = await client.request(method, f"/v1/subscriptions{path}", headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_subscribing_listing_and_unsubscribing(world: EdgeWorld) -> None:
    assert await call(world, "PUT", "/repo:a/b") == {"user": "u1", "topics": ["repo:a/b"]}
    assert await call(world, "PUT", "/news") == {"user": "u1", "topics": ["news", "repo:a/b"]}
    assert await call(world, "DELETE", "/repo%3Aa/b") == {"user": "u1", "topics": ["news"]}
    assert await call(world, "GET", topics=["news", "team.*"]) == {"user": "u1", "topics": ["news"], "by_token": ["news"]}


async def test_the_claim_decides_what_the_bearer_may_subscribe_to_and_unsubscribing_is_always_allowed(world: EdgeWorld) -> None:
    assert (await call(world, "PUT", "/team.a", topics=["team.*"]))["topics"] == ["team.a"]
    problem = await call(world, "PUT", "/other", topics=["team.*"], status=403)
    assert "other" in problem["detail"]
    assert (await call(world, "DELETE", "/team.a", topics=[]))["topics"] == []


async def test_only_publishers_and_admins_look_after_others(world: EdgeWorld) -> None:
    assert (await call(world, "PUT", "/x?user=u2", user="app", scope="publish", topics=["y"]))["user"] == "u2"
    assert (await call(world, "GET", "?user=u2", user="app", scope="admin")) == {"user": "u2", "topics": ["x"]}
    await call(world, "PUT", "/x?user=u2", status=403)
    await call(world, "GET", "?user=u1", status=403)
    await call(world, "GET", user="app", scope="publish", status=403)  # a publisher is no receiver
    assert world.shard.topics == {"default:u2": {"x"}}


@pytest.mark.parametrize("path", ["/a%20b", "/a*", "/" + "x" * 129])
async def test_what_is_no_topic_is_400(world: EdgeWorld, path: str) -> None:
    await call(world, "PUT", path, status=400)


async def test_a_limit_is_429_and_storage_that_is_away_503(world: EdgeWorld) -> None:
    world.shard.subscribe_status = wire.OVERLOADED
    await call(world, "PUT", "/x", status=429)
    world.shard.subscribe_status = wire.UNAVAILABLE
    await call(world, "PUT", "/x", status=503)
