"""Ray's Event Export posts to an edge: who may, what is stored, and what Ray repeats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.features.ray_events import endpoints
from engine.features.ray_events.core.exported import read_batch
from tests.support.edge_world import edge_world

EXPORTED = (Path(__file__).parent / "data" / "ray-2.60.json").read_bytes()
SECRET = "s" * 32
PATH = f"/v1/ray-events/{SECRET}"
SETTINGS = {"ray_events": "default", "ray_events_secret": SECRET}


async def test_news_are_stored_before_ray_is_answered() -> None:
    async with edge_world(**SETTINGS) as world, world.http() as client:
        answer = await client.post(PATH, content=EXPORTED)
        assert (answer.status_code, answer.json()) == (200, {"events": len(json.loads(EXPORTED)), "news": 1, "unreadable": 0})
        assert world.deaths.deaths == read_batch(EXPORTED).deaths


async def test_what_is_no_news_is_not_stored() -> None:
    async with edge_world(**SETTINGS) as world, world.http() as client:
        world.deaths.away = True
        assert (await client.post(PATH, json=[{"eventType": "TASK_LIFECYCLE_EVENT"}])).status_code == 200


@pytest.mark.parametrize("trouble", ["away", "full"])
async def test_ray_is_to_repeat_what_storage_does_not_take(trouble: str) -> None:
    async with edge_world(**SETTINGS) as world, world.http() as client:
        setattr(world.deaths, trouble, True)
        answer = await client.post(PATH, content=EXPORTED)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize("path", ["/v1/ray-events/" + "x" * 32, "/v1/ray-events/%C3%A9", "/v1/ray-events/"])
async def test_another_secret_finds_nothing(path: str) -> None:
    async with edge_world(**SETTINGS) as world, world.http() as client:
        assert (await client.post(path, content=EXPORTED)).status_code == 404
        assert world.deaths.deaths == []


async def test_nothing_is_taken_without_the_setting() -> None:
    async with edge_world() as world, world.http() as client:
        assert (await client.post(PATH, content=EXPORTED)).status_code == 404


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP"])
async def test_a_request_through_a_proxy_is_refused(header: str) -> None:
    async with edge_world(**SETTINGS) as world, world.http() as client:
        assert (await client.post(PATH, content=EXPORTED, headers={header: "10.0.0.1"})).status_code == 403


@pytest.mark.parametrize(
    ("host", "near"),
    [
        ("127.0.0.1", True),
        ("10.1.2.3", True),
        ("192.168.0.7", True),
        ("::1", True),
        ("fd00::7", True),
        ("::ffff:10.0.0.1", True),
        ("fe80::1%eth0", True),
        ("8.8.8.8", False),
        ("2606:4700::1", False),
        ("::ffff:8.8.8.8", False),
        ("", False),
        ("host", False),
    ],
)
def test_only_this_machine_and_private_networks_are_near(host: str, near: bool) -> None:
    assert endpoints._is_near(host) is near


async def test_a_body_that_is_no_array_of_events_is_refused_by_name() -> None:
    async with edge_world(**SETTINGS) as world, world.http() as client:
        answer = await client.post(PATH, json=[{"event_type": "X"}])
        assert answer.status_code == 422
        assert "RAY_DASHBOARD_AGGREGATOR_AGENT_PRESERVE_PROTO_FIELD_NAME" in answer.text


async def test_a_post_may_be_larger_than_other_bodies_and_is_bounded() -> None:
    async with edge_world(**SETTINGS, body_bytes_max=1000, ray_events_bytes_max=len(EXPORTED)) as world, world.http() as client:
        assert (await client.post(PATH, content=EXPORTED)).status_code == 200
        assert (await client.post(PATH, content=EXPORTED + b" ")).status_code == 413


async def test_the_status_of_an_edge_counts_what_ray_posted() -> None:
    async with edge_world(**SETTINGS) as world, world.http() as client:
        await client.post(PATH, content=EXPORTED)
        (feature,) = (feature for feature in world.features if feature.name == "ray_events")
        assert feature.stats is not None
        assert feature.stats() == {"received": len(json.loads(EXPORTED)), "deaths": 1, "unreadable": 0}
