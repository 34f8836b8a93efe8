"""The HTTP endpoints over a real server: answers, errors, limits, origins."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import msgspec
import pytest

from engine.core.wire import records as wire
from engine.features.traces.edge_spans import EdgeSpans
from tests.support.edge_world import DEADLINE_S, EdgeWorld, edge_world
from tests.support.listed_spans import ListedSpans
from tests.support.waiting import until

ITEM = {"user": "u1", "type": "test.event"}


def problem(answer: Any, status: int) -> dict[str, Any]:
    """The problem details of an answer, which must be complete."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["status"] == status
    assert {"type", "title", "detail"} <= body.keys()
    return body


# -- publishing ------------------------------------------------------------------------------------------------------------
async def test_results_come_in_order_with_each_items_own_outcome(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    items = [{**ITEM, "id": "a"}, {**ITEM, "users": ["x", "y"], "id": "b"} | {}, {**ITEM, "delay": 60}, {**ITEM, "id": "a"}]
    del items[1]["user"]
    answer = await client.post("/v1/notifications", json=items)
    assert answer.status_code == 202, answer.text
    body = answer.json()
    assert [(result["user"], result["status"]) for result in body["results"]] == [
        ("u1", "accepted"),
        ("x", "accepted"),
        ("y", "accepted"),
        ("u1", "scheduled"),
        ("u1", "duplicate"),
    ]
    assert body["accepted"] == 4
    assert body["results"][4]["seq"] == body["results"][0]["seq"] == 1
    assert body["results"][3]["scheduled_id"] in world.scheduler.timers


async def test_a_conflict_tells_the_outcome_of_every_item(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    await client.post("/v1/notifications", json={**ITEM, "id": "a", "data": 1})
    answer = await client.post("/v1/notifications", json=[{**ITEM, "id": "b"}, {**ITEM, "id": "a", "data": 2}])
    body = problem(answer, 409)
    assert [error["index"] for error in body["errors"]] == [1]
    assert [result["status"] for result in body["results"]] == ["accepted", "conflict"]


@pytest.mark.parametrize(("code", "status"), [(wire.UNAVAILABLE, 503), (wire.OVERLOADED, 429)])
async def test_what_storage_or_a_limit_refuses_is_an_error_that_says_when_to_retry(
    world: EdgeWorld, client: httpx.AsyncClient, code: int, status: int
) -> None:
    world.shard.status = code
    answer = await client.post("/v1/notifications", json=[ITEM, {**ITEM, "delay": 60}])
    body = problem(answer, status)
    assert int(answer.headers["retry-after"]) >= 1
    assert [result["status"] for result in body["results"]] == [wire.PUBLISH_STATUS[code], "scheduled"]
    assert [error["index"] for error in body["errors"]] == [0]


async def test_a_publish_without_an_answer_ends_with_503_in_time() -> None:
    async with edge_world(publish_timeout_ms=300) as world, world.http() as client:
        world.shard.connected = False
        answer = await client.post("/v1/notifications", json=ITEM)
        assert problem(answer, 503)["results"][0]["status"] == "unavailable"
        assert not len(world.gateway.pending_calls)


async def test_too_many_unanswered_items_are_429_and_nothing_is_sent() -> None:
    async with edge_world(publish_inflight_max=3, publish_timeout_ms=20_000) as world, world.http() as client:
        world.shard.connected = False
        waiting = asyncio.ensure_future(client.post("/v1/notifications", json=[ITEM, ITEM]))
        await until(lambda: len(world.gateway.pending_calls) == 2)
        answer = await client.post("/v1/notifications", json=[ITEM, ITEM])
        problem(answer, 429)
        assert "retry-after" in answer.headers
        world.shard.reset()
        assert (await waiting).status_code == 202


async def test_a_made_id_that_was_sent_twice_by_us_is_accepted_once(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    outgoing = world.shard.say
    world.shard.say = lambda *_records: None  # type: ignore[method-assign]  # the answer is lost
    posting = asyncio.ensure_future(client.post("/v1/notifications", json=ITEM))
    await until(lambda: world.shard.of(wire.Post))
    world.shard.say = outgoing  # type: ignore[method-assign]
    world.shard.reset()
    assert (await posting).json()["results"][0] | {"id": ""} == {"id": "", "user": "u1", "status": "accepted", "seq": 1}


async def test_a_body_over_the_limit_is_refused_however_long_it_says_it_is() -> None:
    async with edge_world(body_bytes_max=10_000) as world, world.http() as client:
        problem(await client.post("/v1/notifications", content=b"x" * 10_001), 413)

        async def chunks() -> Any:
            for _ in range(20):
                yield b"x" * 1000

        problem(await client.post("/v1/notifications", content=chunks()), 413)
        assert (await client.post("/v1/notifications", json=ITEM)).status_code == 202


@pytest.mark.parametrize("part", ["GET /healthz HTTP/1.1\r\nHo", "POST /v1/ack HTTP/1.1\r\nHost: x\r\n{}Content-Length: 9\r\n\r\n1"])
async def test_a_client_that_never_sends_the_whole_of_its_request_is_cut_off(part: str) -> None:
    async with edge_world(request_timeout_s=1) as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(part.format(f"Authorization: Bearer {world.token('u1')}\r\n").encode())
        assert (await asyncio.wait_for(reader.read(), DEADLINE_S)).startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_publishing_needs_a_token_with_the_scope(world: EdgeWorld) -> None:
    problem(await world.once(scopes="connect").post("/v1/notifications", json=ITEM), 403)
    async with world.http() as client:
        answer = await client.post("/v1/notifications", json=ITEM, headers={"Authorization": ""})
        problem(answer, 401)
        assert answer.headers["www-authenticate"].startswith("Bearer")


# -- scheduled -------------------------------------------------------------------------------------------------------------
async def test_all_scheduled_notifications_of_a_user_or_a_collapse_key_are_cancelled(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    items = [{**ITEM, "delay": 60}, {**ITEM, "delay": 70}, {**ITEM, "user": "u2", "delay": 60}]
    sids = [result["scheduled_id"] for result in (await client.post("/v1/notifications", json=items)).json()["results"]]
    timer = world.scheduler.timers[sids[1]]
    timer.envelope = msgspec.structs.replace(timer.envelope, collapse="cart")
    listed = (await client.get("/v1/scheduled", params={"user": "u1", "collapse": "cart"})).json()["scheduled"]
    assert [timer["scheduled_id"] for timer in listed] == [sids[1]]
    assert (await client.delete("/v1/scheduled", params={"user": "u1", "collapse": "cart"})).json() == {"cancelled": 1}
    assert world.scheduler.timers.keys() == {sids[0], sids[2]}
    assert (await world.once("stranger", tenant="other").delete("/v1/scheduled", params={"user": "u1"})).json() == {"cancelled": 0}
    assert (await client.delete("/v1/scheduled", params={"user": "u1"})).json() == {"cancelled": 1}
    assert world.scheduler.timers.keys() == {sids[2]}


async def test_scheduled_notifications_are_inspected_moved_listed_and_cancelled(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/notifications", json={**ITEM, "id": "later", "delay": 3600, "data": {"n": 1}})
    sid = answer.json()["results"][0]["scheduled_id"]
    seen = (await client.get(f"/v1/scheduled/{sid}")).json()
    assert seen["scheduled_id"] == sid
    assert seen["user"] == "u1"
    assert seen["notification"]["id"] == "later"
    assert seen["notification"]["data"] == {"n": 1}
    moved = (await client.patch(f"/v1/scheduled/{sid}", json={"at": seen["scheduled_at"] + 5000})).json()
    assert moved["scheduled_at"] == seen["scheduled_at"] + 5000
    assert [timer["scheduled_id"] for timer in (await client.get("/v1/scheduled?user=u1")).json()["scheduled"]] == [sid]
    assert (await client.delete(f"/v1/scheduled/{sid}")).json() == {"scheduled_id": sid, "status": "cancelled"}
    problem(await client.get(f"/v1/scheduled/{sid}"), 404)


async def test_a_fired_timer_is_409_an_unknown_one_404_and_another_tenants_too(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    sid = (await client.post("/v1/notifications", json={**ITEM, "delay": 60})).json()["results"][0]["scheduled_id"]
    async with world.http(tenant="other") as stranger:
        problem(await stranger.get(f"/v1/scheduled/{sid}"), 404)
        problem(await stranger.delete(f"/v1/scheduled/{sid}"), 404)
    world.scheduler.fired.add(sid)
    problem(await client.delete(f"/v1/scheduled/{sid}"), 409)
    problem(await client.patch(f"/v1/scheduled/{sid}", json={"delay": 5}), 409)
    for unknown in ("5-nothing", "rubbish", "99-x", "-1"):
        problem(await client.get(f"/v1/scheduled/{unknown}"), 404)


# -- receiving over HTTP ---------------------------------------------------------------------------------------------------
async def test_an_ack_by_http_settles_and_one_from_the_future_is_refused(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    await world.publish(count=2)
    assert (await client.post("/v1/ack", json={"seq": 2})).status_code == 200
    assert world.shard.acked["default:u1"] == 2
    problem(await client.post("/v1/ack", json={"seq": 9}), 409)
    await world.publish()
    problem(await client.post("/v1/ack", json={"seq": 3, "epoch": "of another time"}), 409)
    assert world.shard.acked["default:u1"] == 2
    problem(await client.post("/v1/ack", json={"seq": "2"}), 422)
    problem(await client.post("/v1/ack", content=b"{"), 400)


async def test_a_nack_by_http_is_the_bearers_and_names_the_wrong_field(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/nack", json={"ids": ["m1", "m2"], "reason": "no such post"})
    assert (answer.status_code, answer.json()) == (200, {"nacked": True})
    (refuse,) = world.shard.of(wire.Refuse)
    assert (refuse.key, refuse.ids, refuse.reason) == ("default:u1", ["m1", "m2"], "no such post")
    refused = problem(await client.post("/v1/nack", json={"ids": []}), 422)
    assert refused["errors"] == [{"path": "$.ids", "detail": "at least one id is needed"}]
    problem(await client.post("/v1/nack", content=b"{"), 400)
    problem(await client.get("/v1/nack"), 405)
    assert len(world.shard.of(wire.Refuse)) == 1


async def test_a_nack_by_http_is_a_span_that_failed(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    listed = ListedSpans()
    world.gateway.observers = [EdgeSpans(listed.spans)]
    assert (await client.post("/v1/nack", json={"ids": ["m1"]})).status_code == 200
    assert [(span.name, span.error) for span in listed.found] == [("acknowledge", "refused")]


async def test_the_probe_tells_presence_and_the_newest_number(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    headers = {"X-Client-ID": "phone", "X-Last-Seq": "0"}
    assert (await client.get("/v1/heartbeat", headers=headers)).json() == {"online": False, "state": "offline", "seq": 0}
    await world.publish(count=3)
    async with world.connect():
        await until(lambda: world.shard.attached)
        assert (await client.get("/v1/heartbeat")).json() == {"online": True, "state": "connected", "seq": 3}
    problem(await client.get("/v1/heartbeat", headers={"X-Last-Seq": "x"}), 400)


# -- operating -------------------------------------------------------------------------------------------------------------
async def test_health_and_readiness_say_which_part_does_not_answer(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    assert (await client.get("/healthz")).status_code == 200
    assert (await client.get("/readyz")).json() == {"status": "ready", "quarantined": 0, "degraded": []}
    world.status = {"totals": {"quarantined": 3}}
    assert (await client.get("/readyz")).json() == {"status": "ready", "quarantined": 3, "degraded": []}
    for archivist in ({"ready": True, "database": "connection refused"}, {"ready": False}):
        world.status = {**world.status, "archivists": [archivist]}
        assert (await client.get("/readyz")).json()["degraded"] == ["history"]
    world.status = {**world.status, "archivists": [{"ready": True, "database": "ok"}]}
    assert (await client.get("/readyz")).json()["degraded"] == []
    world.ready |= {"shard-0": False, "storage": False}
    answer = await client.get("/readyz")
    body = problem(answer, 503)
    assert body["failing"] == ["shard-0", "storage"]
    assert "shard-0" in body["detail"]
    assert "retry-after" in answer.headers
    assert (await client.get("/healthz")).status_code == 200


# -- erasing a user --------------------------------------------------------------------------------------------------------
async def test_a_user_is_erased_after_its_timers_by_an_admin_of_its_tenant_only(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    item = {"user": "a/b", "type": "a.b", "delay": 60}
    assert (await client.post("/v1/notifications", json=item)).status_code == 202
    problem(await world.once("other", scopes="publish connect").delete("/v1/users/a%2Fb"), 403)
    answer = await client.delete("/v1/users/a%2Fb")
    assert (answer.status_code, answer.content) == (204, b"")
    (erased,) = [record for record in world.shard.received if isinstance(record, wire.Erase)]
    assert erased.key == "default:a/b"
    assert (await client.get("/v1/scheduled?user=a/b")).json() == {"scheduled": []}
    assert (await client.delete("/v1/users/a%2Fb")).status_code == 204, "it may be repeated"


async def test_no_user_is_changed_in_place_of_one_of_another_tenant() -> None:
    async with edge_world() as world, world.http(scopes="admin operator publish") as client:
        for path in ("/v1/users/ann", "/v1/users/ann/profile", "/v1/subscriptions/news?user=ann", "/v1/scheduled?user=ann"):
            problem(await client.delete(path + ("&" if "?" in path else "?") + "tenant=acme"), 403)
        problem(await client.post("/v1/notifications?tenant=acme", json=ITEM), 403)
        assert world.shard.received == []
        assert (await client.delete("/v1/users/ann", params={"tenant": "default"})).status_code == 204


async def test_a_user_is_erased_after_the_timers_that_are_firing(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    world.scheduler.firing = 2
    assert (await client.delete("/v1/users/u1")).status_code == 204
    assert [type(record) for record in world.scheduler.received] == [wire.CancelAll] * 3


async def test_an_erasure_that_storage_does_not_answer_is_no_success(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    world.shard.erase_status = wire.UNAVAILABLE
    answer = await client.delete("/v1/users/u1")
    problem(answer, 503)
    assert "retry-after" in answer.headers


async def test_storage_that_is_nearly_full_refuses_what_would_grow_it_and_names_the_limit(
    world: EdgeWorld, client: httpx.AsyncClient
) -> None:
    world.gateway.storage.measured(91 << 20, 100 << 20)
    item = {"user": "u1", "type": "a.b"}
    for method, path, body in (
        ("POST", "/v1/notifications", item),
        ("POST", "/v1/notifications", item | {"delay": 60}),
        ("POST", "/v1/notifications", {"topic": "news", "type": "a.b"}),
        ("POST", "/v1/events", item),
        ("PUT", "/v1/subscriptions/news?user=u1", None),
        ("PUT", "/v1/users/u1/profile", {"level": "low"}),
    ):
        answer = await client.request(method, path, json=body)
        detail = problem(answer, 429)["detail"]
        assert "storage holds 91 MiB of the 100 MiB that it may (redis_memory_bytes_max)" in detail, (method, path)
        assert int(answer.headers["retry-after"]) >= 5
    assert not world.shard.received
    assert (await client.get("/v1/users/u1/profile")).status_code == 200
    assert (await client.delete("/v1/users/u1/profile")).status_code == 204, "what frees memory is not refused"
    world.gateway.storage.measured(80 << 20, 100 << 20)
    assert (await client.post("/v1/notifications", json=item)).status_code == 202


async def test_a_weaker_durability_is_reported_by_readiness_and_in_every_202(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    item = {"user": "u1", "type": "a.b"}
    assert "durability" not in (await client.post("/v1/notifications", json=item)).json()
    assert "durability" not in (await client.post("/v1/events", json=item)).json()
    world.gateway.storage.durability = "everysec"
    assert (await client.post("/v1/notifications", json=item)).json()["durability"] == "everysec"
    assert (await client.post("/v1/events", json=item)).json()["durability"] == "everysec"
    assert (await client.get("/readyz")).json() == {
        "status": "ready",
        "quarantined": 0,
        "degraded": ["storage"],
        "durability": "everysec",
    }


async def test_readiness_waits_for_no_controller(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    world.status = None  # it does not answer
    assert (await client.get("/readyz")).json() == {"status": "ready", "quarantined": None, "degraded": []}


async def test_the_status_of_the_engine_is_for_operators_and_an_admin_sees_its_tenant_only() -> None:
    async with edge_world() as world, world.http(scopes="operator admin") as operator, world.http(tenant="acme") as admin:
        assert (await operator.get("/v1/status")).json() == world.status
        async with world.connect("u1"), world.connect("u2", token=world.token("u2", tenant="acme")) as socket:
            assert (await admin.get("/v1/status")).json() == {
                "tenant": "acme", "connections": 1, "users": 0, "stored_bytes": 0, "topics": 0, "signal_names": 0, "quotas": {}
            }  # fmt: skip
            await socket.close()
            await until(lambda: not world.gateway.connections_of["acme"])
        assert (await admin.get("/v1/status")).json()["connections"] == 0
        await until(lambda: not world.gateway.connections_of)
        problem(await world.once(scopes="connect publish").get("/v1/status"), 403)


async def test_draining_an_edge_says_why_it_does_not() -> None:
    async with edge_world(edges=2) as world, world.http(scopes="operator") as client:
        world.drains = {0: ("", 7), 1: ("no edge but edge-1 serves: its clients would have nowhere to go", 0)}
        answer = await client.post("/v1/edges/edge-0/drain")
        assert (answer.status_code, answer.json()) == (202, {"edge": "edge-0", "connections": 7})
        assert "nowhere to go" in problem(await client.post("/v1/edges/edge-1/drain"), 409)["detail"]
        for name in ("edge-2", "edge-00", "shard-0", "edge-"):
            assert "edge-0, edge-1" in problem(await client.post(f"/v1/edges/{name}/drain"), 404)["detail"]


async def test_scaling_says_what_is_allowed() -> None:
    async with edge_world() as world, world.http(user="olga", scopes="operator") as client:
        answer = await client.post("/v1/scale", json={"shards": 4, "edges": 2})
        assert (answer.status_code, answer.json()) == (202, {"settled": False})
        assert (await client.post("/v1/rebalance")).status_code == 202
        assert world.scaled == [({"shards": 4, "edges": 2}, "olga"), ({}, "olga")]
        for wrong, path in (({"shards": 0}, "$.shards"), ({"edges": 65}, "$.edges"), ({"shard": 2}, "$"), ({}, "$"), ([], "$")):
            assert problem(await client.post("/v1/scale", json=wrong), 422)["errors"][0]["path"].startswith(path)
        problem(await client.post("/v1/scale", content=b"{"), 400)
        assert problem(await client.post("/v1/scale", json={"shards": 9}), 409)["fits"] == {"shards": 8, "schedulers": 8, "edges": 8}
        assert (await client.post("/v1/scale", json={"shards": 9, "force": True})).status_code == 202
        assert problem(await client.post("/v1/scale", json={"force": True}), 422)
    assert [numbers for numbers, _ in world.scaled] == [{"shards": 4, "edges": 2}, {}, {"shards": 9}]


async def test_an_upgrade_names_its_operator() -> None:
    async with edge_world() as world, world.http(user="olga", scopes="operator") as client:
        answer = await client.post("/v1/upgrade")
        assert (answer.status_code, answer.json(), world.upgrades) == (202, {"settled": False}, ["olga"])


async def test_metrics_and_the_description_are_served(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    await world.publish()
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'engine_edge_published_total{edge="edge-0",status="accepted",tenant="default"} 1.0' in answer.text
    problem(await client.get("/v1/nothing"), 404)
    assert 'engine_edge_refused_total{code="404",edge="edge-0"} 1.0' in (await client.get("/metrics")).text
    document = (await client.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    for path in document["paths"]:
        assert (await client.request("OPTIONS", path.replace("{sid}", "1-a").replace("{letter}", "1-0"))).status_code == 405, path


async def test_the_demo_page_and_the_client_are_served_with_safe_headers(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    page = await client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    script = await client.get("/client.js")
    assert script.headers["content-type"].startswith("text/javascript")
    for answer in (page, script):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-cache"
        again = await client.get(str(answer.url), headers={"If-None-Match": answer.headers["etag"]})
        assert again.status_code == 304
        assert not again.content
    head = await client.head("/client.js")
    assert head.status_code == 200
    assert head.headers["content-length"] == str(len(script.content))


async def test_unknown_paths_and_wrong_methods_are_problems(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    for path in ("/nothing", "/v1/events/x", "/v1/ws/", "/static/../auth.py", "/%2e%2e/config.py"):
        problem(await client.get(path), 404)
    answer = await client.put("/v1/scheduled/1-a")
    problem(answer, 405)
    assert answer.headers["allow"] == "DELETE, GET, HEAD, PATCH"
    problem(await client.put("/v1/notifications"), 405)
    problem(await client.get("/v1/ws"), 426)
    for path in ("/v1/sse", "/v1/poll", "/v1/ws"):
        assert (await client.head(path)).status_code == 405


async def test_a_bug_is_a_500_that_tells_nothing_of_itself(
    world: EdgeWorld, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:

    def boom() -> Any:
        raise ZeroDivisionError("a secret detail")

    world.gateway.wall_ms = boom
    with caplog.at_level(logging.ERROR, "engine.edge.http"):
        answer = await client.get("/v1/heartbeat")
    assert "secret" not in problem(answer, 500)["detail"]
    assert "ZeroDivisionError" in caplog.text


# -- origins ---------------------------------------------------------------------------------------------------------------
async def test_a_page_of_an_allowed_origin_may_read_a_500() -> None:
    async with edge_world(allowed_origins=("https://app.example",)) as world, world.http() as client:

        def boom() -> Any:
            raise ZeroDivisionError

        world.gateway.wall_ms = boom
        answer = await client.get("/v1/heartbeat", headers={"Origin": "https://app.example"})
    assert problem(answer, 500)["detail"]
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert world.gateway.metrics.refused == {500: 1}


async def test_an_allowed_origin_may_read_why_a_request_was_not_read() -> None:
    async with edge_world(allowed_origins=("https://app.example",), request_head_bytes_max=10_000) as world:
        for origin, may_read in ((b"https://app.example", True), (b"https://evil.example", False)):
            reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
            writer.write(b"GET /v1/poll HTTP/1.1\r\nHost: x\r\nOrigin: " + origin + b"\r\n" + (b"X-Pad: " + b"y" * 1000 + b"\r\n") * 20)
            answer = await asyncio.wait_for(reader.read(), DEADLINE_S)
            writer.close()
            assert answer.startswith(b"HTTP/1.1 431 ")
            assert (b"access-control-allow-origin: " + origin in answer) == may_read


async def test_an_allowed_origin_may_ask_and_read() -> None:
    origin = {"Origin": "https://app.example"}
    async with edge_world(allowed_origins=("https://app.example",)) as world, world.http() as client:
        preflight = await client.options(
            "/v1/notifications",
            headers={**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"},
        )
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        answer = await client.post("/v1/notifications", json=ITEM, headers=origin)
        assert answer.status_code == 202
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert answer.headers["vary"] == "origin"
        problem(await client.post("/v1/notifications", json={}, headers=origin), 422)


async def test_a_foreign_origin_is_refused_before_anything_happens(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        problem(await client.post("/v1/notifications", json=ITEM, headers=headers), 403)
    assert not world.shard.of(wire.Post)
    own = {"Origin": f"http://127.0.0.1:{world.port}", "Sec-Fetch-Site": "same-origin"}
    assert (await client.post("/v1/notifications", json=ITEM, headers=own)).status_code == 202
