"""`POST /v1/events`: what the rules make of an event is published, scheduled or cancelled, and rules are taken without a restart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from engine.auth.tokens import Principal
from engine.core.model.category import Category, PolicyTerms
from engine.core.model.defined_categories import TOUCH
from engine.core.model.envelope import Merge
from engine.core.policy.profile import Profile
from engine.core.wire import records as wire
from engine.core.wire.outcomes import Outcome, OutcomeLog
from engine.features.rules.core.rules import Rules
from engine.publish.drafts import parse_drafts
from engine.publish.media_types import Content
from tests.support.cart_rule import cart_rule
from tests.support.edge_world import edge_world

RULES = """
[[rule]]
name = "like"
event = "post.liked"
recipients = ["user"]
type = "forum.like"
actor = "actor"
title = "{actor} likes your post"

""" + cart_rule('cancel_on = "order.paid"', 'template = { text = "Still thinking about {{ data.item }}?" }')


async def test_an_event_is_published_scheduled_and_cancelled_by_the_rules(rules: Path) -> None:
    async with edge_world(rules_path=str(rules)) as world, world.http("shop") as client:
        liked = {"type": "post.liked", "user": "u1", "actor": "bob", "id": "e1"}
        answer = await client.post("/v1/events", json=liked)
        assert answer.status_code == 202, answer.text
        told = answer.json()
        assert (told["matched"], told["scheduled"], told["cancelled"]) == (["like"], [], 0)
        assert b'"title":"bob likes your post"' in world.shard.of(wire.Post)[0].envelope.body
        assert (await client.post("/v1/events", json=liked)).json()["results"][0]["status"] == "duplicate"

        left = await client.post("/v1/events", json={"type": "cart.abandoned", "user": "u1", "data": {"item": "a lamp"}})
        (sid,) = left.json()["scheduled"]
        assert world.scheduler.timers[sid].envelope.collapse == "cart"
        assert b"Still thinking about a lamp?" in world.scheduler.timers[sid].envelope.body
        other = (await client.post("/v1/events", json={"type": "cart.abandoned", "user": "u2"})).json()["scheduled"]

        paid = await client.post("/v1/events", json={"type": "order.paid", "user": "u1"})
        assert paid.json() == {"matched": [], "results": [], "scheduled": [], "cancelled": 1}
        assert list(world.scheduler.timers) == other


async def test_what_a_rule_made_of_events_is_counted_a_repeat_once(rules: Path) -> None:
    async with edge_world(rules_path=str(rules)) as world, world.http("shop") as client:
        liked = {"type": "post.liked", "user": "u1", "actor": "bob", "id": "e1"}
        for event in (liked, liked, {**liked, "id": "e2"}, {**liked, "id": "e3", "actor": "u1"}, {"type": "unknown", "user": "u1"}):
            assert (await client.post("/v1/events", json=event)).status_code == 202
        figures = world.gateway.metrics.figures()
        assert (figures["rules_triggered"], figures["rules_skipped"]) == ([("like", 2)], [("like", "own_action", 1)])
        assert world.rules.sample.counts["like"] == [4, 2, 1], "four events matched, and two messages were made"


async def test_a_notification_of_an_event_is_the_message_that_publishing_it_would_make(rules: Path) -> None:
    async with edge_world(rules_path=str(rules)) as world, world.http() as client:
        event = {"type": "post.liked", "user": "u1", "actor": "bob", "id": "e1", "target": {"b": 1, "a": [None]}}
        assert (await client.post("/v1/events", json=event)).status_code == 202
        (post,) = world.shard.of(wire.Post)
        published = {**json.loads(b"{%b}" % post.envelope.body), "user": "u1", "delay": 0}
        del published["ts"]  # made by the edge
        (draft,) = parse_drafts(json.dumps(published).encode(), Content(), Principal("default", "p", frozenset(), 0), world.config, 0, str)
        assert (post.key, post.envelope.id, post.envelope.digest) == (draft.key, draft.envelope.id, draft.envelope.digest)


async def test_an_event_nobody_has_a_rule_for_matches_nothing(rules: Path) -> None:
    async with edge_world(rules_path=str(rules)) as world, world.http() as client:
        assert (await client.post("/v1/events", json={"type": "x", "user": "u1"})).json()["matched"] == []
    async with edge_world() as world, world.http() as client:
        assert (await client.post("/v1/events", json={"type": "post.liked", "user": "u1"})).json()["matched"] == []


@pytest.mark.parametrize(
    ("event", "path"),
    [
        ({"user": "u1"}, "$"),
        ({"type": "a b", "user": "u1"}, "$.type"),
        ({"type": "a", "user": ""}, "$.user"),
        ({"type": "a", "user": "u1", "id": "a\nb"}, "$.id"),
        ({"type": "a", "user": "u1", "ts": -1}, "$.ts"),
        ({"type": "a", "user": "u1", "target": "x" * 5000}, "$.target"),
        ({"type": "a", "user": "u1", "context": "x" * 5000}, "$.context"),
        ({"type": "a", "user": "u1", "usr": 1}, "$.usr"),
        ({"type": "a", "user": "u1", "data": json.loads("[" * 201 + "]" * 201)}, "$.data"),
    ],
)
async def test_a_wrong_event_is_refused_with_its_path(rules: Path, event: dict[str, Any], path: str) -> None:
    async with edge_world(rules_path=str(rules)) as world, world.http() as client:
        answer = await client.post("/v1/events", json=event)
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"][0]["path"] == path
        assert (await client.post("/v1/events", content=b"{")).status_code == 400
        assert world.shard.of(wire.Post) == []


async def test_what_could_not_be_cancelled_is_told_and_nothing_is_published(rules: Path) -> None:
    rules.write_text(RULES + '[[rule]]\nname = "paid"\nevent = "order.paid"\nrecipients = ["user"]\ntype = "t"\n')
    async with edge_world(rules_path=str(rules)) as world, world.http() as client:
        world.scheduler.status = wire.UNAVAILABLE
        answer = await client.post("/v1/events", json={"type": "order.paid", "user": "u1", "id": "e1"})
        assert answer.status_code == 503
        assert "retry-after" in answer.headers
        assert world.shard.of(wire.Post) == []
        world.scheduler.status = 0
        assert (await client.post("/v1/events", json={"type": "order.paid", "user": "u1", "id": "e1"})).status_code == 202


DOUBLED = """
fire = { unless_event = "order.paid" }

