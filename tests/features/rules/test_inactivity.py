"""Events recorded at shards before they are answered, and the timers of inactivity rules: one per user and rule, armed again when gone."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from engine.core.wire import records as wire
from tests.support.cart_rule import cart_rule
from tests.support.edge_world import edge_world

RULES = cart_rule('title = "Still thinking?"', 'fire = { unless_event = "order.paid" }')
AWAY = """
[[rule]]
name = "away"
event = "*"
recipients = ["user"]
type = "touch.away"
inactive = "30d"
delay = "24h"
"""


@pytest.fixture
def inactivity_rules(rules: Path) -> Path:
    rules.write_text(RULES + AWAY)
    return rules


async def test_what_a_rule_will_ask_is_durable_at_the_shard_before_the_answer(inactivity_rules: Path) -> None:
    async with edge_world(rules_path=str(inactivity_rules)) as world, world.http("shop") as client:
        await client.post("/v1/events", json={"type": "order.paid", "user": "u1", "ts": 1_700_000_000_000})
        await client.post("/v1/events", json={"type": "page.viewed", "user": "u1", "id": "v1"})
        paid, viewed = world.shard.of(wire.Happened)
        assert (paid.event, paid.at_ms, paid.delivery) == ("order.paid", 1_700_000_000_000, "")
        assert (viewed.event, len(viewed.delivery)) == ("", 20), "any event counts as activity, its name is asked by nobody"
        world.shard.profile_status = wire.UNAVAILABLE
        refused = await client.post("/v1/events", json={"type": "order.paid", "user": "u1"})
        assert refused.status_code == 503
        assert len(world.scheduler.timers) == 1


@pytest.mark.parametrize("ahead_ms", [60_000, -1_000])
async def test_an_event_of_a_clock_ahead_carries_its_id_to_recognise_repeats(rules: Path, ahead_ms: int) -> None:
    async with edge_world(rules_path=str(rules)) as world, world.http("shop") as client:
        paid = {"type": "order.paid", "user": "u1", "id": "p1", "ts": world.gateway.wall_ms() + ahead_ms}
        for _ in range(2):
            assert (await client.post("/v1/events", json=paid)).status_code == 202
        first, second = [record.delivery for record in world.shard.of(wire.Happened)]
        assert first == second != ""
        assert all(record.at_ms <= world.gateway.wall_ms() for record in world.shard.of(wire.Happened))


async def test_events_of_two_types_with_one_id_are_both_recorded(rules: Path) -> None:
    rules.write_text(cart_rule('fire = { unless_event = ["order.paid", "order.left"] }'))
    async with edge_world(rules_path=str(rules)) as world, world.http("shop") as client:
        for type in ("order.left", "order.paid"):
            await client.post("/v1/events", json={"type": type, "user": "u1", "id": "order-17"})
        left, paid = world.shard.of(wire.Happened)
        assert left.delivery != paid.delivery, "the shard takes the second for no repeat of the first"


async def test_a_timer_follows_a_user_beside_a_conflict(inactivity_rules: Path) -> None:
    more = '[[rule]]\nname = "seen"\nevent = "page.viewed"\nrecipients = ["user"]\ntype = "page.seen"\n'
    inactivity_rules.write_text(AWAY + more)
    async with edge_world(rules_path=str(inactivity_rules)) as world, world.http("shop") as client:
        await client.post("/v1/notifications", json={"user": "u1", "type": "other", "id": "seen/v1"})
        answer = await client.post("/v1/events", json={"type": "page.viewed", "user": "u1", "id": "v1"})
        assert answer.status_code == 409
        assert [timer.key for timer in world.scheduler.timers.values()] == ["default:u1"]


async def test_shards_hear_of_no_event_that_no_rule_asks_for(rules: Path) -> None:
    async with edge_world(rules_path=str(rules)) as world, world.http("shop") as client:
        for type in ("page.viewed", "order.paid", "cart.abandoned"):
            await client.post("/v1/events", json={"type": type, "user": "u1"})
        assert [record.event for record in world.shard.of(wire.Happened)] == ["order.paid"]


async def test_one_timer_follows_a_user_however_many_events_come_and_another_one_when_it_is_gone(inactivity_rules: Path) -> None:
    async with edge_world(rules_path=str(inactivity_rules)) as world, world.http("shop") as client:
        told = [(await client.post("/v1/events", json={"type": f"page{n}", "user": "u1"})).json() for n in range(3)]
        (sid,) = world.scheduler.timers
        assert [one["scheduled"] for one in told] == [[sid]] * 3
        assert told[2]["results"][0]["scheduled_at"] == world.scheduler.timers[sid].due_ms
        assert told[2]["results"][0]["id"] == world.scheduler.timers[sid].envelope.id
        assert world.gateway.metrics.figures()["rules_triggered"] == [("away", 1)]
        assert (await client.delete(f"/v1/scheduled/{sid}")).status_code in (200, 204)
        world.scheduler.fired.add(sid)
        (other,) = (await client.post("/v1/events", json={"type": "page4", "user": "u1"})).json()["scheduled"]
        assert other != sid
        assert list(world.scheduler.timers) == [other]
        (still,) = (await client.post("/v1/events", json={"type": "page5", "user": "u1"})).json()["scheduled"]
        assert still == other


async def test_a_timer_that_is_gone_is_reported_to_the_shard_before_another_follows(inactivity_rules: Path) -> None:
    async with edge_world(rules_path=str(inactivity_rules)) as world, world.http("shop") as client:
        (sid,) = (await client.post("/v1/events", json={"type": "page1", "user": "u1"})).json()["scheduled"]
        world.scheduler.fired.add(sid)
        (other,) = (await client.post("/v1/events", json={"type": "page2", "user": "u1"})).json()["scheduled"]
        reported = world.shard.of(wire.Happened)[-1]
        assert (reported.ended, reported.follow) == ([sid], {"away": other})
        assert (reported.event, reported.at_ms) == ("", 0), "it is not activity of the user"


async def test_an_event_is_refused_when_every_timer_that_should_follow_is_gone_at_once(
    inactivity_rules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with edge_world(rules_path=str(inactivity_rules)) as world, world.http("shop") as client:
        monkeypatch.setattr(world.scheduler, "_answer", lambda record: wire.TimerAnswer(record.ref, wire.SCHEDULED, [], wire.GONE))
        refused = await client.post("/v1/events", json={"type": "page1", "user": "u1"})
        assert refused.status_code == 503, refused.text
        assert "Retry-After" in refused.headers
        asked = [record.timer.sid for record in world.scheduler.received]
        assert len(set(asked)) == len(asked) == 3, "a new timer at each try"


async def test_an_event_whose_timer_would_make_one_user_too_many_is_refused_by_the_quota_s_name(
    inactivity_rules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with edge_world(rules_path=str(inactivity_rules)) as world, world.http("shop") as client:
        full = partial(wire.TimerAnswer, status=wire.OVERLOADED, detail=wire.USERS_FULL)
        monkeypatch.setattr(world.scheduler, "_answer", lambda record: full(record.ref))
        refused = await client.post("/v1/events", json={"type": "page1", "user": "u1"})
        assert (refused.status_code, refused.json()["quota"]) == (429, "tenant_users_max")
        assert int(refused.headers["Retry-After"]) >= 1


@pytest.mark.parametrize(("status", "code"), [(wire.OVERLOADED, 429), (wire.UNAVAILABLE, 503)])
async def test_an_event_whose_timer_is_not_armed_is_refused_and_its_repeat_arms_the_same_timer(
    inactivity_rules: Path, status: int, code: int
) -> None:
    async with edge_world(rules_path=str(inactivity_rules)) as world, world.http("shop") as client:
        world.scheduler.status = status
        event = {"type": "page1", "user": "u1", "id": "v1"}
        refused = await client.post("/v1/events", json=event)
        assert refused.status_code == code, refused.text
        assert "Retry-After" in refused.headers
        world.scheduler.status = 0
        (sid,) = (await client.post("/v1/events", json=event)).json()["scheduled"]
        assert [record.timer.sid for record in world.scheduler.received] == [sid, sid]
        assert list(world.scheduler.timers) == [sid]
