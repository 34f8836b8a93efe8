"""Requests of an edge to shards, over HTTP: what a shard refuses, and what becomes of them while it does not answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.core.model.formats import FORMATS
from engine.core.model.routing import mailbox_key, spread
from engine.core.wire import records as wire
from tests.support.edge_world import EdgeWorld, edge_world, frame_of
from tests.support.waiting import until

TENANT = "default"


@pytest.fixture
async def world() -> AsyncIterator[EdgeWorld]:
    """Two shards; a request that has no answer fails soon, and four that fail open the breaker."""
    async with edge_world(2, publish_timeout_ms=2000, publish_delay_target_ms=10_000, breaker_calls_min=4, breaker_probes=2) as made:
        made.gateway.set_slots(spread(2, version=2))
        yield made


def user_of(shard: int) -> str:
    slots = spread(2)
    return next(f"u{n}" for n in range(100) if slots.owner(mailbox_key(TENANT, f"u{n}")) == shard)


def item(user: str, **fields: Any) -> dict[str, Any]:
    return {"user": user, "type": "a.b", **fields}


async def breaker_state(world: EdgeWorld, shard: int) -> float:
    text = (await world.once().get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (sample,) = [one for one in families["engine_edge_breaker_state"].samples if one.labels["shard"] == str(shard)]
    return sample.value


async def stop_answering(world: EdgeWorld, shard: int) -> None:
    """The shard answers nothing until the edge's breaker opens."""
    world.shards[shard].connected = False
    answer = await world.once().post("/v1/notifications", json=[item(user_of(shard))] * 4)
    assert answer.status_code == 503
    await until(lambda: breaker_state(world, shard), holds=lambda state: state == 2)


async def test_while_a_shard_does_not_answer_what_does_not_need_it_is_accepted_and_the_rest_refused_at_once(world: EdgeWorld) -> None:
    away, there = user_of(0), user_of(1)
    async with world.connect(away) as socket, world.http("p") as client:
        await frame_of(socket, "welcome")
        await stop_answering(world, 0)
        world.shards[0].received.clear()
        world.shards[0].connected = True  # it would answer; nobody asks
        for refused in (
            await client.post("/v1/notifications", json=item(away)),
            await client.get(f"/v1/users/{away}/profile"),
            await client.post("/v1/explain", json=item(away)),
        ):
            assert refused.status_code == 503, refused.text
            assert "shard-0 has not been answering" in refused.json()["detail"]
            assert 1 <= int(refused.headers["retry-after"]) <= 8
        assert world.shards[0].received == []
        for accepted in (item(there), item(away, delay=60), {"type": "a.b", "broadcast": True}, {"type": "a.b", "topic": "t"}):
            answer = await client.post("/v1/notifications", json=accepted)
            assert answer.status_code == 202, answer.text
        mixed = await client.post("/v1/notifications", json=[item(away), item(there), item(away, delay=60)])
        assert mixed.status_code == 503
        assert [result["status"] for result in mixed.json()["results"]] == ["unavailable", "accepted", "scheduled"]
        assert int(mixed.headers["retry-after"]) >= 1
        world.shards[0].deliver(mailbox_key(TENANT, away), (1, 1, b'"id":"x","type":"a.b"'))
        assert (await frame_of(socket))["messages"][0]["id"] == "x", "its connections stay"


async def test_a_new_session_that_works_ends_it_at_once(world: EdgeWorld) -> None:
    await stop_answering(world, 0)
    world.shards[0].reset()
    async with world.http("p") as client:
        assert (await client.post("/v1/notifications", json=item(user_of(0)))).status_code == 503, "it has not answered yet"
        world.gateway.shard_answers(0)
        for _ in range(3):
            assert (await client.post("/v1/notifications", json=item(user_of(0)))).status_code == 202
    await until(lambda: breaker_state(world, 0), holds=lambda state: state == 0)


async def test_what_a_shard_refuses_under_load_is_a_429_with_the_time_it_names(world: EdgeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    shard, user = world.shards[0], user_of(0)
    for name in ("getprofile", "setprofile", "explain", "trace", "settle", "subscribe"):
        monkeypatch.setattr(shard, name, lambda record: shard.say(wire.Rejected(record.ref, wire.OVERLOADED, "too many", 9000)))
    async with world.http(user) as client:
        for refused in (
            await client.get(f"/v1/users/{user}/profile"),
            await client.put(f"/v1/users/{user}/profile", json={"level": "high"}),
            await client.post("/v1/explain", json=[item(user), item(user_of(1))]),
            await client.get(f"/v1/users/{user}/messages/m1"),
            await client.post("/v1/ack", json={"seq": 1}),
            await client.get("/v1/subscriptions"),
        ):
            assert refused.status_code == 429, (str(refused.url), refused.text)
            assert refused.json()["detail"] == "too many"
            assert 9 <= int(refused.headers["retry-after"]) <= 14
    async with world.connect(user) as socket:
        await frame_of(socket, "welcome")
        await socket.send('{"type": "subscribe", "topics": ["t"]}')
        assert (await frame_of(socket, "error"))["code"] == "overloaded"


async def test_requests_of_newer_formats_wait_for_the_upgrade(world: EdgeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "NEWER", {wire.GetProfile: FORMATS + 1})
    user = user_of(0)
    async with world.http(user) as client:
        refused = await client.get(f"/v1/users/{user}/profile")
        assert (refused.status_code, "upgrade" in refused.json()["detail"]) == (503, True)
        assert int(refused.headers["retry-after"]) >= 5
        assert world.shards[0].of(wire.GetProfile) == []
        assert (await client.get(f"/v1/users/{user}/messages/m1")).status_code != 503, "what every version reads is sent"
        world.gateway.set_slots(msgspec.structs.replace(spread(2, version=3), formats=FORMATS + 1))
        assert (await client.get(f"/v1/users/{user}/profile")).status_code == 200