[[rule]]
name = "paid"
event = "order.paid"
recipients = ["user"]
type = "shop.paid"
data = { once = "{data.blob}", twice = "{data.blob}" }
"""


async def test_an_event_whose_notification_is_too_large_is_refused_before_anything_is_cancelled_or_journalled(rules: Path) -> None:
    rules.write_text(RULES + DOUBLED)
    async with edge_world(rules_path=str(rules), data_bytes_max=2000) as world, world.http() as client:
        (sid,) = (await client.post("/v1/events", json={"type": "cart.abandoned", "user": "u1"})).json()["scheduled"]
        paid = {"type": "order.paid", "user": "u1", "id": "e1", "data": {"blob": "x" * 1500}}
        for _ in range(2):
            refused = await client.post("/v1/events", json=paid)
            assert refused.status_code == 422, refused.text
            assert refused.json()["errors"][0]["path"] == "$[0].data"
            assert list(world.scheduler.timers) == [sid]
            assert world.shard.of(wire.Happened) == []
        accepted = await client.post("/v1/events", json={**paid, "data": {"blob": "x"}})
        assert (accepted.status_code, accepted.json()["cancelled"]) == (202, 1)
        assert [record.event for record in world.shard.of(wire.Happened)] == ["order.paid"]


async def test_an_id_of_a_rule_with_the_prefix_of_the_engines_own_is_refused(rules: Path) -> None:
    rules.write_text(RULES.replace('type = "forum.like"', 'type = "forum.like"\nid = "{$delivery}"'))
    async with edge_world(rules_path=str(rules)) as world, world.http() as client:
        refused = await client.post("/v1/events", json={"type": "post.liked", "user": "u1", "id": "timer:3-abc"})
        assert (refused.status_code, refused.json()["errors"][0]["path"]) == (422, "$[0].id")
        assert (await client.post("/v1/events", json={"type": "post.liked", "user": "u1", "id": "like-1"})).status_code == 202
        assert [post.envelope.id for post in world.shard.of(wire.Post)] == ["like-1"]


async def test_events_without_an_id_are_told_apart_by_their_whole_content_and_their_time(rules: Path) -> None:
    async with edge_world(rules_path=str(rules)) as world, world.http() as client:
        liked = {"type": "post.liked", "user": "u1", "actor": "bob", "data": {"text": "well done"}}
        others = [{**liked, "data": {"text": "badly done"}}, {**liked, "context": "c"}, {**liked, "ts": 7}, {**liked, "ts": 8}]
        for event in (liked, *others, liked, *others):
            answer = await client.post("/v1/events", json=event)
            assert answer.status_code == 202, answer.text
        assert len(world.shard.of(wire.Post)) == 10
        assert len({post.envelope.id for post in world.shard.of(wire.Post)}) == 5
        world.arrivals.forget()
        await asyncio.sleep(0.002)  # the arrival is a time in ms
        assert (await client.post("/v1/events", json=liked)).json()["results"][0]["status"] == "accepted"


async def test_an_event_without_an_id_is_refused_while_storage_is_away(rules: Path) -> None:
    async with edge_world(rules_path=str(rules)) as world, world.http() as client:
        world.arrivals.away = True
        liked = {"type": "post.liked", "user": "u1", "actor": "bob"}
        refused = await client.post("/v1/events", json=liked)
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        assert (await client.post("/v1/events", json={**liked, "id": "e1"})).status_code == 202
        assert len(world.shard.of(wire.Post)) == 1


async def test_what_an_event_makes_of_many_users_is_bounded_like_a_publish_request(rules: Path) -> None:
    rules.write_text(RULES + '[[rule]]\nname = "all"\nevent = "e"\nrecipients = ["data.users[]"]\ntype = "t"\ndata = { a = "{data.a}" }\n')
    async with edge_world(rules_path=str(rules), body_bytes_max=4000, items_max=20) as world, world.http() as client:
        event: dict[str, Any] = {"type": "e", "user": "u1", "data": {"a": "x" * 900, "users": ["a", "b"]}}
        assert (await client.post("/v1/events", json=event)).status_code == 202
        event["data"]["users"] = ["a", "b", "c", "d", "e"]
        assert (await client.post("/v1/events", json=event)).status_code == 413
        event["data"] = {"users": [f"u{n}" for n in range(21)]}
        assert (await client.post("/v1/events", json=event)).status_code == 413
        assert len(world.shard.of(wire.Post)) == 2


TO_ALL = '[[rule]]\nname = "all"\nevent = "e"\nrecipients = ["data.users[]"]\ntype = "t"\ncancel_on = "done"\ndelay = "{delay}"\n'


async def test_an_event_for_more_users_than_a_request_may_have_is_refused_before_anything_is_made_of_it(
    rules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    make = Rules.make

    def counting(self: Rules, planned: Any, **arguments: Any) -> Any:
        made.append(planned.user)
        return make(self, planned, **arguments)

    monkeypatch.setattr(Rules, "make", counting)
    rules.write_text(TO_ALL.replace("{delay}", "1h"))
    async with edge_world(rules_path=str(rules)) as world, world.http() as client:
        users = [f"u{n}" for n in range(world.config.items_max + 1)]
        for event in ("e", "done"):
            refused = await client.post("/v1/events", json={"type": event, "user": "u", "id": "1", "data": {"users": users}})
            assert refused.status_code == 413
        assert (made, world.scheduler.timers) == ([], {})
        taken = await client.post("/v1/events", json={"type": "e", "user": "u", "id": "1", "data": {"users": users[1:]}})
        assert taken.status_code == 202
        assert (len(made), len(world.scheduler.timers)) == (world.config.items_max, world.config.items_max)


async def test_a_large_event_lets_the_requests_of_others_pass_while_it_is_made(rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, at_first = Rules.make, asyncio.Event()

    def telling(self: Rules, planned: Any, **arguments: Any) -> Any:
        at_first.set()
        return make(self, planned, **arguments)

    monkeypatch.setattr(Rules, "make", telling)
    rules.write_text(TO_ALL.replace("{delay}", "0s"))
    async with edge_world(rules_path=str(rules)) as world, world.http(tenant="large") as large, world.http(tenant="other") as other:
        await other.post("/v1/notifications", json={"user": "warm", "type": "t"})
        event = {"type": "e", "user": "u", "id": "1", "data": {"users": [f"u{n}" for n in range(1000)]}}
        taking = asyncio.ensure_future(large.post("/v1/events", json=event))
        await at_first.wait()
        answer = await other.post("/v1/notifications", json={"user": "bob", "type": "t"})
        assert answer.status_code == 202
        assert [post.key for post in world.shard.of(wire.Post)] == ["other:warm", "other:bob"]
        assert (await taking).status_code == 202


async def test_events_that_would_wait_too_long_are_refused_as_publish_requests_are(rules: Path) -> None:
    async with edge_world(rules_path=str(rules)) as world, world.http() as client:
        world.gateway.request_queue.tick(0, 10_000)
        world.gateway.request_queue.tick(0, 10_000)  # late twice in a row
        refused = await client.post("/v1/events", json={"type": "post.liked", "user": "u1", "id": "e1"})
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert world.shard.of(wire.Post) == []


async def test_the_category_of_a_rule_travels_with_its_notifications_now_and_later(rules: Path) -> None:
    rules.write_text(
        '[category.social]\ncap = 2\nper = "1h"\n' + RULES.replace('type = "forum.like"', 'type = "forum.like"\ncategory = "social"')
    )
    rules.write_text(rules.read_text().replace('type = "touch.cart"', 'type = "touch.cart"\ncategory = "touch"'))
    async with edge_world(rules_path=str(rules)) as world, world.http() as client:
        await client.post("/v1/events", json={"type": "post.liked", "user": "u1", "id": "e1"})
        (post,) = world.shard.of(wire.Post)
        assert post.envelope.policy_terms == PolicyTerms("social", Category(cap=2, cap_ms=3_600_000))
        answer = await client.post("/v1/events", json={"type": "cart.abandoned", "user": "u1"})
        assert world.scheduler.timers[answer.json()["scheduled"][0]].envelope.policy_terms == PolicyTerms("touch", TOUCH)
        item = {"user": "u1", "type": "a", "category": "social"}
        assert (await client.post("/v1/notifications", json=item)).status_code == 202
        refused = await client.post("/v1/notifications", json={**item, "category": "socail"})
        assert refused.json()["errors"] == [
            {"index": 0, "path": "$.category", "detail": "no category has this name; defined are social, touch"}
        ]


DEFAULT_CATEGORY = '[category.social]\ncap = 2\n[default_category]\nacme = "social"\n"*" = "touch"\n'


async def test_messages_to_users_that_name_no_category_have_the_default_one_of_their_tenant(rules: Path) -> None:
    rules.write_text(DEFAULT_CATEGORY + '[[rule]]\nname = "like"\nevent = "post.liked"\nrecipients = ["user"]\ntype = "t"\n')
    async with edge_world(rules_path=str(rules)) as world:
        for tenant in ("acme", "other"):
            async with world.http(tenant=tenant) as client:
                item = {"user": "u1", "type": "t"}
                items = [item, {**item, "unless_active": True}, {**item, "category": "touch"}, {"topic": "news", "type": "t"}]
                assert (await client.post("/v1/notifications", json=items)).status_code == 202
                assert (await client.post("/v1/events", json={"type": "post.liked", "user": "u1"})).status_code == 202
        terms = [post.envelope.policy_terms for post in world.shard.of(wire.Post)]
        assert [one.category if one else "" for one in terms] == ["social", "social", "touch", "social", "touch", "touch", "touch", "touch"]
        assert terms[1] is not None
        assert terms[1].unless_active_since_ms > 0
        assert terms[1].limits == Category(cap=2)
        assert [entry.envelope.policy_terms for entry in world.log.entries] == [None, None]


async def test_a_default_category_makes_a_repeat_no_other_message(rules: Path) -> None:
    item = {"user": "u1", "type": "t", "id": "i1"}
    digests = []
    for text in (RULES, RULES + DEFAULT_CATEGORY):
        rules.write_text(text)
        async with edge_world(rules_path=str(rules)) as world, world.http() as client:
            assert (await client.post("/v1/notifications", json=item)).status_code == 202
            digests.append(world.shard.of(wire.Post)[0].envelope.digest)
    assert digests[0] == digests[1]


async def test_what_a_rule_sends_into_quiet_hours_is_scheduled(rules: Path) -> None:
    async with edge_world(rules_path=str(rules)) as world, world.http() as client:
        world.shard.quiet_until_ms = world.gateway.wall_ms() + 3_600_000
        told = (await client.post("/v1/events", json={"type": "post.liked", "user": "u1", "id": "e1"})).json()
        assert told["scheduled"] == list(world.scheduler.timers)
        assert told["results"][0]["reason"] == "quiet_hours: it is night"


# -- What is asked when the time has come. -----------------------------------------------------------------------------
CONDITIONS = (
    RULES
    + """
