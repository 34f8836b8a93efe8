"""Steps are armed with the messages of their categories: once, for delayed ones too, and before the publisher is answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.core.model.category import OFF
from engine.core.model.step import READ, ChannelStep
from engine.core.policy.profile import Profile
from engine.core.wire import records as wire
from tests.support.edge_world import EdgeWorld, edge_world

RULES = """
[category.alert]
steps = [{ channel = "email", after = "10m", unless = "read" }, { channel = "email", after = "1h", mandatory = true }]

[category.plain]

[[rule]]
name = "raised"
event = "alert.raised"
recipients = ["user", "data.also"]
type = "alert"
category = "alert"

[[rule]]
name = "pressed"
event = "alert.pressed"
recipients = ["user"]
type = "alert"
category = "alert"
steps = [{ channel = "email", after = "1m" }]
"""
MINUTE_MS = 60_000


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[EdgeWorld]:
    (tmp_path / "rules.toml").write_text(RULES)
    async with edge_world(rules_path=str(tmp_path / "rules.toml"), smtp_url="smtp://mail", mail_from="a@b.c") as world:
        yield world


async def publish(world: EdgeWorld, path: str = "/v1/notifications", **members: Any) -> httpx.Response:
    return await world.once("app", scopes="publish").post(path, json={"user": "ann", "type": "alert", "id": "m1", **members})


def timers(world: EdgeWorld) -> list[wire.Timer]:
    return sorted(world.scheduler.timers.values(), key=lambda timer: timer.due_ms)


def steps(world: EdgeWorld) -> list[ChannelStep]:
    return [timer.conditions.step.step for timer in timers(world) if timer.conditions is not None and timer.conditions.step is not None]


async def test_the_steps_of_a_category_are_armed_once(world: EdgeWorld) -> None:
    before_ms = world.gateway.wall_ms()
    for status in ("accepted", "duplicate"):
        answer = await publish(world, category="alert")
        assert (answer.status_code, answer.json()["results"][0]["status"]) == (202, status)
    assert steps(world) == [ChannelStep("email", 10 * MINUTE_MS, READ), ChannelStep("email", 60 * MINUTE_MS, 0, True)]
    assert before_ms <= timers(world)[0].due_ms - 10 * MINUTE_MS <= world.gateway.wall_ms()
    assert [timer.conditions.step.seq for timer in timers(world) if timer.conditions and timer.conditions.step] == [1, 1]


async def test_a_message_of_another_category_arms_nothing(world: EdgeWorld) -> None:
    await publish(world, category="plain")
    await publish(world, id="m2")
    assert timers(world) == []


async def test_the_steps_of_a_delayed_message_count_from_when_it_is_due(world: EdgeWorld) -> None:
    answer = await publish(world, category="alert", delay=3600)
    message, first, second = timers(world)
    assert message.sid == answer.json()["results"][0]["scheduled_id"]
    assert [timer.conditions.step.sid for timer in (first, second) if timer.conditions and timer.conditions.step] == [message.sid] * 2
    assert [first.due_ms - message.due_ms, second.due_ms - message.due_ms] == [10 * MINUTE_MS, 60 * MINUTE_MS]


async def test_a_message_that_is_not_accepted_arms_nothing(world: EdgeWorld) -> None:
    world.shard.status, world.shard.detail = wire.SUPPRESSED, "cap: enough"
    assert (await publish(world, category="alert")).json()["results"][0]["status"] == "suppressed"
    world.shard.status = wire.OVERLOADED
    assert (await publish(world, category="alert")).status_code == 429
    assert timers(world) == []


@pytest.mark.parametrize(("status", "code"), [(wire.UNAVAILABLE, 503), (wire.OVERLOADED, 429)])
async def test_a_publisher_is_refused_until_the_steps_are_armed(world: EdgeWorld, status: int, code: int) -> None:
    world.scheduler.schedule_status = status
    assert (await publish(world, category="alert")).status_code == code
    world.scheduler.schedule_status = 0
    assert (await publish(world, category="alert")).json()["results"][0]["status"] == "duplicate"
    assert len(steps(world)) == 2, "the repeat arms them"


async def test_a_publisher_learns_the_ids_of_messages_without_their_steps(world: EdgeWorld) -> None:
    world.scheduler.schedule_status = wire.UNAVAILABLE
    async with world.http("app", scopes="publish") as client:
        items = [{"user": "ann", "type": "alert", "category": category} for category in ("alert", "plain")]
        answer = await client.post("/v1/notifications", json=items)
        assert answer.status_code == 503
        assert [(result["status"], result["reason"][:15]) for result in answer.json()["results"][:1]] == [
            ("unavailable", "it was accepted")
        ]
        assert answer.json()["results"][1]["status"] == "accepted"
        assert [error["index"] for error in answer.json()["errors"]] == [0]
        world.scheduler.schedule_status = 0
        again = await client.post("/v1/notifications", json=items[0] | {"id": answer.json()["results"][0]["id"]})
        assert again.json()["results"][0]["status"] == "duplicate"
    assert len(steps(world)) == 2


async def test_an_accepted_item_beside_a_conflict_has_its_steps(world: EdgeWorld) -> None:
    await publish(world, category="plain", id="taken")
    async with world.http("app", scopes="publish") as client:
        items = [{"user": "ann", "type": "alert", "category": "alert", "id": id} for id in ("taken", "m2")]
        answer = await client.post("/v1/notifications", json=items)
    assert answer.status_code == 409
    assert [result["status"] for result in answer.json()["results"]] == ["conflict", "accepted"]
    assert [timer.envelope.id for timer in timers(world)] == ["m2", "m2"]


@pytest.mark.parametrize(("status", "code"), [(wire.UNAVAILABLE, 503), (wire.OVERLOADED, 429)])
async def test_an_accepted_item_beside_one_that_was_not_has_its_steps(world: EdgeWorld, status: int, code: int) -> None:
    """`results` says that it was accepted, so its publisher may repeat the other one alone."""
    world.scheduler.schedule_refused = {"m1": status}
    async with world.http("app", scopes="publish") as client:
        items: list[dict[str, Any]] = [{"user": "ann", "type": "alert", "category": "alert", "id": id} for id in ("m1", "m2")]
        items[0]["delay"] = 3600
        answer = await client.post("/v1/notifications", json=items)
    assert answer.status_code == code
    assert [result["status"] for result in answer.json()["results"]][1:] == ["accepted"]
    assert [timer.envelope.id for timer in timers(world)] == ["m2", "m2"]


async def test_rules_arm_the_steps_of_their_category(world: EdgeWorld) -> None:
    async with world.http("app", scopes="publish") as client:
        for _ in range(2):
            answer = await client.post("/v1/events", json={"type": "alert.raised", "user": "ann", "id": "e1"})
            assert answer.status_code == 202, answer.text
    assert len(steps(world)) == 2


async def test_rules_arm_the_steps_of_what_was_accepted_beside_a_conflict(world: EdgeWorld) -> None:
    await publish(world, category="plain", id="raised/e1")
    async with world.http("app", scopes="publish") as client:
        answer = await client.post("/v1/events", json={"type": "alert.raised", "user": "ann", "id": "e1", "data": {"also": "bob"}})
    assert answer.status_code == 409
    assert [(result["user"], result["status"]) for result in answer.json()["results"]] == [("ann", "conflict"), ("bob", "accepted")]
    assert [timer.key for timer in timers(world)] == ["default:bob", "default:bob"]


async def test_a_rule_takes_its_own_steps_in_place_of_its_categorys(world: EdgeWorld) -> None:
    async with world.http("app", scopes="publish") as client:
        for _ in range(2):
            answer = await client.post("/v1/events", json={"type": "alert.pressed", "user": "ann", "id": "e1"})
            assert answer.status_code == 202, answer.text
    assert steps(world) == [ChannelStep("email", MINUTE_MS)]


async def test_the_timeline_of_a_message_shows_its_steps(world: EdgeWorld) -> None:
    await publish(world, category="alert")
    world.shard.traced["default:ann", "m1"] = wire.Traced(0, "pending", 1, [wire.Step(5, "accepted")])
    told = (await world.once("app", scopes="publish").get("/v1/users/ann/messages/m1")).json()
    assert told["state"] == "pending"
    assert [entry["event"] for entry in told["timeline"]] == ["accepted", "step_armed", "step_armed"]
    assert told["timeline"][1]["until"] == timers(world)[0].due_ms


async def test_an_explanation_lists_the_steps_that_the_message_would_have_and_arms_none(world: EdgeWorld) -> None:
    world.shard.explained = ("deliver", [])
    before_ms = world.gateway.wall_ms()
    (told,) = (await publish(world, "/v1/explain", category="alert")).json()["results"]
    first, second = told["steps"]
    assert before_ms <= first.pop("at") - 10 * MINUTE_MS <= second.pop("at") - 60 * MINUTE_MS <= world.gateway.wall_ms()
    assert (first, second) == ({"channel": "email", "unless": "read"}, {"channel": "email"})
    assert "steps" not in (await publish(world, "/v1/explain", category="plain")).json()["results"][0]
    world.shard.profiles["default:ann"] = Profile(channels={"alert/email": OFF})
    (told,) = (await publish(world, "/v1/explain", category="alert")).json()["results"]
    assert {step["unwanted"] for step in told["steps"]} == {"the user wants alert not by email"}
    world.shard.explained = ("suppress", [("cap", "the user got 2")])
    assert "steps" not in (await publish(world, "/v1/explain", category="alert")).json()["results"][0]
    assert timers(world) == []
