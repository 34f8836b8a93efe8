"""Requests of Ray jobs: the answers of HTTP, and who is let in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette

from engine.api.actor_feature import EdgeAnswer
from engine.core.wire import records as wire
from engine.transports.ray_requests import RayRequests
from tests.support.edge_world import EdgeWorld, edge_world
from tests.support.waiting import until

LISTS = {"ray_publish": ("default", "other"), "ray_listen": ("default",)}


@asynccontextmanager
async def ray_world(**settings: Any) -> AsyncIterator[tuple[EdgeWorld, RayRequests]]:
    applications: list[Starlette] = []

    def keep(application: Starlette) -> Starlette:
        applications.append(application)
        return application

    async with edge_world(wrap=keep, **(LISTS | settings)) as world:
        yield world, RayRequests(applications[0], world.authenticator, world.gateway, world.config)


async def publish(requests: RayRequests, *items: dict[str, Any], tenant: Any = "default") -> EdgeAnswer:
    return await requests.answer(tenant, "", "POST", "/v1/notifications", json.dumps(items).encode())


ITEM = {"user": "u1", "type": "t", "id": "one", "data": {"n": 1}}


async def test_results_and_refusals_are_those_of_http() -> None:
    async with ray_world() as (world, requests), world.http() as client:
        bodies = [[ITEM], [ITEM], [{**ITEM, "data": 2}], [{**ITEM, "type": "no type"}], [], [ITEM] * 1001]
        for items in bodies:
            status, headers, body = await publish(requests, *items)
            over_http = await client.post("/v1/notifications", json=[{**item, "user": "u2"} for item in items])
            assert status == over_http.status_code
            assert json.loads(body) == json.loads(over_http.content.replace(b'"u2"', b'"u1"'))
            assert headers["content-type"] == over_http.headers["content-type"]


@pytest.mark.parametrize("tenant", ["nobody", "", None, 7, ["default"], {}])
async def test_a_tenant_that_is_not_listed_is_refused(tenant: Any) -> None:
    async with ray_world() as (world, requests):
        status, _, body = await publish(requests, ITEM, tenant=tenant)
        assert status == 403
        assert "ray_publish" in json.loads(body)["detail"]
        assert world.gateway.metrics.refused[403] == 1


async def test_by_default_nobody_may() -> None:
    async with ray_world(ray_publish=(), ray_listen=()) as (_, requests):
        assert (await publish(requests, ITEM))[0] == 403
        assert (await requests.answer("default", "u1", "GET", "/v1/poll?wait=0", b""))[0] == 403


async def test_the_tenant_is_the_one_that_was_named() -> None:
    async with ray_world() as (world, requests):
        await publish(requests, ITEM, tenant="other")
        assert set(world.shard.mailboxes) == {"other:u1"}


async def test_publishers_are_no_clients_and_clients_no_publishers_and_neither_is_an_operator() -> None:
    async with ray_world() as (_, requests):
        asked = [
            ("", "GET", "/v1/poll?wait=0"),
            ("u1", "POST", "/v1/notifications"),
            ("", "GET", "/v1/status"),
            ("", "DELETE", "/v1/users/u1"),
            ("u1", "DELETE", "/v1/users/u1"),
            ("", "POST", "/v1/tokens/revoke"),
            ("", "POST", "/v1/edges/edge-0/drain"),
        ]
        assert [(await requests.answer("default", user, method, target, b""))[0] for user, method, target in asked] == [403] * len(asked)


async def test_a_listener_gets_the_messages_of_its_user_and_acknowledges_them() -> None:
    async with ray_world() as (world, requests):
        await world.publish(count=2)
        status, _, body = await requests.answer("default", "u1", "GET", "/v1/poll?wait=5", b"")
        assert (status, [message["seq"] for message in json.loads(body)["messages"]]) == (200, [1, 2])
        assert (await requests.answer("default", "u1", "POST", "/v1/ack", b'{"seq": 2}'))[0] == 200
        assert any(settle.seq == 2 for settle in world.shard.of(wire.Settle))


async def test_a_job_reads_the_events_of_a_tenant_that_may_listen_and_nothing_else_of_it() -> None:
    async with ray_world() as (_, requests):
        for tenant, status in (("default", 200), ("other", 403)):
            assert (await requests.answer(tenant, "", "GET", "/v1/event-groups/g/events?consumer=a&wait=0", b""))[0] == status
        for target in ("/v1/event-groups/../dead-letters", "/v1/event-groups%2f..%2fdead-letters", "/v1/event-groupsx"):
            assert (await requests.answer("default", "", "GET", target, b""))[0] == 404
        assert (await requests.answer("default", "u1", "GET", "/v1/event-groups", b""))[0] == 403


@pytest.mark.parametrize(
    ("user", "method", "target", "body", "status"),
    [
        ("", "POST", "v1/notifications", b"", 400),
        ("", "POST", "/v1/not ifications\r\n", b"", 400),
        ("", "POST", b"/v1/notifications", b"", 400),
        ("", "BREW", "/v1/notifications", b"", 400),
        ("", None, "/v1/notifications", b"", 400),
        ("", "POST", "/v1/notifications", "[]", 400),
        ("", "POST", "/v1/notifications", bytes(1 << 21), 413),
        ("", "GET", "/" + "a" * (1 << 17), b"", 414),
        ("\n", "GET", "/v1/poll", b"", 400),
        (7, "GET", "/v1/poll", b"", 400),
        ("u1", "GET", "/v1/sse", b"", 406),
        ("u1", "GET", "/v1/%73se", b"", 406),
        ("u1", "GET", "/v1/sse?ack=explicit", b"", 406),
        ("u1", "GET", "/v1/ws", b"", 406),
        ("u1", "GET", "/v1/nothing", b"", 404),
        ("u1", "GET", "/v1/messages/%ff", b"", 400),
        ("u1", "GET", "/v1/messages/%c3%bc", b"", 404),
    ],
)
async def test_whatever_a_job_sends_is_answered(user: Any, method: Any, target: Any, body: Any, status: int) -> None:
    async with ray_world() as (_, requests):
        answer = await requests.answer("default", user, method, target, body)
        assert answer[0] == status
        assert json.loads(answer[2])["status"] == status


async def test_no_more_requests_than_allowed_are_under_way() -> None:
    async with ray_world(ray_requests_max=2) as (world, requests):
        polls = [asyncio.ensure_future(requests.answer("default", "u1", "GET", "/v1/poll?wait=30", b"")) for _ in range(2)]
        await until(lambda: len(world.shard.attached) == 2)
        status, headers, _ = await publish(requests, ITEM)
        assert (status, headers["retry-after"]) == (429, "1")
        await world.publish()
        assert [answer[0] for answer in await asyncio.gather(*polls)] == [200, 200]
        assert (await publish(requests, {**ITEM, "id": "two"}))[0] == 202


async def test_nothing_is_left_of_the_principal_of_a_request() -> None:
    async with ray_world() as (world, requests):
        await publish(requests, ITEM)
        assert not world.authenticator._granted


async def test_the_engine_itself_publishes_for_any_tenant() -> None:
    async with ray_world(ray_publish=()) as (world, requests):
        bodies = [json.dumps([item]).encode() for item in (ITEM, {**ITEM, "type": "no type"}, {**ITEM, "id": "two"})]
        answers = await requests.ingest("other", "/v1/notifications", bodies)
        assert [status for status, _, _ in answers] == [202, 422, 202]
        assert set(world.shard.mailboxes) == {"other:u1"}
        assert not world.authenticator._granted


async def test_slow_requests_of_the_engine_are_answered_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.transports.ray_requests._INGEST_S", 0)
    async with ray_world() as (world, requests):
        bodies = [json.dumps([{**ITEM, "id": f"n{number}"}]).encode() for number in range(5)]
        assert [status for status, _, _ in await requests.ingest("default", "/v1/notifications", bodies)] == [202]
        assert len(world.shard.mailboxes["default:u1"]) == 1


async def test_requests_of_the_engine_after_one_that_has_to_wait_are_not_made() -> None:
    async with ray_world(tenant_requests_per_s=1) as (world, requests):
        bodies = [json.dumps([{**ITEM, "id": f"n{number}"}]).encode() for number in range(5)]
        answers = await requests.ingest("default", "/v1/notifications", bodies)
        assert [status for status, _, _ in answers] == [202, 202, 429]
        assert float(answers[-1][1]["retry-after"]) > 0
        assert len(world.shard.mailboxes["default:u1"]) == 2
