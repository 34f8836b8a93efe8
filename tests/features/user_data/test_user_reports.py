"""`GET /v1/users/{user}`: one user as an operator, or the admin of its tenant, sees it."""

from __future__ import annotations

from engine.core.journal.journal_records import StoredMessage
from engine.core.model.constants import NORMAL
from engine.core.model.envelope import Envelope
from engine.core.wire import records as wire
from tests.support.edge_world import EdgeWorld, edge_world


async def test_a_user_is_shown_with_what_waits_and_what_was_decided() -> None:
    async with edge_world() as world, world.http(scopes="publish operator") as client:
        await client.post(
            "/v1/notifications", json=[{"user": "a/b", "type": "post.liked", "id": "m1", "data": {"n": 1}, "priority": "high"}]
        )
        await client.post("/v1/notifications", json={"user": "a/b", "type": "reminder", "delay": 60})
        await client.put("/v1/subscriptions/news", params={"user": "a/b"})
        await client.put("/v1/users/a%2Fb/profile", json={"locale": "de"})
        shown = (await client.get("/v1/users/a%2Fb")).json()
    (message,) = shown.pop("messages")
    assert {**message, "ts": 0, "expires": 0} == {
        "seq": 1, "id": "m1", "type": "post.liked", "priority": "high", "count": 1, "data": {"n": 1}, "ts": 0, "expires": 0,
    }  # fmt: skip
    (timer,) = shown.pop("timers")
    assert timer["notification"]["type"] == "reminder"
    assert shown.pop("profile")["locale"] == "de"
    assert shown == {
        "tenant": "default", "user": "a/b", "presence": "offline", "head": 1, "floor": 0, "pending": 1, "in_memory": 1,
        "connections": [], "topics": ["news"], "windows": [{"collapse": "likes", "count": 3, "closes_ms": 7_000}],
        "events": {"cart.left": 6}, "decisions": [{"id": "m1", "at": 5, "event": "suppressed", "reason": "cap: enough"}],
    }  # fmt: skip


async def test_an_admin_sees_users_of_its_tenant_and_an_operator_those_of_any(world: EdgeWorld) -> None:
    asked = {
        ("publish connect", ""): 403, ("admin", ""): 200, ("admin", "?tenant=other"): 403,
        ("operator", "?tenant=other"): 200, ("operator", "?tenant=a:b"): 400,
    }  # fmt: skip
    for (scopes, query), status in asked.items():
        async with world.http(scopes=scopes) as client:
            answers = [await client.get(f"/v1/users/u1{query}")]
            if query:  # the same tokens, of the same tenants
                answers.append(await client.get(f"/v1/users/u1/profile{query}"))
                answers.append(await client.post(f"/v1/explain{query}", json={"user": "u1", "type": "x"}))
        expected = [status] * len(answers)
        if (scopes, query) == ("admin", "?tenant=other"):
            expected[-1] = 403
        assert [answer.status_code for answer in answers] == expected, (scopes, query)
    assert [record.key for record in world.shard.of(wire.Explain)] == ["other:u1"]


async def test_messages_that_only_storage_has_are_among_the_pending_ones() -> None:
    async with edge_world() as world, world.http(scopes="publish operator") as client:
        await client.post("/v1/notifications", json={"user": "u1", "type": "in.memory"})
        world.shard.cold = [(4, 5)]
        body = b'"id":"m5","type":"in.storage","ts":3'
        world.bodies.stored[5] = StoredMessage("default:u1", 5, Envelope("m5", b"", NORMAL, True, body), 9, 3)
        shown = (await client.get("/v1/users/u1")).json()["messages"]
    assert [(message["seq"], message["type"]) for message in shown] == [(5, "in.storage"), (1, "in.memory")]


async def test_a_shard_that_does_not_answer_is_503() -> None:
    async with edge_world(publish_timeout_ms=200) as world, world.http(scopes="operator") as client:
        world.shard.connected = False
        assert (await client.get("/v1/users/u1")).status_code == 503
        world.shard.reset()
        world.shard.cold, world.bodies.away = [(4, 5)], True
        assert (await client.get("/v1/users/u1")).status_code == 503
