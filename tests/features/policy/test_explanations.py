"""Categories and quiet hours at the edge: what travels with a message, and how what a shard puts off is scheduled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.core.model.category import PolicyTerms
from engine.core.model.defined_categories import TOUCH
from engine.core.wire import records as wire
from tests.support.edge_world import EdgeWorld, edge_world
from tests.support.waiting import until

HOUR_MS = 3_600_000


@pytest.fixture
async def world() -> AsyncIterator[EdgeWorld]:
    async with edge_world(publish_timeout_ms=3000) as world:
        yield world


async def publish(world: EdgeWorld, *items: dict[str, Any], status: int = 202) -> Any:
    async with world.http("app") as client:
        answer = await client.post("/v1/notifications", json=[{"user": "u1", "type": "a", **item} for item in items])
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_the_limits_of_a_category_travel_with_the_message(world: EdgeWorld) -> None:
    await publish(world, {"category": "touch"}, {}, {"category": "touch", "delay": 60}, {"unless_active": True})
    touch, plain, watchful = world.shard.of(wire.Post)
    assert (touch.envelope.policy_terms, plain.envelope.policy_terms) == (PolicyTerms("touch", TOUCH), None)
    (timer,) = world.scheduler.timers.values()
    assert timer.envelope.policy_terms == PolicyTerms("touch", TOUCH)
    assert abs(watchful.envelope.policy_terms.unless_active_since_ms - world.gateway.wall_ms()) < 10_000


async def test_the_category_is_part_of_what_an_id_stands_for(world: EdgeWorld) -> None:
    await publish(world, {"id": "x", "category": "touch"})
    assert (await publish(world, {"id": "x", "category": "touch"}))["results"][0]["status"] == "duplicate"
    await publish(world, {"id": "x"}, status=409)


@pytest.mark.parametrize(
    ("item", "path", "words"),
    [
        ({"category": "tuoch"}, "$[0].category", "defined are touch"),
        ({"category": 5}, "$[0].category", "str"),
        ({"user": ..., "topic": "t", "category": "touch"}, "$[0].category", "only for messages to users"),
        ({"user": ..., "broadcast": True, "unless_active": True}, "$[0].unless_active", "only for messages to users"),
    ],
)
async def test_what_is_wrong_with_a_category_is_told(world: EdgeWorld, item: dict[str, Any], path: str, words: str) -> None:
    item = {name: value for name, value in {"user": "u1", "type": "a", **item}.items() if value is not ...}
    answer = await world.once("app").post("/v1/notifications", json=[item])
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["path"] == path
    assert words in error["detail"]


async def test_what_is_suppressed_is_told_with_the_reason_and_is_not_accepted(world: EdgeWorld) -> None:
    world.shard.status, world.shard.detail = wire.SUPPRESSED, "cap: enough"
    answer = await publish(world, {"id": "x"})
    assert answer == {"accepted": 0, "results": [{"id": "x", "user": "u1", "status": "suppressed", "reason": "cap: enough"}]}


async def test_what_comes_in_quiet_hours_is_scheduled_for_their_end_as_it_is(world: EdgeWorld) -> None:
    end_ms = world.shard.quiet_until_ms = world.gateway.wall_ms() + HOUR_MS
    answer = await publish(world, {"id": "x", "category": "touch", "ttl": 60, "collapse": {"key": "k"}})
    (timer,) = world.scheduler.timers.values()
    assert answer["accepted"] == 1
    assert answer["results"] == [
        {
            "id": "x",
            "user": "u1",
            "status": "scheduled",
            "scheduled_id": timer.sid,
            "scheduled_at": end_ms,
            "reason": "quiet_hours: it is night",
        }
    ]
    assert (timer.due_ms, timer.ttl_ms, timer.envelope.id, timer.envelope.collapse, timer.envelope.policy_terms) == (
        end_ms,
        60_000,
        "x",
        "k",
        PolicyTerms("touch", TOUCH),
    )
    (schedule,) = world.scheduler.received
    (post,) = world.shard.of(wire.Post)
    assert schedule.idempotent
    assert schedule.timer.envelope == post.envelope


async def test_of_a_request_only_what_is_put_off_is_scheduled_and_the_order_of_results_stays(world: EdgeWorld) -> None:
    await publish(world, {"id": "known"})
    world.shard.quiet_until_ms = world.gateway.wall_ms() + HOUR_MS
    answer = await publish(world, {"id": "a"}, {"id": "known"}, {"id": "b"}, {"id": "c", "delay": 5})
    assert [(result["id"], result["status"]) for result in answer["results"]] == [
        ("a", "scheduled"), ("known", "duplicate"), ("b", "scheduled"), ("c", "scheduled"),
    ]  # fmt: skip
    assert [timer.envelope.id for timer in world.scheduler.timers.values()] == ["c", "a", "b"]


async def test_a_repeat_while_the_first_waits_is_a_duplicate_with_its_scheduled_id(world: EdgeWorld) -> None:
    world.shard.quiet_until_ms = world.gateway.wall_ms() + HOUR_MS
    first = await publish(world, {"id": "x"})
    (timer,) = world.scheduler.timers.values()
    world.scheduler.known["default:u1", "x"] = timer
    again = await publish(world, {"id": "x"})
    assert again["accepted"] == 0
    assert again["results"][0]["status"] == "duplicate"
    assert again["results"][0]["scheduled_id"] == first["results"][0]["scheduled_id"]
    assert list(world.scheduler.timers.values()) == [timer]


@pytest.mark.parametrize("status", [wire.UNAVAILABLE, wire.OVERLOADED])
async def test_what_cannot_be_scheduled_is_not_accepted(world: EdgeWorld, status: int) -> None:
    world.shard.quiet_until_ms = world.gateway.wall_ms() + HOUR_MS
    world.scheduler.status = status
    problem = await publish(world, {"id": "x"}, status=503 if status == wire.UNAVAILABLE else 429)
    assert problem["results"][0]["status"] == wire.PUBLISH_STATUS[status]


async def test_an_edge_that_hears_nothing_of_the_scheduler_does_not_say_that_it_is_scheduled(world: EdgeWorld) -> None:
    world.shard.quiet_until_ms = world.gateway.wall_ms() + HOUR_MS
    world.scheduler.connected = False
    assert (await publish(world, {"id": "x"}, status=503))["results"][0]["status"] == "unavailable"


async def test_scheduling_is_repeated_under_the_same_scheduled_id_when_the_link_breaks(world: EdgeWorld) -> None:
    world.shard.quiet_until_ms = world.gateway.wall_ms() + HOUR_MS
    world.scheduler.connected = False
    async with world.http("app") as client:
        asked = asyncio.ensure_future(client.post("/v1/notifications", json={"user": "u1", "type": "a"}))
        await until(lambda: world.shard.of(wire.Post))
        await until(lambda: len(world.gateway.pending_calls) == 1)
        world.scheduler.connected = True
        world.gateway.scheduler_reset(0)
        answer = await asked
    assert answer.json()["results"][0]["status"] == "scheduled"
    assert len(world.scheduler.timers) == 1


# -- Explaining. ---------------------------------------------------------------------------------------------------------
async def explain(world: EdgeWorld, *items: dict[str, Any], status: int = 200) -> Any:
    async with world.http("app", scopes="publish") as client:
        answer = await client.post("/v1/explain", json=[{"user": "u1", "type": "a", **item} for item in items])
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_what_would_become_of_each_user_of_each_item_is_told_in_order_and_nothing_is_posted(world: EdgeWorld) -> None:
    world.shard.explained = ("defer", [("delay", "later"), ("quiet_hours", "night")], 77, 3)
    at_ms = world.gateway.wall_ms() + HOUR_MS
    told = await explain(world, {"category": "touch", "at": at_ms})
    reasons = [{"code": "delay", "detail": "later"}, {"code": "quiet_hours", "detail": "night"}]
    assert told == {"results": [{"user": "u1", "decision": "defer", "reasons": reasons, "until": 77, "seq": 3}]}
    (asked,) = world.shard.of(wire.Explain)
    assert (asked.key, asked.at_ms, asked.post.envelope.policy_terms) == ("default:u1", at_ms, PolicyTerms("touch", TOUCH))
    assert (world.shard.of(wire.Post), world.scheduler.received) == ([], [])
    world.shard.explained = ("deliver", [])
    async with world.http("app") as client:
        items = [
            {"users": ["a", "b"], "type": "x"},
            {"topic": "t", "type": "x"},
            {"broadcast": True, "type": "x"},
            {"user": "c", "type": "x"},
        ]
        results = (await client.post("/v1/explain", json=items)).json()["results"]
    assert [result.get("user", result.get("topic", result.get("broadcast"))) for result in results] == ["a", "b", "t", True, "c"]
    assert [result["decision"] for result in results] == ["deliver"] * 5
    assert results[2]["reasons"][0]["code"] == "broadcast"


async def test_explaining_needs_an_item_that_could_be_published(world: EdgeWorld) -> None:
    problem = await explain(world, {"category": "x"}, status=422)
    assert problem["errors"][0]["path"] == "$[0].category"
    world.shard.connected = False
    await explain(world, {}, status=503)


# -- Timelines. ----------------------------------------------------------------------------------------------------------
