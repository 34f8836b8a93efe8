"""Events, timers and topics as the Python clients have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import Client, Publisher, SyncClient, SyncPublisher
from engine.errors import Forbidden, Refused
from tests.support.background_loop import in_background
from tests.support.edge_world import edge_world

RULES = """
[[rule]]
name = "liked"
event = "post.liked"
recipients = ["target.author"]
type = "social.like"
"""


async def test_an_event_is_handed_to_the_rules_and_a_repeat_is_none(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    async with edge_world(rules_path=str(rules)) as world, Publisher(world.url(), world.token("app", "publish")) as publisher:
        liked = {"type": "post.liked", "user": "bob", "target": {"author": "ann"}}
        outcome = await publisher.event(**liked, id="e1")
        assert (outcome.matched, outcome.scheduled, outcome.cancelled) == (["liked"], [], 0)
        assert [(result.user, result.status) for result in outcome.results] == [("ann", "accepted")]
        assert [result.status for result in (await publisher.event(**liked, id="e1")).results] == ["duplicate"]
        assert [result.status for result in (await publisher.event(**liked)).results] == ["accepted"], "it has an id of its own"
        with pytest.raises(Refused, match="type"):
            await publisher.event(type="no type", user="bob")


async def test_a_delayed_message_is_looked_at_moved_and_cancelled() -> None:
    async with edge_world() as world, Publisher(world.url(), world.token("app", "publish")) as publisher:
        scheduled_id = (await publisher.publish(type="a.b", user="ann", delay=3600)).scheduled_id or ""
        found = await publisher.scheduled(scheduled_id)
        assert found is not None
        assert (found.user, found.notification["type"]) == ("ann", "a.b")
        assert await publisher.reschedule(scheduled_id, delay=7200)
        moved = await publisher.scheduled(scheduled_id)
        assert moved is not None
        assert moved.scheduled_at > found.scheduled_at
        assert await publisher.cancel(scheduled_id)
        assert await publisher.scheduled(scheduled_id) is None
        assert not await publisher.reschedule(scheduled_id, at=moved.scheduled_at)


async def test_what_is_scheduled_for_a_user_is_listed_and_cancelled_at_once() -> None:
    async with edge_world() as world, Publisher(world.url(), world.token("app", "publish")) as publisher:
        for kind, collapse in (("a.b", None), ("c.d", {"key": "x&y"}), ("e.f", {"key": "x&y"})):
            await publisher.publish(type=kind, user="ann b", delay=3600, collapse=collapse)
        assert [one.notification["type"] for one in await publisher.scheduled_for("ann b")] == ["a.b", "c.d", "e.f"]
        assert len(await publisher.scheduled_for("ann b", collapse="x&y")) == 2
        assert await publisher.cancel_for("ann b", collapse="x&y") == 2
        assert await publisher.cancel_for("ann b") == 1
        assert await publisher.scheduled_for("ann b") == []


async def test_topics_are_subscribed_to_and_left_again() -> None:
    async with edge_world() as world:
        client = Client(world.url(), world.token("u1"))
        assert await client.subscribe() == []
        assert await client.subscribe("news", "team/7") == ["news", "team/7"]
        assert await client.unsubscribe("news") == ["team/7"]
        with pytest.raises(Forbidden):
            await Client(world.url(), world.token("u1", "events")).subscribe("news")


def test_the_blocking_clients_have_the_same() -> None:
    with in_background(edge_world()) as world:
        with SyncPublisher(world.url(), world.token("app", "publish")) as publisher:
            assert publisher.event(type="post.liked", user="bob").matched == []
            scheduled_id = publisher.publish(type="a.b", user="ann", delay=3600).scheduled_id or ""
            assert publisher.reschedule(scheduled_id, delay=7200)
            assert publisher.scheduled(scheduled_id) is not None
            assert publisher.cancel(scheduled_id)
            assert publisher.scheduled_for("ann") == []
            assert publisher.cancel_for("ann") == 0
        with SyncClient(world.url(), world.token("u1")) as client:
            assert client.subscribe("news") == ["news"]
            assert client.unsubscribe("news") == []
