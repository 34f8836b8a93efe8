"""Profiles over HTTP: who may, what is refused and why, what the shard is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from engine.core.policy.profile import Profile
from engine.core.policy.quiet_hours import QuietHours
from engine.core.wire import records as wire
from tests.support.edge_world import EdgeWorld, edge_world

NOTHING = {"zone": "UTC", "level": "", "quiet": [], "mute": {"types": [], "targets": []}, "digest": {"types": []}}
NIGHT = {
    "zone": "Europe/Berlin",
    "level": "vip",
    "quiet": [{"from": "22:00", "to": "07:30", "days": ["sat", "sun"]}],
    "mute": {"types": ["promo.*"], "targets": ["thread:9"]},
    "digest": {"types": ["forum.*"]},
}


@pytest.fixture
async def world() -> AsyncIterator[EdgeWorld]:
    async with edge_world(profile_entries_max=2) as world:
        yield world


async def call(
    world: EdgeWorld, method: str, user: str = "u1", *, by: str = "app", scopes: str = "publish", **options: Any
) -> httpx.Response:
    async with world.http(by, scopes=scopes) as client:
        return await client.request(method, f"/v1/users/{user}/profile", **options)


async def test_a_profile_is_kept_told_and_forgotten(world: EdgeWorld) -> None:
    assert (await call(world, "GET")).json() == NOTHING
    answer = await call(world, "PUT", json=NIGHT)
    assert (answer.status_code, answer.json()) == (200, NIGHT)
    kept = Profile("Europe/Berlin", "vip", (QuietHours(22 * 60, 450, 0b110_0000),), ("promo.*",), ("thread:9",), ("forum.*",))
    assert world.shard.profiles == {"default:u1": kept}
    assert (await call(world, "GET")).json() == NIGHT
    assert (await call(world, "PUT", json={"level": "normal"})).json() == {**NOTHING, "level": "normal"}
    assert (await call(world, "DELETE")).status_code == 204
    assert world.shard.profiles == {"default:u1": None}
    assert (await call(world, "GET")).json() == NOTHING


async def test_users_read_their_own_and_only_who_looks_after_users_writes(world: EdgeWorld) -> None:
    assert (await call(world, "GET", by="u1", scopes="connect")).status_code == 200
    assert (await call(world, "GET", by="u2", scopes="connect")).status_code == 403
    for method in ("PUT", "DELETE"):
        assert (await call(world, method, by="u1", scopes="connect", json={})).status_code == 403
        assert (await call(world, method, by="ops", scopes="admin", json={})).status_code in (200, 204)
    async with httpx.AsyncClient(base_url=world.url(), trust_env=False, verify=False) as client:
        assert (await client.get("/v1/users/u1/profile")).status_code == 401


@pytest.mark.parametrize(
    ("body", "path", "words"),
    [
        ({"zone": "Berlin"}, "$.zone", "Europe/Berlin"),
        ({"zone": 5}, "$.zone", "str"),
        ({"quiet": [{"from": "25:00", "to": "07:00"}]}, "$.quiet[0].from", "22:30"),
        ({"quiet": [{"from": "07:00", "to": "07:00"}]}, "$.quiet[0].to", "other"),
        ({"mute": {"types": ["a b"]}}, "$.mute.types[0]", "event type"),
        ({"mute": {"types": ["a", "b", "c"]}}, "$.mute.types", "at most 2"),
        ({"colour": "red"}, "$", "colour"),
        ([], "$", "object"),
    ],
)
async def test_what_is_wrong_with_a_profile_is_told_with_its_place(world: EdgeWorld, body: Any, path: str, words: str) -> None:
    answer = await call(world, "PUT", json=body)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["path"] == path
    assert words in error["detail"]
    assert world.shard.received == []


async def test_users_with_any_name_have_profiles_and_no_user_is_called_nothing(world: EdgeWorld) -> None:
    assert (await call(world, "PUT", "team%2Fann%20b", json={"level": "x"})).status_code == 200
    assert "default:team/ann b" in world.shard.profiles
    assert (await call(world, "GET", "%0a")).status_code == 404
    assert (await call(world, "POST", json={})).status_code == 405


async def test_without_storage_a_profile_is_not_said_to_be_kept(world: EdgeWorld) -> None:
    world.shard.profile_status = wire.UNAVAILABLE
    assert (await call(world, "PUT", json=NIGHT)).status_code == 503
    assert (await call(world, "DELETE")).status_code == 503