fire = { unless_active = true, unless_event = "order.paid", while_member = "team/{$user}" }

[[rule]]
name = "away"
event = "*"
recipients = ["user"]
type = "touch.away"
inactive = "30d"
delay = "24h"
"""
)
DAY_MS = 86_400_000


async def test_the_conditions_of_a_rule_travel_with_its_timer(rules: Path) -> None:
    rules.write_text(CONDITIONS)
    async with edge_world(rules_path=str(rules)) as world, world.http("shop") as client:
        told = await client.post("/v1/events", json={"type": "cart.abandoned", "user": "u1", "ts": 1_700_000_000_000, "id": "e1"})
        assert told.status_code == 202, told.text
        cart, away = (world.scheduler.timers[sid] for sid in told.json()["scheduled"])
        assert (cart.conditions.unless_active, cart.conditions.unless_events) == (True, ("order.paid",))
        assert cart.conditions.member_of == "team/u1"
        assert away.conditions.inactive_ms == 30 * DAY_MS
        assert away.due_ms - away.conditions.since_ms == 31 * DAY_MS


async def test_an_event_does_not_cancel_what_it_arms(rules: Path) -> None:
    rules.write_text(RULES + 'ts = "{data.begun}"\nfire = { unless_active = true }\n')
    async with edge_world(rules_path=str(rules)) as world, world.http("shop") as client:
        event = {"type": "cart.abandoned", "user": "u1", "id": "e1", "data": {"begun": 1_700_000_000_000}}
        (sid,) = (await client.post("/v1/events", json=event)).json()["scheduled"]
        (happened,) = world.shard.of(wire.Happened)
        conditions = world.scheduler.timers[sid].conditions
        assert conditions is not None
        assert conditions.since_ms >= happened.at_ms, "as old as the cart is, its user was not active since"


async def test_an_event_before_a_future_ts_cancels_the_armed_timer(rules: Path) -> None:
    rules.write_text(RULES + 'ts = "{data.begins}"\nfire = { unless_event = "order.paid" }\n')
    async with edge_world(rules_path=str(rules)) as world, world.http("shop") as client:
        event = {"type": "cart.abandoned", "user": "u1", "id": "e1", "data": {"begins": world.gateway.wall_ms() + DAY_MS}}
        (sid,) = (await client.post("/v1/events", json=event)).json()["scheduled"]
        conditions = world.scheduler.timers[sid].conditions
        assert conditions is not None
        assert (await client.post("/v1/events", json={"type": "order.paid", "user": "u1", "id": "e2"})).status_code == 202
        assert conditions.since_ms <= world.shard.of(wire.Happened)[-1].at_ms


TOUCH_RULES = Path(__file__).parents[3] / "examples" / "touch" / "rules.toml"
HOUR_S = 3600


@pytest.mark.parametrize(
    ("level", "active_h", "hours"),
    [("vip", 0, 1), ("normal", 0, 2), ("", 0, 24), ("gold", 0, 24), ("vip", 30, 1), ("vip", 3, 0.6), ("normal", 23, 1.2), (None, 1, 14.4)],
)
async def test_the_delay_follows_the_customer_vip_normal_others_and_shorter_who_was_here_today(
    rules: Path, level: str | None, active_h: int, hours: float
) -> None:
    text = TOUCH_RULES.read_text()
    cart = text[text.index('[[rule]]\nname = "cart"') : text.index("# A month without")]
    rules.write_text("\n".join(line for line in cart.splitlines() if not line.startswith("fire")))
    async with edge_world(rules_path=str(rules)) as world, world.http() as client:
        world.shard.profiles["default:u1"] = None if level is None else Profile(level=level)
        now_ms = world.gateway.wall_ms()
        world.shard.active_ms = now_ms - active_h * HOUR_S * 1000 if active_h else 0
        answer = await client.post("/v1/events", json={"type": "cart.abandoned", "user": "u1", "id": "e1"})
        (sid,) = answer.json()["scheduled"]
        timer = world.scheduler.timers[sid]
        assert timer.due_ms - now_ms == pytest.approx(hours * HOUR_S * 1000, abs=5000)
        assert timer.ttl_ms == world.config.ttl_s_default * 1000
        world.shard.active_ms = now_ms  # more active than at the first sending
        world.scheduler.known["default:u1", timer.envelope.id] = timer
        again = await client.post("/v1/events", json={"type": "cart.abandoned", "user": "u1", "id": "e1"})
        assert again.json()["results"][0]["status"] == "duplicate"
        assert world.scheduler.received[-1].timer.envelope.digest == timer.envelope.digest, "the same message, whenever it is sent"


async def test_a_users_shard_is_asked_only_when_a_rule_that_matches_looks_at_the_user(rules: Path) -> None:
    rules.write_text(
        RULES + '[[rule]]\nname = "by-level"\nevent = "level.asked"\nrecipients = ["user", "other"]\ntype = "t"\ntitle = "{$level}!"\n'
    )
    async with edge_world(rules_path=str(rules)) as world, world.http() as client:
        await client.post("/v1/events", json={"type": "post.liked", "user": "u1", "id": "e1"})
        assert world.shard.of(wire.GetProfile) == []
        world.shard.profiles["default:u1"] = Profile(level="vip")
        await client.post("/v1/events", json={"type": "level.asked", "user": "u1", "id": "e1"})
        assert [asked.key for asked in world.shard.of(wire.GetProfile)] == ["default:u1"]
        assert b'"title":"vip!"' in world.shard.of(wire.Post)[-1].envelope.body
        world.shard.profile_status = wire.UNAVAILABLE
        assert (await client.post("/v1/events", json={"type": "level.asked", "user": "u1", "id": "e2"})).status_code == 503


async def test_a_rule_that_acts_arms_a_timer_with_its_action_and_is_cancelled_as_any_other(rules: Path) -> None:
    text = (
        rules.read_text()
        + """
