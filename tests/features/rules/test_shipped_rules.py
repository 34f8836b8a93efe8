"""The rules that come with the events of Ray: whom they notify of what, and when they do not."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import Config
from engine.core.wire import records as wire
from engine.features.rules.core.rules import Notification
from engine.features.rules.core.staging import RulesInForce
from engine.features.rules.core.toml_loader import parse_rules
from engine.features.rules.rule_book import check_by_config
from engine.features.rules.shipped_rules import shipped_rules
from tests.support.edge_world import edge_world

DATA = {"job": "train", "took": "3 s", "took_s": 3, "entrypoint": "python t.py", "reason": "R", "log": "kaboom", "notify": ["ann", "bob"]}
OTHERS = parse_rules('[[rule]]\nname = "all"\nevent = "*"\ntype = "t"\nrecipients = ["nobody"]\n', "x.toml")


def in_force(more: str = "") -> RulesInForce:
    rules = parse_rules(more, "own.toml") if more else OTHERS
    return RulesInForce(rules, shipped=shipped_rules(Config(ray_events="t")))


def made(event: str, rules: RulesInForce | None = None, tenant: str = "t", **data: Any) -> list[Notification]:
    payload = {"type": event, "user": "ray", "context": "train", "ts": 5, "data": DATA | data}
    parts = (rules or in_force()).apply(event, payload, "d", tenant=tenant, now_ms=1, user_facts=lambda _user: {})
    return [one for part in parts for one in part.outcome.notifications]


def whom(notifications: list[Notification]) -> list[str]:
    return [one.user or f"topic {one.topic}" for one in notifications]


@pytest.mark.parametrize("event", ["ray.job.failed", "ray.job.lost"])
def test_a_failed_job_is_told_to_its_owners_and_a_topic_with_its_log(event: str) -> None:
    notifications = made(event)
    assert whom(notifications) == ["ann", "bob", "topic ray/jobs"]
    assert {(one.type, one.context, one.ts, one.data["title"], one.data["body"]) for one in notifications} == {
        ("ray.job.failed", "train", 5, "train failed after 3 s", "kaboom")
    }


def test_a_job_without_an_owner_is_told_to_the_topic_alone() -> None:
    assert whom(made("ray.job.failed", notify=[])) == ["topic ray/jobs"]


@pytest.mark.parametrize("long", [True, False])
def test_a_finished_job_is_told_when_it_took_long(long: bool) -> None:
    assert whom(made("ray.job.finished", long=long)) == (["ann", "bob"] if long else [])


def test_a_stopped_job_is_told_to_nobody() -> None:
    assert made("ray.job.stopped") == []


def test_a_dead_actor_waits_for_the_end_of_its_job_which_cancels_it() -> None:
    (died, _) = made("ray.actor.died", actor="Trainer", detail="killed")
    assert (died.delay_ms, died.merge is not None, died.data["title"]) == (60_000, True, "Trainer of train died")
    for event in ("ray.job.failed", "ray.job.finished", "ray.job.stopped", "ray.job.lost"):
        payload = {"context": "train", "data": DATA}
        parts = in_force().apply(event, payload, "d", tenant="t", now_ms=1, user_facts=lambda _user: {})
        ended = [(one.user, one.collapse) for part in parts for one in part.outcome.cancellations]
        assert ended == [("ann", died.collapse), ("bob", died.collapse)]


def test_lost_nodes_are_one_message_per_user_and_one_per_node_for_the_topic() -> None:
    first, _, topic = made("ray.node.lost", node="n1", detail="gone")
    other, *_ = made("ray.node.lost", node="n2", detail="gone")
    assert first.collapse == other.collapse
    assert first.merge is not None
    assert first.merge.leading
    assert (topic.topic, topic.merge) == ("ray/nodes", None)


def test_an_unhealthy_application_is_told_to_operators() -> None:
    assert whom(made("ray.serve.unhealthy", app="shop", detail="x")) == ["ann", "bob", "topic ray/nodes"]


def test_a_rule_that_names_the_event_takes_the_place_of_those_that_come_with_it() -> None:
    own = in_force('[[rule]]\nname = "mine"\nevent = "ray.job.failed"\ntype = "mine"\nrecipients = ["data.notify[]"]\n')
    assert [one.type for one in made("ray.job.failed", own)] == ["mine", "mine"]
    assert [one.type for one in made("ray.node.lost", own, node="n", detail="")] == ["ray.node.lost"] * 3
    parts = own.apply("ray.job.failed", {"context": "train", "data": DATA}, "d", tenant="t", now_ms=1, user_facts=lambda _user: {})
    assert [one.rule for part in parts for one in part.outcome.cancellations] == ["ray.actor-died"] * 2


def test_another_tenant_has_none_of_them() -> None:
    assert made("ray.job.failed", tenant="other") == []


def test_without_the_setting_there_are_none() -> None:
    assert shipped_rules(Config()) is None


def test_an_engine_can_act_by_them() -> None:
    shipped = shipped_rules(Config(ray_events="t"))
    assert shipped is not None
    check_by_config(shipped.rules, Config(), "shipped")


async def test_an_edge_notifies_by_them_beside_its_own_rules() -> None:
    async with edge_world(ray_events="default") as world, world.http("app") as client:
        event = {"type": "ray.job.failed", "user": "ray", "id": "e1", "data": DATA}
        answer = await client.post("/v1/events", json=event)
        assert (answer.status_code, answer.json()["matched"]) == (202, ["ray.job-failed", "ray.job-failed.topic"])
        assert [post.key for post in world.shard.of(wire.Post)] == ["default:ann", "default:bob"]
