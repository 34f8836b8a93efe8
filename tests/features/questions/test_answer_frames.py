"""Answers over a WebSocket are taken as those of requests: the first wins, and the others hear who and what."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis
from websockets.asyncio.client import ClientConnection

from tests.support.edge_world import EdgeWorld, edge_world, frame_of

ASK = {"answers": [{"id": "yes", "label": "Approve"}, {"id": "no", "label": "Deny"}]}


@pytest.fixture
async def world(redis_client: Redis) -> AsyncIterator[EdgeWorld]:
    async with edge_world(storage=redis_client, question_poll_ms=20) as world:
        yield world


async def ask(world: EdgeWorld, **members: Any) -> None:
    async with world.http("app", scopes="publish") as client:
        item = {"user": "u1", "type": "deploy.ask", "id": "q1", "ask": ASK, **members}
        answer = await client.post("/v1/notifications", json={name: value for name, value in item.items() if value is not None})
    assert answer.status_code == 202, answer.text


async def answer(socket: ClientConnection, message: str = "q1", **members: Any) -> dict[str, Any]:
    await socket.send(json.dumps({"type": "answer", "ref": "r1", "message": message, **members}))
    result = await frame_of(socket, "answer_result")
    assert result["ref"] == "r1"
    return result


async def test_the_first_answer_by_frame_wins_and_the_other_hears_who(world: EdgeWorld) -> None:
    token = world.token("u1", "connect")
    await ask(world)
    async with world.connect("u1", "?device=phone", token=token) as phone, world.connect("u1", token=token) as other:
        given = await answer(phone, answer="yes")
        assert (given["status"], given["answer"], given["by"], given["device"]) == (200, "yes", "u1", "phone")
        assert await answer(other, answer="yes") == given, "a repeat is the same answer"
        late = await answer(other, answer="no")
        assert (late["status"], late["problem"]["status"], late["problem"]["type"]) == (409, 409, "urn:engine:problem:answered")
        assert (late["problem"]["answer"], late["problem"]["by"], late["problem"]["device"]) == ("yes", "u1", "phone")
    async with world.http("u1", scopes="connect") as client:
        assert (await client.post("/v1/answers/q1", json={"answer": "no"})).status_code == 409
        assert (await client.get("/v1/questions/q1")).json()["answer"] == "yes"
    assert world.gateway.frame_requests == 0


async def test_a_member_of_a_topic_answers_by_frame(world: EdgeWorld) -> None:
    world.shard.topics["default:u1"] = {"oncall"}
    await ask(world, user=None, topic="oncall")
    async with world.connect("u1") as member, world.connect("u2") as stranger:
        assert (await answer(stranger, answer="yes", topic="oncall"))["status"] == 404
        assert (await answer(member, answer="yes", topic="oncall"))["by"] == "u1"


@pytest.mark.parametrize(
    ("members", "status"),
    [({"answer": "maybe"}, 422), ({}, 422), ({"answer": "yes", "text": "so"}, 422), ({"answer": "yes", "topic": "oncall"}, 404)],
)
async def test_invalid_answer_is_refused_on_an_open_connection(world: EdgeWorld, members: dict[str, Any], status: int) -> None:
    await ask(world)
    async with world.connect("u1") as socket:
        refused = await answer(socket, **members)
        assert (refused["status"], refused["problem"]["status"]) == (status, status)
        assert (await answer(socket, "q2", answer="yes"))["status"] == 404
        assert (await answer(socket, answer="yes"))["status"] == 200


@pytest.mark.parametrize("frame", ['{"type":"answer"}', '{"type":"answer","message":1}', '{"type":"answer","message":"q1","ref":1}'])
async def test_a_frame_that_names_no_message_is_malformed(world: EdgeWorld, frame: str) -> None:
    await ask(world)
    async with world.connect("u1") as socket:
        await socket.send(frame)
        assert (await frame_of(socket, "error"))["code"] == "malformed"
        assert (await answer(socket, answer="yes"))["status"] == 200