[[rule]]
name = "act"
event = "cart.abandoned"
recipients = ["user"]
type = "cart.touch"
actor = "user"
cancel_on = "order.paid"
fire = { unless_active = true }
do = "https://hooks.example.com/cart"

[[rule]]
name = "act-at-once"
event = "post.liked"
recipients = ["user"]
type = "like.count"
do = "ray://shop/likes.count"
"""
    )
    rules.write_text(text)
    async with (
        edge_world(rules_path=str(rules), webhook_hosts=("hooks.example.com",), webhook_secret="w" * 32) as world,
        world.http("shop") as client,
    ):
        event = {"type": "cart.abandoned", "user": "u1", "data": {"item": "a lamp"}, "id": "e1"}
        world.gateway.shard_client.outcomes = outcomes = OutcomeLog()
        for _ in range(2):  # its publisher got no answer
            told = (await client.post("/v1/events", json=event)).json()
            assert told["matched"] == ["cart", "act"]
        reasons = {one.reason for one in outcomes.take(99) if isinstance(one, Outcome) and one.rule == "act"}
        assert reasons == {"action: https://hooks.example.com"}, "users read it, and a path may be a secret"
        asked = [record.timer for record in world.scheduler.received if isinstance(record, wire.Schedule)]
        acting = [(timer.action, timer.conditions) for timer in asked if timer.action is not None]
        assert [action.target for action, _ in acting] == ["https://hooks.example.com/cart"] * 2
        assert len({action.key for action, _ in acting}) == 1, "the same action in every repeat"
        assert acting[0][1] is not None
        listed = (await client.get("/v1/scheduled?user=u1")).json()["scheduled"]
        assert [one["action"] for one in listed if "action" in one] == ["https://hooks.example.com/cart"]
        paid = await client.post("/v1/events", json={"type": "order.paid", "user": "u1"})
        assert paid.json()["cancelled"] == len(listed)
        liked = (await client.post("/v1/events", json={"type": "post.liked", "user": "u1", "actor": "bob", "id": "e2"})).json()
        assert [result["status"] for result in liked["results"]] == ["accepted", "scheduled"], "a message, and a timer that is due now"
        assert len(world.shard.of(wire.Post)) == 1


async def test_the_repeat_of_an_event_that_cancels_and_begins_the_same_leaves_what_it_began(rules: Path) -> None:
    """A reminder an hour after the last event."""
    rules.write_text(TO_ALL.replace('"done"', '"e"').replace("{delay}", "1h"))
    async with edge_world(rules_path=str(rules)) as world, world.http() as client:
        for id in ("1", "1", "2"):
            event = {"type": "e", "user": "u1", "id": id, "data": {"users": ["a"]}}
            assert (await client.post("/v1/events", json=event)).status_code == 202
            (armed,) = world.scheduler.timers.values()
            assert armed.envelope.id == f"all/{id}"
            world.scheduler.known[armed.key, armed.envelope.id] = armed


async def test_the_repeat_of_an_event_spares_what_a_later_event_armed(rules: Path) -> None:
    async with edge_world(rules_path=str(rules)) as world, world.http("shop") as client:

        async def take(type: str, id: str) -> Any:
            return (await client.post("/v1/events", json={"type": type, "user": "u1", "id": id})).json()

        await take("cart.abandoned", "e1")
        assert (await take("order.paid", "e2"))["cancelled"] == 1
        later = (await take("cart.abandoned", "e3"))["scheduled"]
        assert (await take("order.paid", "e2"))["cancelled"] == 0
        assert list(world.scheduler.timers) == later
        assert (await take("order.paid", "e4"))["cancelled"] == 1


async def test_a_repeat_cancels_what_its_first_attempt_could_not(rules: Path) -> None:
    async with edge_world(rules_path=str(rules)) as world, world.http("shop") as client:
        await client.post("/v1/events", json={"type": "cart.abandoned", "user": "u1", "id": "e1"})
        paid = {"type": "order.paid", "user": "u1", "id": "e2"}
        world.scheduler.status = wire.UNAVAILABLE
        assert (await client.post("/v1/events", json=paid)).status_code == 503
        world.scheduler.status, world.arrivals.away = 0, True
        answer = await client.post("/v1/events", json=paid)
        assert (answer.status_code, answer.json()["cancelled"]) == (202, 1)


# -- Windows, topics, languages and variants. --------------------------------------------------------------------------
COMPLETE = """
[[rule]]
name = "like"
event = "post.liked"
recipients = ["user"]
type = "forum.like"
window = "5m"
collapse = "like/{target}"
ttl = "1h"
title = "liked"
summary = "{count} people like your post"
locales.de = { title = "gemocht", summary = "{count} Personen" }

