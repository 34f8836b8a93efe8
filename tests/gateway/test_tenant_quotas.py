"""Quotas of tenants over HTTP: the tenant that has used one up is refused, with the quota's name, and the others are served."""

from __future__ import annotations

from typing import Any

import httpx

from tests.support.edge_world import edge_world

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
