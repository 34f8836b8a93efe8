"""Subscribing on a WebSocket: who may, what the shard is asked, what the client is told."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import jwt
import pytest

from engine.auth.tokens import Principal
from engine.auth.topic_permissions import memberships, permits
from engine.core.wire import records as wire
from tests.support.edge_world import SECRET, EdgeWorld, edge_world, frame_of
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until


@pytest.fixture
async def world() -> AsyncIterator[EdgeWorld]:
    async with edge_world(topics_per_user_max=3) as world:
        yield world


def token(user: str = "u1", scope: str = "connect", **claims: Any) -> str:
    return jwt.encode({"sub": user, "scope": scope, "exp": time.time() + 600, **claims}, SECRET, "HS256")


def principal(topics: list[str] | None) -> Principal:
    return Principal("t", "u", frozenset(), 0, None if topics is None else frozenset(topics))


@pytest.mark.parametrize(
    ("topics", "topic", "may"),
    [
        (None, "anything", True),
        ([], "anything", False),
        (["news"], "news", True),
        (["news"], "newsletter", False),
        (["team.*"], "team.a", True),
        (["team.*"], "team", False),
        (["*"], "anything", True),
    ],
)
def test_a_token_without_the_claim_may_anything_with_it_what_it_names(topics: list[str] | None, topic: str, may: bool) -> None:
    assert permits(principal(topics), topic) is may


def test_names_are_memberships_and_patterns_only_permit() -> None:
    assert memberships(principal(["b", "a", "team.*", "*"])) == ("a", "b")
    assert memberships(principal(None)) == ()


async def test_while_storage_is_nearly_full_nobody_subscribes_and_everybody_may_unsubscribe(world: EdgeWorld) -> None:
    world.gateway.storage.measured(99, 100)
    async with world.connect() as socket, world.http() as client:
        await frame_of(socket, "welcome")
        await socket.send('{"type":"subscribe","topics":["a"]}')
        assert (await frame_of(socket, "error"))["code"] == "overloaded"
        await socket.send('{"type":"unsubscribe","topics":["a"]}')
        assert (await frame_of(socket, "subscribed"))["topics"] == []
        assert (await client.put("/v1/subscriptions/a")).status_code == 429
    assert [list(record.add) for record in world.shard.of(wire.Subscribe)] == [[]]


async def test_frames_subscribe_and_are_answered_with_all_topics(world: EdgeWorld) -> None:
    async with world.connect(token=token(topics=["a", "team.*"])) as socket:
        await socket.recv()
        (attach,) = world.shard.of(wire.Attach)
        assert attach.topics == ("a",)

        async def ask(kind: str, *topics: Any) -> Any:
            await socket.send(json.dumps({"type": kind, "topics": topics}))
            return json.loads(await socket.recv())

        assert await ask("subscribe", "team.x", "team.y") == {"type": "subscribed", "topics": ["team.x", "team.y"]}
        assert await ask("unsubscribe", "team.x") == {"type": "subscribed", "topics": ["team.y"]}
        assert (await ask("subscribe", "other"))["code"] == "forbidden"
        assert (await ask("subscribe", "a b"))["code"] == "malformed"
        assert (await ask("subscribe"))["code"] == "malformed"
        assert (await ask("subscribe", *["team.z"] * 4))["code"] == "malformed"
        assert (await ask("subscribe", 5))["code"] == "malformed"
        world.shard.subscribe_status = wire.OVERLOADED
        assert (await ask("subscribe", "team.z"))["code"] == "too_many_topics"
        world.shard.subscribe_status = wire.UNAVAILABLE
        assert (await ask("subscribe", "team.z"))["code"] == "unavailable"


async def test_a_frame_is_told_that_the_tenant_may_have_no_more_users(world: EdgeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = world.shard
    monkeypatch.setattr(shard, "subscribe", lambda record: shard.say(wire.Rejected(record.ref, wire.OVERLOADED, wire.USERS_FULL, 9000)))
    async with world.connect() as socket:
        await frame_of(socket, "welcome")
        await socket.send('{"type":"subscribe","topics":["a"]}')
        assert (await frame_of(socket, "error"))["code"] == "over_quota"


async def test_a_fresh_token_decides_from_then_on(world: EdgeWorld) -> None:
    async with world.connect(token=token(topics=["a"])) as socket:
        await socket.recv()
        await socket.send(json.dumps({"type": "auth", "token": token(topics=["b"])}))
        await socket.send(json.dumps({"type": "subscribe", "topics": ["b"]}))
        assert json.loads(await socket.recv()) == {"type": "subscribed", "topics": ["b"]}


async def test_a_link_that_begins_anew_is_told_of_the_memberships_again(world: EdgeWorld) -> None:
    async with world.connect(token=token(topics=["a"])) as socket:
        await socket.recv()
        world.shard.reset()
        assert [attach.topics for attach in world.shard.of(wire.Attach)] == [("a",), ("a",)]


async def test_a_fresh_token_for_fewer_topics_ends_the_memberships_also_on_the_next_link_session(world: EdgeWorld) -> None:
    async with world.connect(token=token(topics=["team", "news", "a.*"])) as socket:
        await socket.recv()
        assert world.shard.of(wire.Attach)[0].topics == ("news", "team")
        await socket.send(json.dumps({"type": "auth", "token": token(topics=["news"])}))
        await until(lambda: [record.topics for record in world.shard.of(wire.Rejoin)] == [("news",)])
        await socket.send(json.dumps({"type": "auth", "token": token(topics=["news", "b.*"])}))
        await socket.send('{"type":"subscribe","topics":["a.1"]}')
        assert json.loads(await socket.recv())["code"] == "forbidden"
        assert len(world.shard.of(wire.Rejoin)) == 1, "the memberships are the same"
        world.shard.reset()
        assert world.shard.of(wire.Attach)[-1].topics == ("news",)


async def test_a_renewed_token_for_fewer_topics_ends_delivery_of_the_others_in_a_running_engine(engine: RunningEngine) -> None:
    def of(*topics: str) -> str:
        return engine.token("narrowed", topics=list(topics))

    async def publish_to_both() -> None:
        await engine.publish(*[{"topic": topic, "type": "test.event", "data": topic} for topic in ("narrow.a", "narrow.b")])
        await engine.publish({"user": "narrowed", "type": "test.event", "data": "end"})

    async def received(socket: Any) -> list[str]:
        seen: list[str] = []
        while "end" not in seen or "narrow.b" not in seen:
            messages = (await engine.receive(socket, "messages"))["messages"]
            await socket.send(json.dumps({"type": "ack", "seq": messages[-1]["seq"]}))
            seen += [message["data"] for message in messages if message["attempt"] == 1]
        return sorted(seen)

    async with engine.connect("narrowed", additional_headers={"Authorization": f"Bearer {of('narrow.a', 'narrow.b')}"}) as socket:
        await publish_to_both()
        assert await received(socket) == ["end", "narrow.a", "narrow.b"]
        await socket.send(json.dumps({"type": "auth", "token": of("narrow.b")}))
        await socket.send('{"type":"ping"}')
        await engine.receive(socket, "pong")
        await publish_to_both()
        assert await received(socket) == ["end", "narrow.b"]
    async with engine.connect("narrowed", additional_headers={"Authorization": f"Bearer {of('narrow.b')}"}) as socket:
        await publish_to_both()
        assert await received(socket) == ["end", "narrow.b"]
