"""Events over a WebSocket are taken as those of requests: by the token's scope, by the same checks, with the same answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

from engine.core.wire import records as wire
from tests.support.edge_world import edge_world, frame_of
from tests.support.waiting import until

RULES = """
[[rule]]
name = "like"
event = "post.liked"
recipients = ["user"]
type = "forum.like"
title = "{actor} likes your post"
"""
LIKED = {"type": "post.liked", "user": "u2", "actor": "bob", "id": "e1"}


async def answer(socket: ClientConnection, event: Any, ref: str = "r") -> dict[str, Any]:
    await socket.send(json.dumps({"type": "event", "ref": ref, "event": event}))
    return await frame_of(socket, "event_result")


async def test_an_event_is_taken_and_answered_as_by_a_request(rules: Path) -> None:
    async with edge_world(rules_path=str(rules)) as world, world.connect("u1") as socket, world.http() as client:
        told = await answer(socket, LIKED, "my first")
        assert (told["ref"], told["status"], told["matched"]) == ("my first", 202, ["like"])
        assert [result["status"] for result in told["results"]] == ["accepted"]
        again = (await client.post("/v1/events", json=LIKED)).json()
        assert [result["status"] for result in again["results"]] == ["duplicate"], "it is the same event on either way"
        assert {name: told[name] for name in ("matched", "scheduled", "cancelled")} == {
            name: again[name] for name in ("matched", "scheduled", "cancelled")
        }
        assert world.rules.sample.counts == {"like": [2, 1, 0]}


@pytest.mark.parametrize(
    ("event", "status", "path"),
    [({"type": "a b", "user": "u2"}, 422, "$.type"), ({"user": "u2"}, 422, "$"), ([1], 422, "$"), ({**LIKED, "usr": 1}, 422, "$.usr")],
)
async def test_an_event_that_is_wrong_is_refused_with_its_path_and_the_connection_goes_on(
    rules: Path, event: Any, status: int, path: str
) -> None:
    async with edge_world(rules_path=str(rules)) as world, world.connect("u1") as socket:
        told = await answer(socket, event)
        assert (told["status"], told["problem"]["errors"][0]["path"]) == (status, path)
        assert (await answer(socket, LIKED))["status"] == 202
        assert world.gateway.frame_requests == 0


async def test_a_token_without_the_scope_is_refused_until_it_is_renewed(rules: Path) -> None:
    async with edge_world(rules_path=str(rules)) as world, world.connect("u1", token=world.token("u1", "connect")) as socket:
        told = await answer(socket, LIKED)
        assert (told["status"], told["problem"]["status"]) == (403, 403)
        assert world.shard.of(wire.Post) == []
        await socket.send(json.dumps({"type": "auth", "token": world.token("u1", "connect publish")}))
        assert (await answer(socket, LIKED))["status"] == 202


async def test_what_could_not_be_accepted_says_when_to_come_back(rules: Path) -> None:
    async with edge_world(rules_path=str(rules)) as world, world.connect("u1") as socket:
        world.shard.status = wire.UNAVAILABLE
        told = await answer(socket, LIKED)
        assert (told["status"], told["retry_after"] >= 1, told["problem"]["results"][0]["status"]) == (503, True, "unavailable")
        world.shard.status = wire.ACCEPTED
        assert (await answer(socket, LIKED))["status"] == 202


async def test_a_quota_of_the_tenant_holds_here_too(rules: Path) -> None:
    async with edge_world(rules_path=str(rules), tenant_requests_per_s=1) as world, world.connect("u1") as socket:
        statuses = [(await answer(socket, {**LIKED, "id": f"e{number}"}))["status"] for number in range(5)]
        assert statuses[0] == 202
        assert 429 in statuses


async def test_unanswered_events_are_bounded_and_answers_may_overtake_each_other(rules: Path) -> None:
    async with edge_world(rules_path=str(rules), frame_requests_per_connection_max=2) as world, world.connect("u1") as socket:
        await frame_of(socket, "welcome")
        world.shard.connected = False  # it answers nothing
        for number in range(3):
            await socket.send(json.dumps({"type": "event", "ref": str(number), "event": {**LIKED, "id": f"e{number}"}}))
        told = await frame_of(socket, "event_result")
        assert (told["ref"], told["status"], told["retry_after"]) == ("2", 429, 1)
        world.shard.reset()
        assert {(await frame_of(socket, "event_result"))["ref"] for _ in range(2)} == {"0", "1"}
        await until(lambda: world.gateway.frame_requests == 0)


async def test_an_event_goes_on_when_its_connection_ends(rules: Path) -> None:
    async with edge_world(rules_path=str(rules)) as world:
        async with world.connect("u1") as socket:
            await frame_of(socket, "welcome")
            await socket.send(json.dumps({"type": "event", "event": LIKED}))
        await until(lambda: world.shard.of(wire.Post))
        await until(lambda: world.gateway.frame_requests == 0)


@pytest.mark.parametrize(
    "frame", ['{"type":"event"}', '{"type":"event","event":{},"ref":1}', '{"type":"event","event":{},"ref":"%s"}' % ("x" * 129)]
)
async def test_a_frame_without_an_event_or_with_a_wrong_ref_is_malformed(rules: Path, frame: str) -> None:
    async with edge_world(rules_path=str(rules)) as world, world.connect("u1") as socket:
        await socket.send(frame)
        assert (await frame_of(socket, "error"))["code"] == "malformed"
        assert world.shard.of(wire.Post) == []


async def test_a_failure_of_the_engine_is_500_and_the_connection_goes_on(rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with edge_world(rules_path=str(rules)) as world, world.connect("u1") as socket:
        with monkeypatch.context() as patched:
            patched.setattr(world.rules.rule_book, "in_force", lambda: 1 / 0)
            told = await answer(socket, LIKED)
        assert (told["status"], "operator's log" in told["problem"]["detail"]) == (500, True)
        assert (await answer(socket, LIKED))["status"] == 202