[[rule]]
name = "thread"
event = "thread.created"
topic = "section/{context}"
type = "forum.thread"

[[rule]]
name = "announcement"
event = "announcement.made"
broadcast = true
type = "forum.announcement"
delay = "1h"
cancel_on = "announcement.withdrawn"
"""


async def test_likes_go_into_the_window_of_their_post_in_the_language_of_the_user(rules: Path) -> None:
    rules.write_text(COMPLETE)
    async with edge_world(rules_path=str(rules)) as world, world.http() as client:
        world.shard.profiles["default:u2"] = Profile(locale="de-AT")
        for number, (user, actor) in enumerate((("u1", "bob"), ("u1", "cem"), ("u2", "bob"))):
            event = {"type": "post.liked", "user": user, "actor": actor, "target": "p3", "id": f"e{number}"}
            assert (await client.post("/v1/events", json=event)).status_code == 202
        first, second, german = (post.envelope for post in world.shard.of(wire.Post))
        assert first.merge == second.merge == Merge(300_000, False, "{count} people like your post")
        assert {first.collapse, second.collapse, german.collapse} == {"like/p3"}
        assert (german.merge.text, b'"title":"gemocht"' in german.body) == ("{count} Personen", True)
        posts = world.shard.of(wire.Post)
        assert 3_590_000 < posts[0].expires_ms - world.gateway.wall_ms() <= 3_600_000


async def test_a_windowed_message_that_is_too_large_for_one_is_refused_like_a_published_one(rules: Path) -> None:
    rules.write_text(COMPLETE.replace('title = "liked"', 'title = "{data}"').replace("locales", "# locales"))
    async with edge_world(rules_path=str(rules)) as world, world.http() as client:
        event = {"type": "post.liked", "user": "u1", "target": "p3", "data": "x" * (9 << 10)}
        refused = await client.post("/v1/events", json=event)
        assert (refused.status_code, refused.json()["errors"][0]["path"]) == (422, "$[0].data")


async def test_a_topic_is_told_once_and_a_delayed_broadcast_can_be_cancelled(rules: Path) -> None:
    rules.write_text(COMPLETE)
    async with edge_world(rules_path=str(rules)) as world, world.http() as client:
        told = (await client.post("/v1/events", json={"type": "thread.created", "user": "u1", "context": "lamps", "id": "e1"})).json()
        assert [(result["topic"], result["status"]) for result in told["results"]] == [("section/lamps", "accepted")]
        made = (await client.post("/v1/events", json={"type": "announcement.made", "user": "u1", "id": "e2"})).json()
        assert [(result["broadcast"], result["status"]) for result in made["results"]] == [(True, "scheduled")]
        (timer,) = world.scheduler.timers.values()
        assert (timer.key, timer.envelope.collapse) == ("default:\n", "announcement")
        withdrawn = (await client.post("/v1/events", json={"type": "announcement.withdrawn", "user": "u1"})).json()
        assert (withdrawn["cancelled"], world.scheduler.timers) == (1, {})
