"""The questions of an application: profiles, explanations and timelines, asked of a real edge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from engine import Publisher, SyncPublisher
from engine.core.wire import records as wire
from engine.errors import Forbidden, Refused, Unauthorized, Unreachable
from tests.support.edge_world import EdgeWorld, edge_world
from tests.support.waiting import until


@pytest.fixture
async def world() -> AsyncIterator[EdgeWorld]:
    async with edge_world(publish_timeout_ms=3000) as world:
        yield world


async def test_profiles_are_kept_told_and_forgotten(world: EdgeWorld) -> None:
    async with Publisher(world.url(), world.token("app", "publish")) as publisher:
        kept = await publisher.set_profile("team/ann", {"level": "vip", "mute": {"types": ["promo.*"]}})
        assert (kept["level"], kept["zone"]) == ("vip", "UTC")
        assert await publisher.profile("team/ann") == kept
        assert "default:team/ann" in world.shard.profiles
        assert (await publisher.set_profile("team/ann", None))["level"] == ""
        with pytest.raises(Refused, match=r"\$.zone: an IANA time zone"):
            await publisher.set_profile("ann", {"zone": "Berlin"})


async def test_a_user_is_erased_by_an_admin_only_and_the_request_is_repeated_until_it_is_done(world: EdgeWorld) -> None:
    async with Publisher(world.url(), world.token("app", "publish")) as publisher:
        with pytest.raises(Forbidden):
            await publisher.erase_user("team/ann")
    world.shard.erase_status = wire.UNAVAILABLE
    async with Publisher(world.url(), world.token("app", "admin"), retry_for_s=20) as publisher:
        erasing = asyncio.create_task(publisher.erase_user("team/ann"))
        await until(lambda: world.shard.of(wire.Erase))
        world.shard.erase_status = wire.OK
        await erasing
    assert {record.key for record in world.shard.of(wire.Erase)} == {"default:team/ann"}


async def test_what_would_become_of_an_item_and_what_became_of_one(world: EdgeWorld) -> None:
    world.shard.explained = ("suppress", [("cap", "enough")])
    world.shard.traced["default:ann", "a b"] = wire.Traced(0, "sent", 3, [wire.Step(5, "accepted")])
    async with Publisher(world.url(), world.token("app", "publish")) as publisher:
        explained = await publisher.explain(type="a", users=["ann", "bob"], category="touch")
        assert [(one["user"], one["decision"], one["reasons"][0]["code"]) for one in explained] == [
            ("ann", "suppress", "cap"), ("bob", "suppress", "cap"),
        ]  # fmt: skip
        told = await publisher.timeline("ann", "a b")
        assert told == {"id": "a b", "seq": 3, "state": "sent", "timeline": [{"at": 5, "event": "accepted"}]}
        assert await publisher.timeline("ann", "other") is None
        with pytest.raises(Refused, match="no category has this name"):
            await publisher.explain(type="a", user="ann", category="x")


async def test_a_question_is_asked_again_until_it_is_answered_or_the_time_is_up(world: EdgeWorld) -> None:
    world.shard.profile_status = wire.UNAVAILABLE
    async with Publisher(world.url(), world.token("app", "publish"), retry_for_s=20) as publisher:
        asking_ = asyncio.create_task(publisher.set_profile("ann", {"level": "vip"}))
        await until(lambda: len(world.shard.of(wire.SetProfile)) == 1)
        world.shard.profile_status = wire.OK
        assert (await asking_)["level"] == "vip"
    world.shard.profile_status = wire.UNAVAILABLE
    async with Publisher(world.url(), world.token("app", "publish"), retry_for_s=0.1) as publisher:
        with pytest.raises(Unreachable, match="503"):
            await publisher.profile("ann")


async def test_a_token_that_does_not_do_is_said_and_one_that_is_renewed_is_tried_again(world: EdgeWorld) -> None:
    async with Publisher(world.url(), world.token("app", "connect")) as publisher:
        with pytest.raises(Forbidden):
            await publisher.profile("ann")
    async with Publisher(world.url(), "nonsense") as publisher:
        with pytest.raises(Unauthorized):
            await publisher.profile("ann")
    tokens = iter(["nonsense", world.token("app", "publish")])
    async with Publisher(world.url(), lambda: next(tokens)) as publisher:
        assert (await publisher.profile("ann"))["zone"] == "UTC"


async def test_the_blocking_publisher_asks_the_same(world: EdgeWorld) -> None:
    def ask() -> None:
        with SyncPublisher(world.url(), world.token("app", "publish")) as publisher:
            assert publisher.set_profile("ann", {"level": "vip"})["level"] == publisher.profile("ann")["level"] == "vip"
            assert publisher.explain(type="a", user="ann")[0]["decision"] == "deliver"
            assert publisher.timeline("ann", "x") is None

    await asyncio.to_thread(ask)
