"""Quotas of tenants over HTTP: the tenant that has used one up is refused, with the quota's name, and the others are served."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from redis.asyncio import Redis

from tests.support.edge_world import DEADLINE_S, edge_world

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
        publish = [await busy.post("/v1/notifications", json=ITEM) for _ in range(20)]
        assert [answer.status_code for answer in publish[:2]] == [202, 202], "the burst"
        over_quota(publish[-1], "tenant_requests_per_s")
        over_quota(await busy.get("/v1/heartbeat"), "tenant_requests_per_s")
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
        await world.gateway.tenant_quotas.read(world.usage)
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
        over_quota(await greedy.post("/v1/signals", json={"name": "one more"}), "signals_names_max")
        answer = await other.post("/v1/signals", json=[{"name": str(number)} for number in range(10)])
        assert answer.json() == {"counted": 10, "dropped": 0}
