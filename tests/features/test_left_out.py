"""An edge without features: what stays works, and what is gone is neither served nor described."""

from __future__ import annotations

import importlib
import re
from importlib.util import find_spec

import pytest

from docs.metrics import of_features
from engine.config import Config
from tests.support.edge_world import EdgeWorld, edge_world, frame_of
from tests.support.feature_folders import FOLDERS, with_dependants
from tests.support.scrapes import found_families
from tests.support.waiting import until


async def paths_of(world: EdgeWorld) -> set[str]:
    answer = await world.once().get("/openapi.json")
    return set(answer.json()["paths"])


def paths_named_by(name: str) -> set[str]:
    module = f"engine.features.{name}.description"
    described = importlib.import_module(module).paths(Config()) if find_spec(module) else {}
    return {name.rpartition(" ")[2] for name in described}


STATUS = {
    "version": "test",
    "edges": [{"index": 0, "alive": True}],
    "archivists": [{"index": 0, "alive": True, "ready": True, "database": "ok", "archived": 1}],
    "watchers": [{"index": 0, "alive": True, "ready": True, "told": 1}],
    "ingesters": [{"index": 0, "alive": True, "ready": True, "source": "orders", "accepted": 1}],
}
"""Of an engine in which the actors of features are at work."""


async def metrics_of(world: EdgeWorld) -> set[str]:
    world.status = STATUS
    return set(found_families((await world.once().get("/metrics")).content))


def metrics_named_by(name: str) -> set[str]:
    found = of_features()
    return {figure.family.name for figure in found[name].figures} if name in found else set()


async def check_delivery(world: EdgeWorld) -> None:
    """A message is accepted, delivered and acknowledged; another one is scheduled and cancelled."""
    async with world.http("app", scopes="publish") as client, world.connect("u1") as socket:
        assert await world.publish("u1", 3) == [1, 2, 3]
        assert (await frame_of(socket))["messages"][0]["seq"] == 1
        await socket.send('{"type":"ack","seq":3}')
        await until(lambda: world.shard.acked.get("default:u1") == 3)
        later = await client.post("/v1/notifications", json={"user": "u1", "type": "t", "delay": 60})
        sid = later.json()["results"][0]["scheduled_id"]
        assert (await client.delete(f"/v1/scheduled/{sid}")).status_code == 200


@pytest.mark.parametrize("name", [*sorted(FOLDERS), "all"])
async def test_an_edge_delivers_without_a_feature_and_serves_nothing_of_it(name: str) -> None:
    gone = set(FOLDERS) if name == "all" else with_dependants(name)
    async with edge_world() as world:
        whole = await paths_of(world)
    async with edge_world(without=gone) as world:
        left = await paths_of(world)
        assert whole - left == set().union(*(paths_named_by(feature) for feature in gone))
        assert not await metrics_of(world) & set().union(*(metrics_named_by(feature) for feature in gone))
        await check_delivery(world)
        async with world.http("app", scopes="publish admin events operator connect") as client:
            for path in whole - left:
                assert (await client.get(re.sub(r"\{\w+\}", "x", path))).status_code in (404, 405), path


async def test_an_edge_exports_the_metrics_of_its_features() -> None:
    async with edge_world() as world:
        exported = await metrics_of(world)
    for name in ("history", "ray_events", "signals", "sources"):
        assert exported & metrics_named_by(name), name


async def test_a_feature_leaves_with_those_that_use_it() -> None:
    assert with_dependants("dead_letters") == {"dead_letters", "event_groups"}
    assert with_dependants("inbox") == {"inbox", "snooze", "questions"}
    assert with_dependants("actions") == {"actions", "digest", "reach"}, "the digest finds deployments of Serve as actions do"
