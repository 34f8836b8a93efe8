"""Messages of a category with `unsubscribe = true` carry the link that turns it off for their user."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.core.model.category import DAY_MS, OFF, PolicyTerms
from engine.core.model.constants import NORMAL
from engine.core.model.envelope import Envelope
from engine.core.wire import records as wire
from engine.features.policy.message_links import MessageLinks
from engine.features.policy.unsubscribe_links import read_link_token, unsubscribe_claims
from engine.publish.drafts import Draft
from tests.support.edge_world import EdgeWorld, edge_world
from tests.support.waiting import until

RULES = """
[category.news]
unsubscribe = true
[category.plain]
[inbox]
"news.*" = "1d"
[[rule]]
name = "weekly"
event = "issue.out"
recipients = ["user"]
type = "news.issue"
category = "news"
"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[EdgeWorld]:
    (tmp_path / "rules.toml").write_text(RULES)
    async with edge_world(rules_path=str(tmp_path / "rules.toml")) as world:
        yield world


async def post(world: EdgeWorld, path: str, item: Any, scopes: str = "publish events") -> Any:
    answer = await world.once("app", scopes=scopes).post(path, json=item)
    assert answer.status_code == 202, answer.text
    return answer.json()


def messages(world: EdgeWorld) -> dict[str, dict[str, Any]]:
    """What the shard was given, by user."""
    return {record.key.partition(":")[2]: json.loads(b"{%b}" % record.envelope.body) for record in world.shard.of(wire.Post)}


async def test_each_user_gets_a_link_of_their_own_which_turns_the_category_off_for_them(world: EdgeWorld) -> None:
    await post(world, "/v1/notifications", {"users": ["u1", "u2"], "type": "news.issue", "category": "news", "data": {"n": 1}})
    found = messages(world)
    assert found["u1"]["unsubscribe"] != found["u2"]["unsubscribe"]
    assert found["u1"]["data"] == {"n": 1}
    async with httpx.AsyncClient(base_url=world.url(), trust_env=False) as client:
        assert (await client.post(found["u1"]["unsubscribe"], data={})).status_code == 200
    assert world.shard.profiles["default:u1"].categories == {"news": OFF}
    assert "default:u2" not in world.shard.profiles


async def test_a_notification_that_a_rule_makes_has_it_too(world: EdgeWorld) -> None:
    await post(world, "/v1/events", {"type": "issue.out", "user": "u1"})
    assert messages(world)["u1"]["unsubscribe"].startswith("/v1/unsubscribe?token=")


async def test_a_type_keeps_its_messages_as_the_rules_say_published_or_made_by_a_rule(world: EdgeWorld) -> None:
    await post(world, "/v1/notifications", {"user": "u1", "type": "news.issue", "category": "plain"})
    await post(world, "/v1/events", {"type": "issue.out", "user": "u2"})
    assert [record.envelope.policy_terms.limits.inbox_ms for record in world.shard.of(wire.Post)] == [DAY_MS, DAY_MS]


async def test_messages_of_other_categories_have_none(world: EdgeWorld) -> None:
    await post(world, "/v1/notifications", [{"user": "u1", "type": "a", "category": "plain"}, {"user": "u2", "type": "a"}])
    assert all("unsubscribe" not in message for message in messages(world).values())


async def test_a_link_is_no_part_of_what_makes_a_repeat_another_message(world: EdgeWorld) -> None:
    made = []
    for now_ms in (1_000_000, 9_000_000):
        envelope = Envelope("weekly-7", b"digest..", NORMAL, True, b'"id":"weekly-7"', policy_terms=PolicyTerms("news"))
        draft = Draft("t:u1", "u1", envelope, True, 0, 0, 0)
        await MessageLinks(world.link_key, lambda now_ms=now_ms: now_ms).add([draft], {"news"})
        made.append(draft.envelope)
    assert made[0].body != made[1].body
    assert made[0].digest == made[1].digest


async def test_others_are_served_while_many_links_are_made(world: EdgeWorld) -> None:
    envelope = Envelope("m", b"digest..", NORMAL, True, b'"id":"m"', policy_terms=PolicyTerms("news"))
    drafts = [Draft(f"t:u{n}", f"u{n}", envelope, True, 0, 0, 0) for n in range(1000)]
    making = asyncio.ensure_future(MessageLinks(world.link_key, lambda: 0).add(drafts, {"news"}))
    turns = 0
    while not making.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 20
    key = await world.link_key()
    for draft in drafts:
        token = json.loads(b"{%b}" % draft.envelope.body)["unsubscribe"].partition("token=")[2]
        claims = read_link_token(token, key, 0, unsubscribe_claims)
        assert claims is not None
        assert claims.user == draft.user


async def test_without_the_key_nothing_is_accepted(world: EdgeWorld) -> None:
    world.link_key_away = True
    async with world.http("app", scopes="publish") as client:
        answer = await client.post("/v1/notifications", json={"user": "u1", "type": "a", "category": "news"})
        assert (answer.status_code, world.shard.of(wire.Post)) == (503, [])
        assert (await client.post("/v1/notifications", json={"user": "u1", "type": "a"})).status_code == 202


async def test_what_is_explained_has_the_retention_of_its_type_as_what_is_published(world: EdgeWorld) -> None:
    await world.once("app", scopes="publish").post("/v1/explain", json={"user": "u1", "type": "news.issue"})
    await until(lambda: world.shard.of(wire.Explain))
    (asked,) = world.shard.of(wire.Explain)
    assert asked.post.envelope.policy_terms.limits.inbox_ms == DAY_MS
