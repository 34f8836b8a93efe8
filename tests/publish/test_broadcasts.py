"""Broadcasts at the edge: published into the log once, and written to many connections in order and in turns."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from engine.core.model.constants import LOW, NORMAL
from engine.core.wire.records import Deliver, DeliverShared, GapRange, Shared
from tests.support.edge_world import EdgeWorld, edge_world

BODY = b'"id":"b1","type":"news.flash","data":null'


@pytest.fixture
async def world() -> AsyncIterator[EdgeWorld]:
    async with edge_world(fan_out_max=2, commit_retry_ms=300) as world:
        yield world


async def publish(world: EdgeWorld, *items: dict[str, Any], status: int = 202) -> Any:
    answer = await world.once("publisher").post("/v1/notifications", json=list(items))
    assert answer.status_code == status, answer.text
    return answer.json()


def messages_of(text: str | bytes) -> list[tuple[int, str]]:
    frame = json.loads(text)
    assert frame["type"] == "messages", frame
    return [(message["seq"], message["id"]) for message in frame["messages"]]


# -- Publishing. -------------------------------------------------------------------------------------------------------
async def test_a_broadcast_is_one_entry_of_low_priority_and_its_result_names_no_user(world: EdgeWorld) -> None:
    answer = await publish(world, {"broadcast": True, "type": "news.flash", "id": "b1", "data": {"n": 1}})
    assert answer == {"accepted": 1, "results": [{"id": "b1", "status": "accepted", "broadcast": True}]}
    (entry,) = world.log.entries
    assert (entry.tenant, entry.topic, entry.envelope.id, entry.envelope.priority, entry.envelope.retain) == (
        "default",
        "",
        "b1",
        LOW,
        True,
    )
    body = json.loads(b"{%b}" % entry.envelope.body)
    assert body | {"ts": 0} == {"id": "b1", "ts": 0, "type": "news.flash", "priority": "low", "data": {"n": 1}}
    assert not world.shard.received


async def test_a_topic_its_priority_and_retain_are_the_publishers(world: EdgeWorld) -> None:
    item = {"topic": "repo:a/b", "type": "t", "priority": "normal", "retain": False, "ttl": 60}
    (result,) = (await publish(world, item))["results"]
    assert result == {"id": result["id"], "status": "accepted", "topic": "repo:a/b"}
    (entry,) = world.log.entries
    assert (entry.topic, entry.envelope.priority, entry.envelope.retain) == ("repo:a/b", NORMAL, False)
    assert entry.expires_ms - entry.accepted_ms <= 60_000


async def test_broadcasts_and_messages_to_users_of_one_request_are_answered_in_order(world: EdgeWorld) -> None:
    answer = await publish(
        world,
        {"user": "u1", "type": "t", "id": "a"},
        {"broadcast": True, "type": "t", "id": "b"},
        {"users": ["u1", "u2"], "type": "t", "id": "c"},
        {"topic": "x", "type": "t", "id": "d"},
    )
    assert [(result["id"], result.get("seq")) for result in answer["results"]] == [("a", 1), ("b", None), ("c", 2), ("c", 1), ("d", None)]
    assert world.log.attempts == 1


async def test_a_repeat_is_a_duplicate_and_another_payload_under_the_id_a_conflict(world: EdgeWorld) -> None:
    item = {"broadcast": True, "type": "t", "id": "b"}
    await publish(world, item)
    assert (await publish(world, item))["results"] == [{"id": "b", "status": "duplicate", "broadcast": True}]
    problem = await publish(world, item | {"data": 1}, status=409)
    assert problem["errors"] == [{"index": 0, "user": "", "detail": "the same id was used with a different payload"}]
    assert (await publish(world, {"topic": "x", "type": "t", "id": "b"}))["accepted"] == 1


@pytest.mark.parametrize("applies", [True, False])
async def test_an_append_without_an_answer_is_repeated_and_counts_once(world: EdgeWorld, applies: bool) -> None:
    world.log.failures, world.log.applies = 1, applies
    assert (await publish(world, {"broadcast": True, "type": "t", "id": "b"}))["results"][0]["status"] == "accepted"
    assert len(world.log.entries) == 1
    assert world.log.attempts == 2


async def test_a_log_that_does_not_answer_is_503_for_the_broadcasts_and_says_what_became_of_the_others(world: EdgeWorld) -> None:
    world.log.failures, world.log.applies = 1 << 30, False
    problem = await publish(world, {"user": "u1", "type": "t"}, {"broadcast": True, "type": "t"}, status=503)
    assert [result["status"] for result in problem["results"]] == ["accepted", "unavailable"]
    assert "repeat it under the same id" in problem["results"][1]["reason"]


async def test_a_delayed_broadcast_is_a_timer_of_its_audience(world: EdgeWorld) -> None:
    (result,) = (await publish(world, {"topic": "x", "type": "t", "id": "d", "delay": 60}))["results"]
    assert result["status"] == "scheduled"
    assert result["topic"] == "x"
    assert not world.log.entries
    (timer,) = world.scheduler.timers.values()
    assert timer.key == "default:\nx"
    seen = (await world.once("publisher").get(f"/v1/scheduled/{result['scheduled_id']}")).json()
    assert seen["topic"] == "x"
    assert "user" not in seen


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ({"topic": "a b"}, "$[0].topic"),
        ({"topic": "news.*"}, "$[0].topic"),
        ({"topic": ""}, "$[0].topic"),
        ({"topic": "x", "user": "u"}, "$[0].topic"),
        ({"broadcast": True, "users": ["u"]}, "$[0].broadcast"),
        ({"broadcast": True, "collapse": {"key": "k", "window": 0}}, "$[0].collapse"),
        ({"broadcast": False}, "$[0].user"),
    ],
)
async def test_what_names_no_audience_is_refused_with_its_path(world: EdgeWorld, item: dict[str, Any], path: str) -> None:
    problem = await publish(world, {"type": "t", **item}, status=422)
    assert [error["path"] for error in problem["errors"]] == [path]
    assert not world.log.entries


# -- Delivering. -------------------------------------------------------------------------------------------------------
async def test_a_broadcast_reaches_every_connection_with_its_own_number_from_one_body(world: EdgeWorld) -> None:
    async with world.connect("u1") as one, world.connect("u2") as two, world.connect("u3") as three:
        sockets = (one, two, three)
        for socket in sockets:
            await socket.recv()
        conns = sorted(world.shard.attached)
        world.shard.say(Shared(5, BODY), DeliverShared(5, [(conn, 7 + conn, 1) for conn in conns]))
        got = [messages_of(await socket.recv()) for socket in sockets]
        assert got == [[(7 + conn, "b1")] for conn in conns]
        world.shard.say(DeliverShared(5, [(conns[0], 7 + conns[0], 2)]))  # again: the body is still here
        assert json.loads(await one.recv())["messages"][0]["attempt"] == 2


async def test_what_comes_behind_a_broadcast_that_waits_for_its_turn_does_not_overtake_it(world: EdgeWorld) -> None:
    async with world.connect("u1") as one, world.connect("u2"), world.connect("u3") as three:
        await one.recv()
        await three.recv()
        first, second, third = sorted(world.shard.attached)
        everyone = [(second, 1, 1), (first, 1, 1), (third, 1, 1)]  # two per turn: the third waits
        world.shard.say(
            Deliver(first, [(4, 1, b'"id":"before"')]),
            Shared(5, BODY),
            DeliverShared(5, [(conn, seq + 4, attempt) for conn, seq, attempt in everyone]),
            Deliver(first, [(6, 1, b'"id":"after"')]),
            GapRange(third, 6, 8),
        )
        assert messages_of(await one.recv()) == [(4, "before"), (5, "b1"), (6, "after")]
        assert messages_of(await three.recv()) == [(5, "b1")]
        assert json.loads(await three.recv()) == {"type": "gap", "from": 6, "to": 8}


async def test_a_new_link_session_forgets_what_waits_and_the_bodies(world: EdgeWorld) -> None:
    async with world.connect("u1") as one, world.connect("u2"), world.connect("u3"):
        await one.recv()
        conns = sorted(world.shard.attached)
        gateway = world.gateway
        gateway.from_shard(0, [Shared(5, BODY), DeliverShared(5, [(conn, 1, 1) for conn in reversed(conns)])])
        world.shard.reset()  # what was held for the first connection is not sent, and not counted as sent
        assert world.shard.attached[conns[0]].sent == 0
        with pytest.raises(Exception, match="without its body"):
            gateway.from_shard(0, [DeliverShared(5, [(conns[0], 1, 1)])])
        world.shard.say(Shared(5, BODY), DeliverShared(5, [(conns[0], 1, 1)]))
        assert messages_of(await one.recv()) == [(1, "b1")]


async def test_streams_and_polls_get_broadcasts_too(world: EdgeWorld) -> None:
    async with world.http("u1") as client, client.stream("GET", "/v1/sse") as stream:
        lines = stream.aiter_lines()
        while await anext(lines) != "event: welcome":
            pass
        (conn,) = world.shard.attached
        world.shard.say(Shared(5, BODY), DeliverShared(5, [(conn, 1, 1)]))
        while not (line := await anext(lines)).startswith('data: {"seq"'):
            pass
        assert msgspec.json.decode(line.removeprefix("data: "))["id"] == "b1"
