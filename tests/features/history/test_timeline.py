"""The timeline of a message: from shard, scheduler and history."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.config import Config
from engine.core.wire import records as wire
from engine.errors import Unavailable
from engine.features.history import timeline
from engine.features.history.endpoints import History
from engine.http.problems import Problem
from tests.support.edge_world import EdgeWorld, edge_world

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


async def asked(world: EdgeWorld, id: str, *, by: str = "app", scopes: str = "publish", status: int = 200) -> Any:
    answer = await world.once(by, scopes=scopes).get(f"/v1/users/u1/messages/{id}")
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_what_happened_to_a_message_is_told_in_order_and_times_that_are_not_known_are_left_out(world: EdgeWorld) -> None:
    steps = [
        wire.Step(50, "deferred", "quiet_hours: night", 90),
        wire.Step(0, "acknowledged"),
        wire.Step(91, "accepted"),
    ]
    world.shard.traced["default:u1", "a/b"] = wire.Traced(0, "acknowledged", 7, steps)
    assert await asked(world, "a/b") == {
        "id": "a/b", "seq": 7, "state": "acknowledged",
        "timeline": [
            {"at": 50, "event": "deferred", "reason": "quiet_hours: night", "until": 90},
            {"at": 91, "event": "accepted"},
            {"event": "acknowledged"},
        ],
    }  # fmt: skip


async def test_a_message_that_waits_at_the_scheduler_is_found_there(world: EdgeWorld) -> None:
    sid = (await publish(world, {"id": "x", "delay": 60}))["results"][0]["scheduled_id"]
    told = await asked(world, "x")
    timer = world.scheduler.timers[sid]
    step = {"at": timer.created_ms, "event": "scheduled", "reason": f"scheduled_id: {sid}", "until": timer.due_ms}
    assert told == {"id": "x", "state": "scheduled", "timeline": [step]}


async def test_of_what_nobody_knows_nothing_is_told_and_users_see_only_their_own(world: EdgeWorld) -> None:
    await asked(world, "x", status=404)
    await asked(world, "%0a", status=404)
    await asked(world, "x", by="u1", scopes="connect", status=404)
    await asked(world, "x", by="u2", scopes="connect", status=403)
    world.scheduler.status = wire.UNAVAILABLE
    await asked(world, "x", status=503)


class AskedShard:
    """What a shard and a scheduler know of a message."""

    def __init__(self, traced: wire.Traced) -> None:
        self.traced = traced

    async def ask(self, _kind: type[wire.Traced], _build: object) -> wire.Traced:
        return self.traced

    async def every_timer(self, _key: str) -> AsyncIterator[wire.Timer]:
        return
        yield


def history_with(*rows: dict[str, Any]) -> History:
    async def query(_wanted: Any, limit: int) -> list[dict[str, Any]]:
        if not rows:
            raise Unavailable("away")
        return list(rows[: -limit - 1 : -1])

    return History(Config(), query)


async def test_a_timeline_has_the_steps_of_the_history_and_those_that_it_does_not_have_yet() -> None:
    traced = wire.Traced(1, "acknowledged", 7, [wire.Step(5, "accepted"), wire.Step(0, "acknowledged")])
    archived = ({"at_ms": 5, "event": "accepted"}, {"at_ms": 6, "event": "sent", "device": "phone"})
    found = await timeline.timeline(AskedShard(traced), history_with(*archived).steps, "t:u", "m")  # type: ignore[arg-type]
    steps = [{"at": 5, "event": "accepted"}, {"at": 6, "event": "sent", "device": "phone"}, {"event": "acknowledged"}]
    assert found == {"id": "m", "state": "acknowledged", "timeline": steps, "seq": 7}
    away = await timeline.timeline(AskedShard(traced), history_with().steps, "t:u", "m")  # type: ignore[arg-type]
    assert (away["history"], [step["event"] for step in away["timeline"]]) == ("unavailable", ["accepted", "acknowledged"])
    forgotten = wire.Traced(1, "", 0, [])
    known = await timeline.timeline(AskedShard(forgotten), history_with(*archived).steps, "t:u", "m")  # type: ignore[arg-type]
    assert (known["state"], len(known["timeline"])) == ("sent", 2), "long after its mailbox has forgotten it"


@pytest.mark.parametrize("decision", ["deferred", "digested"])
async def test_a_message_that_came_after_a_decision_has_its_own_state(decision: str) -> None:
    """The shard knows its latest decisions for longer than its latest ids."""
    shard: Any = AskedShard(wire.Traced(0, decision, 0, [wire.Step(5, decision, "quiet_hours: night", 90)]))
    steps_of = history_with(*({"event": event, "at_ms": 5} for event in (decision, "sent", "acknowledged")))
    assert (await timeline.timeline(shard, steps_of.steps, "t:u", "m"))["state"] == "acknowledged"


async def test_an_event_alone_is_no_message() -> None:
    event, sent = {"at_ms": 5, "event": "event"}, {"at_ms": 4, "event": "sent"}
    forgotten = AskedShard(wire.Traced(1, "", 0, []))
    with pytest.raises(Problem, match="nothing is known"):
        await timeline.timeline(forgotten, history_with(event).steps, "t:u", "m")  # type: ignore[arg-type]
    assert (await timeline.timeline(forgotten, history_with(sent, event).steps, "t:u", "m"))["state"] == "sent"  # type: ignore[arg-type]


async def test_a_long_timeline_has_its_newest_steps_and_the_state_after_them() -> None:
    sent = [{"at_ms": at_ms, "event": "sent"} for at_ms in range(300)]
    history = history_with(*sent, {"at_ms": 300, "event": "acknowledged"})
    found = await timeline.timeline(AskedShard(wire.Traced(1, "", 0, [])), history.steps, "t:u", "m")  # type: ignore[arg-type]
    assert found["state"] == "acknowledged"
    assert [step["at"] for step in found["timeline"]] == list(range(101, 301))
