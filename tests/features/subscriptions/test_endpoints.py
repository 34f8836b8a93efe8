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


async def test_a_user_in_a_query_that_is_not_utf_8_is_refused() -> None:
    """Two such names would be one."""
    async with edge_world() as world, world.http(scopes="publish") as client:
        for method, path in (("PUT", "/v1/subscriptions/news"), ("GET", "/v1/subscriptions"), ("DELETE", "/v1/scheduled")):
            answer = await client.request(method, f"{path}?user=caf%E9")
            assert (answer.status_code, "`user`" in answer.json()["detail"]) == (400, True)
        assert (await client.put("/v1/subscriptions/news?user=%EF%BF%BD")).json()["user"] == "\ufffd"
        assert world.shard.topics == {"default:\ufffd": {"news"}}


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


async def test_an_admin_lists_the_topics_of_its_tenant_and_an_operator_those_of_any(world: EdgeWorld) -> None:
    asked = {("admin", ""): 200, ("admin", "?tenant=other"): 403, ("operator", "?tenant=other"): 200, ("publish", ""): 403}
    for (scopes, query), status in asked.items():
        assert (await world.once(scopes=scopes).get(f"/v1/topics{query}")).status_code == status, (scopes, query)


async def test_topics_are_listed_a_page_at_a_time() -> None:
    async with edge_world(operator_rows_max=2) as world, world.http(scopes="operator") as client:
        world.figures.topics = {"t": {"one": 1, "two": 2, "zoo": 3}}
        rows = [{"topic": "two", "subscribers": 2}, {"topic": "one", "subscribers": 1}]
        page = {"tenant": "t", "total": 3}
        assert (await client.get("/v1/topics?tenant=t")).json() == {**page, "topics": rows, "after": "0-2"}
        assert (await client.get("/v1/topics?tenant=t&after=0-2")).json() == {**page, "topics": [{"topic": "zoo", "subscribers": 3}]}
        world.figures.away = True
        answer = await client.get("/v1/topics")
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
