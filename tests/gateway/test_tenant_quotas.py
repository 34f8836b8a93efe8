"""Quotas of tenants over HTTP: the tenant that has used one up is refused, with the quota's name, and the others are served."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from redis.asyncio import Redis

from engine.core.wire import records as wire
from engine.store.keys import SUBSCRIBERS_PREFIX, tenants_key
from engine.store.tenant_usage import TenantUsage, UsageFigure
from tests.support.edge_world import DEADLINE_S, EdgeWorld, edge_world, frame_of, standing_still

ITEM = {"user": "u1", "type": "test.event"}


def over_quota(answer: httpx.Response, quota: str) -> dict[str, Any]:
    """The problem of a refusal for this quota."""
    problem: dict[str, Any] = answer.json()
    assert answer.status_code == 429, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert (problem["type"], problem["quota"]) == ("urn:engine:problem:over-quota", quota)
    assert int(answer.headers["retry-after"]) >= 1
    return problem


async def test_a_tenant_that_sends_more_requests_than_its_quota_is_refused_and_the_others_are_not() -> None:
    async with (
        edge_world(tenant_requests_per_s=1) as world,
        world.http(tenant="busy") as busy,
        world.http(tenant="calm") as calm,
        world.http(scopes="operator", tenant="busy") as operator,
    ):
        with standing_still(world):
            publish = [await busy.post("/v1/notifications", json=ITEM) for _ in range(20)]
            over_quota(await busy.get("/v1/heartbeat"), "tenant_requests_per_s")
        assert [answer.status_code for answer in publish[:2]] == [202, 202], "the burst"
        over_quota(publish[-1], "tenant_requests_per_s")
        assert (await calm.post("/v1/notifications", json=ITEM)).status_code == 202
        assert (await calm.get("/v1/heartbeat")).status_code == 200
        assert [(await operator.get("/v1/status")).status_code for _ in range(5)] == [200] * 5
        async with world.connect("u1", token=world.token("u1", tenant="busy")) as socket:
            assert "welcome" in str(await socket.recv())


async def test_without_a_quota_no_tenant_is_refused() -> None:
    async with edge_world() as world, world.http(tenant="busy") as busy:
        assert {(await busy.post("/v1/notifications", json=ITEM)).status_code for _ in range(20)} == {202}


async def test_a_tenant_with_all_its_names_of_signals_counts_on_and_gets_no_new_name(redis_client: Redis) -> None:
    settings = {"tenant_signal_names_max": 3, "signals_flush_ms": 20}
    async with (
        edge_world(storage=redis_client, **settings) as world,
        world.http(tenant="full") as full,
        world.http(tenant="other") as other,
    ):
        names = [{"name": f"n{number}"} for number in range(5)]
        answer = await full.post("/v1/signals", json=names)
        assert answer.json() == {"counted": 5, "dropped": 0}, "nobody knows yet"
        async with asyncio.timeout(DEADLINE_S):
            while (await full.get("/v1/status")).json()["signal_names"] < 3:
                await asyncio.sleep(0.01)
        await world.gateway.tenant_quotas.read()
        over_quota(await full.post("/v1/signals", json={"name": "new"}), "tenant_signal_names_max")
        sums = (await full.get("/v1/signals", params={"name": ["n0", "n1", "n2", "n3", "n4", "new"]})).json()["signals"]
        assert sorted(sums.values()) == [0, 0, 0, 1, 1, 1]
        old = [{"name": name} for name, value in sums.items() if value]
        assert (await full.post("/v1/signals", json=old)).json() == {"counted": 3, "dropped": 0}
        mixed = {"counted": 3, "dropped": 1, "quota": "tenant_signal_names_max"}
        assert (await full.post("/v1/signals", json=[*old, {"name": "new"}])).json() == mixed
        assert (await other.post("/v1/signals", json=[{"name": "new"}])).json() == {"counted": 1, "dropped": 0}
        assert (await other.get("/v1/status")).json()["quotas"] == {"tenant_signal_names_max": 3}


async def test_a_tenant_that_fills_the_batch_of_signals_leaves_room_for_the_others() -> None:
    async with (
        edge_world(signals_names_max=40, signals_flush_ms=600_000) as world,
        world.http(tenant="greedy") as greedy,
        world.http(tenant="other") as other,
    ):
        answer = await greedy.post("/v1/signals", json=[{"name": str(number)} for number in range(100)])
        assert answer.json() == {"counted": 20, "dropped": 80, "quota": "signals_names_max"}
        refused = over_quota(await greedy.post("/v1/signals", json={"name": "one more"}), "signals_names_max")
        assert "this edge" in refused["detail"]
        answer = await other.post("/v1/signals", json=[{"name": str(number)} for number in range(10)])
        assert answer.json() == {"counted": 10, "dropped": 0}


async def full(world: EdgeWorld, client: Redis, figure: UsageFigure, amount: int) -> None:
    """The tenant `full` has so much in storage, and the edge knows."""
    await client.zadd(tenants_key(figure), {"full": amount})
    await world.gateway.tenant_quotas.read()


async def test_a_tenant_with_all_its_bytes_stores_no_more_until_some_are_handled(redis_client: Redis) -> None:
    profile = {"zone": "UTC"}
    async with (
        edge_world(storage=redis_client, tenant_stored_bytes_max=1000) as world,
        world.http(tenant="full") as tenant,
        world.http(tenant="other") as other,
        world.connect("u2", token=world.token("u2", tenant="full")) as socket,
    ):
        await full(world, redis_client, "stored_bytes", 999)
        assert (await tenant.post("/v1/notifications", json=ITEM)).status_code == 202
        await full(world, redis_client, "stored_bytes", 1000)
        for answer in (
            await tenant.post("/v1/notifications", json=ITEM),
            await tenant.post("/v1/events", json={"type": "a.b"}),
            await tenant.put("/v1/subscriptions/x"),
            await tenant.put("/v1/users/u1/profile", json=profile),
        ):
            over_quota(answer, "tenant_stored_bytes_max")
        await socket.send('{"type":"subscribe","topics":["x"]}')
        assert (await frame_of(socket, "error"))["code"] == "over_quota"
        await socket.send('{"type":"unsubscribe","topics":["x"]}')
        assert (await frame_of(socket, "subscribed"))["topics"] == []
        assert (await tenant.post("/v1/ack", json={"seq": 0})).status_code == 200
        assert (await tenant.delete("/v1/subscriptions/x")).status_code == 200
        assert (await other.post("/v1/notifications", json=ITEM)).status_code == 202
        status = (await tenant.get("/v1/status")).json()
        assert (status["stored_bytes"], status["quotas"]) == (1000, {"tenant_stored_bytes_max": 1000})
        await full(world, redis_client, "stored_bytes", 10)
        assert (await tenant.post("/v1/notifications", json=ITEM)).status_code == 202


async def test_a_tenant_with_all_its_topics_may_have_more_subscribers_and_no_new_topic(redis_client: Redis) -> None:
    async with (
        edge_world(storage=redis_client, tenant_topics_max=2) as world,
        world.http(tenant="full") as tenant,
        world.http(tenant="other") as other,
        world.connect("u2", token=world.token("u2", tenant="full")) as socket,
    ):
        await redis_client.hset(SUBSCRIBERS_PREFIX + "full", mapping={"old": 1, "older": 3})
        await full(world, redis_client, "topics", 2)
        over_quota(await tenant.put("/v1/subscriptions/new"), "tenant_topics_max")
        assert (await tenant.put("/v1/subscriptions/old")).status_code == 200
        assert (await other.put("/v1/subscriptions/new")).status_code == 200
        await socket.send('{"type":"subscribe","topics":["older","new"]}')
        assert (await frame_of(socket, "error"))["code"] == "over_quota"
        await socket.send('{"type":"subscribe","topics":["older"]}')
        assert (await frame_of(socket, "subscribed"))["topics"] == ["older"]
        await socket.send('{"type":"unsubscribe","topics":["older"]}')
        assert (await frame_of(socket, "subscribed"))["topics"] == []


async def test_a_new_user_of_a_tenant_that_may_have_no_more_is_refused_by_the_quota_s_name() -> None:
    async with edge_world() as world, world.http(tenant="full") as tenant:
        world.shard.status, world.shard.detail = wire.OVERLOADED, wire.USERS_FULL
        problem = over_quota(await tenant.post("/v1/notifications", json=ITEM), "tenant_users_max")
        assert problem["results"][0]["reason"] == wire.USERS_FULL


async def test_what_storage_said_last_holds_while_it_is_away(redis_client: Redis) -> None:
    async with edge_world(storage=redis_client, tenant_stored_bytes_max=1000) as world, world.http(tenant="full") as tenant:
        await full(world, redis_client, "stored_bytes", 1000)
        await world.gateway.tenant_quotas.read()
        away = TenantUsage(Redis.from_url("unix:///nonexistent/redis.sock"))
        world.gateway.tenant_quotas._usage = away
        await world.gateway.tenant_quotas.read()
        over_quota(await tenant.post("/v1/notifications", json=ITEM), "tenant_stored_bytes_max")
