"""Preferences as the Python clients have them: read, changed by several at once, refused; and unsubscribe links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine import Client, Publisher, SyncClient, SyncPublisher
from engine.core.wire import records as wire
from engine.errors import Forbidden, Refused
from tests.support.edge_world import EdgeWorld, edge_world
from tests.support.waiting import until


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[EdgeWorld]:
    (tmp_path / "rules.toml").write_text('[category.news]\ntitle = "Weekly"\n[category.billing]\nuser_may = ["on", "digest"]\n')
    async with edge_world(rules_path=str(tmp_path / "rules.toml")) as world:
        yield world


async def test_what_is_named_changes_and_the_rest_stays_also_with_two_devices_at_once(world: EdgeWorld) -> None:
    devices = [Client(world.url(), world.token("u1"), device=name) for name in "ab"]
    first = await devices[0].preferences()
    assert (first.user, first.zone, first.categories, first.available["news"].title) == ("u1", "UTC", {}, "Weekly")
    await asyncio.gather(
        devices[0].set_preferences(categories={"news": "off"}, types={"a.*": "digest"}),
        devices[1].set_preferences(zone="Asia/Tokyo", quiet=[{"from": "22:00", "to": "07:00"}]),
    )
    both = await devices[1].preferences()
    assert (both.zone, both.categories, both.types) == ("Asia/Tokyo", {"news": "off"}, {"a.*": "digest"})
    assert (both.quiet[0]["from"], both.available["news"].choice) == ("22:00", "off")
    back = await devices[0].set_preferences(categories={"news": None}, types=None)
    assert (back.categories, back.types, back.zone) == ({}, {}, "Asia/Tokyo")


async def test_what_is_not_left_to_users_or_to_the_token_is_refused(world: EdgeWorld) -> None:
    client = Client(world.url(), world.token("u1"))
    with pytest.raises(Refused, match="the category billing cannot be off"):
        await client.set_preferences(categories={"billing": "off"})
    with pytest.raises(Refused, match="only the application"):
        await client.set_preferences(level="vip")
    with pytest.raises(Forbidden):
        await Client(world.url(), world.token("u1", "events")).preferences()


async def test_a_change_whose_answer_is_lost_is_repeated_until_it_is_durable(world: EdgeWorld) -> None:
    world.shard.profile_status = wire.UNAVAILABLE
    changing = asyncio.create_task(Client(world.url(), world.token("u1")).set_preferences(categories={"news": "off"}))
    await until(lambda: world.shard.of(wire.ChangeProfile))
    world.shard.profile_status = wire.OK
    assert (await changing).categories == {"news": "off"}


async def test_an_application_looks_after_its_users_and_makes_links(world: EdgeWorld) -> None:
    async with Publisher(world.url(), world.token("app", "publish")) as publisher:
        assert (await publisher.set_preferences("team/ann", categories={"news": "digest"})).user == "team/ann"
        assert (await publisher.preferences("team/ann")).categories == {"news": "digest"}
        links = await publisher.unsubscribe_links("news", ["team/ann", "bob"])
        assert list(links) == ["team/ann", "bob"]
        assert all(path.startswith("/v1/unsubscribe?token=") for path in links.values())
        with pytest.raises(Refused, match="billing"):
            await publisher.unsubscribe_links("billing", ["bob"])


async def test_the_blocking_clients_do_the_same(world: EdgeWorld) -> None:
    def ask() -> None:
        with SyncClient(world.url(), world.token("u1")) as client:
            assert client.set_preferences(categories={"news": "off"}) == client.preferences()
        with SyncPublisher(world.url(), world.token("app", "publish")) as publisher:
            assert publisher.preferences("u1").categories == {"news": "off"}
            assert publisher.set_preferences("u1", categories=None).categories == {}
            assert list(publisher.unsubscribe_links("news", ["u1"])) == ["u1"]

    await asyncio.to_thread(ask)
