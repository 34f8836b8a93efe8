"""Profiles and preferences over HTTP: who may, what is refused and why, what the shard is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.core.model.category import OFF
from engine.core.policy.profile import Profile, QuietHours
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
    return await world.once(by, scopes=scopes).request(method, f"/v1/users/{user}/profile", **options)


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
        ({"quiet": [{"to": "10:00"}]}, "$.quiet[0]", "`from`"),
        ({"digest": {"types": [1]}}, "$.digest.types[0]", "str"),
        ({"colour": "red"}, "$.colour", "allowed are zone, "),
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


# -- preferences -------------------------------------------------------------------------------------------------------
RULES = """
[category.news]
title = "Weekly news"
default = "off"
[category.billing]
user_may = ["on", "digest"]
"""
EVERYTHING = ["on", "inbox", "digest", "off"]
AVAILABLE = {
    "billing": {"may": ["on", "digest"], "default": "on", "choice": "on"},
    "news": {"title": "Weekly news", "may": EVERYTHING, "default": "off", "choice": "off"},
    "touch": {"may": EVERYTHING, "default": "on", "choice": "on"},
}


@pytest.fixture
async def chosen(tmp_path: Path) -> AsyncIterator[EdgeWorld]:
    """An edge with categories."""
    (tmp_path / "rules.toml").write_text(RULES)
    async with edge_world(rules_path=str(tmp_path / "rules.toml"), profile_entries_max=2) as world:
        yield world


async def ask(world: EdgeWorld, method: str, query: str = "", *, by: str = "u1", scopes: str = "connect", **options: Any) -> httpx.Response:
    return await world.once(by, scopes=scopes).request(method, f"/v1/preferences{query}", **options)


async def test_users_see_and_change_what_the_application_leaves_to_them(chosen: EdgeWorld) -> None:
    first = (await ask(chosen, "GET")).json()
    nothing = {"user": "u1", "zone": "UTC", "locale": "", "quiet": [], "categories": {}, "types": {}, "targets": {}}
    nothing |= {"channels": {}, "quiet_categories": {}, "mail_digest": None}
    assert first == {**nothing, "available": AVAILABLE}
    patch = {"zone": "Asia/Tokyo", "categories": {"news": "digest"}, "types": {"post.*": "off"}, "targets": {"thread:9": "off"}}
    answer = await ask(chosen, "PATCH", json=patch, headers={"Content-Type": "application/merge-patch+json"})
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    after = {**nothing, **patch, "available": {**AVAILABLE, "news": {**AVAILABLE["news"], "choice": "digest"}}}
    assert answer.json() == after == (await ask(chosen, "GET")).json()
    removed = await ask(chosen, "PATCH", json={"categories": None, "types": {"post.*": None}, "zone": None})
    assert removed.json() == {**nothing, "targets": {"thread:9": "off"}, "available": AVAILABLE}
    asked = len(chosen.shard.of(wire.ChangeProfile))
    assert (await ask(chosen, "PATCH", json={})).json() == removed.json()
    assert len(chosen.shard.of(wire.ChangeProfile)) == asked, "nothing is written for an empty patch"


async def test_without_an_inbox_nobody_is_offered_it(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(RULES)
    async with edge_world(rules_path=str(tmp_path / "rules.toml"), inbox_max=0) as world:
        assert (await ask(world, "GET")).json()["available"]["news"]["may"] == ["on", "digest", "off"]
        for kind, name in (("categories", "news"), ("types", "post.*")):
            answer = await ask(world, "PATCH", json={kind: {name: "inbox"}})
            assert answer.status_code == 422
            assert answer.json()["errors"][0] == {"detail": "this engine keeps no inbox", "path": f"$.{kind}.{name}"}
        assert (await call(world, "PUT", json={"inbox": {"types": ["post.*"]}})).status_code == 422
        answer = await call(world, "PUT", json={"categories": {"news": "inbox"}})
        assert answer.status_code == 422
        assert answer.json()["errors"][0] == {"detail": "this engine keeps no inbox", "path": "$.categories.news"}


async def test_changes_of_two_devices_at_once_are_both_there(chosen: EdgeWorld) -> None:
    bodies = ({"categories": {"news": "on"}}, {"categories": {"billing": "digest"}}, {"locale": "de"})
    answers = await asyncio.gather(*(ask(chosen, "PATCH", json=body) for body in bodies))
    assert {answer.status_code for answer in answers} == {200}
    found = (await ask(chosen, "GET")).json()
    assert (found["categories"], found["locale"]) == ({"news": "on", "billing": "digest"}, "de")


async def test_others_preferences_are_for_applications(chosen: EdgeWorld) -> None:
    assert (await ask(chosen, "GET", "?user=u2")).status_code == 403
    assert (await ask(chosen, "PATCH", "?user=u2", json={})).status_code == 403
    for scopes in ("publish", "admin"):
        answer = await ask(chosen, "PATCH", "?user=u2", by="app", scopes=scopes, json={"categories": {"news": "on"}})
        assert (answer.status_code, answer.json()["user"]) == (200, "u2")
    assert set(chosen.shard.profiles) == {"default:u2"}


@pytest.mark.parametrize(
    ("body", "path", "words"),
    [
        ({"level": "vip"}, "$.level", "only the application"),
        ({"categories": {"billing": "off"}}, "$.categories.billing", "the category billing cannot be off: users may choose on, digest"),
        ({"categories": {"touch": "off", "nope": "off"}}, "$.categories.nope", "no category has this name"),
        ({"types": {"a": "off", "b": "off", "c": "off"}}, "$.types", "at most 2"),
        ({"categories": {"news": 1}}, "$.categories[...]", "str"),
        ({"colour": 1}, "$.colour", "allowed are zone, "),
        ([], "$", "object"),
    ],
)
async def test_what_is_not_left_to_users_is_told_with_its_place(chosen: EdgeWorld, body: Any, path: str, words: str) -> None:
    answer = await ask(chosen, "PATCH", json=body)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["path"] == path
    assert words in error["detail"]
    assert chosen.shard.received == []


async def test_malformed_json_is_a_bad_request(chosen: EdgeWorld) -> None:
    for answer in (await ask(chosen, "PATCH", content=b"{"), await call(chosen, "PUT", content=b"{")):
        assert (answer.status_code, answer.json()["detail"][:17]) == (400, "JSON is malformed")


async def test_choices_do_not_grow_without_end(chosen: EdgeWorld) -> None:
    for number in range(2):
        assert (await ask(chosen, "PATCH", json={"types": {f"t{number}": "off"}})).status_code == 200
    answer = await ask(chosen, "PATCH", json={"types": {"t2": "off"}})
    (error,) = answer.json()["errors"]
    assert (answer.status_code, error["path"], "at most 2" in error["detail"]) == (422, "$.types", True)
    assert (await ask(chosen, "PATCH", json={"types": {"t2": "off", "t0": None}})).status_code == 200


async def test_without_storage_or_rules_preferences_are_not_said_to_be_changed(chosen: EdgeWorld, tmp_path: Path) -> None:
    chosen.shard.profile_status = wire.UNAVAILABLE
    answer = await ask(chosen, "PATCH", json={"zone": "UTC"})
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    async with edge_world(rules_path=str(tmp_path / "missing.toml")) as world:
        assert (await ask(world, "PATCH", json={"categories": {"news": "on"}})).status_code == 503
        assert (await ask(world, "PATCH", json={"zone": "UTC"})).status_code == 200


async def test_an_application_that_knows_no_choices_leaves_them_when_it_sets_a_profile(chosen: EdgeWorld) -> None:
    await ask(chosen, "PATCH", json={"categories": {"news": "on"}, "types": {"a": "off"}})
    answer = await call(chosen, "PUT", json={"level": "vip"})
    assert answer.json() == {**NOTHING, "level": "vip", "categories": {"news": "on"}}
    answer = await call(chosen, "PUT", json={"categories": {"touch": "off"}, "on": {"types": ["a"]}})
    assert answer.json() == {**NOTHING, "categories": {"touch": "off"}, "on": {"types": ["a"]}}
    assert chosen.shard.profiles["default:u1"] == Profile(categories={"touch": OFF}, on_types=("a",))
    assert (await call(chosen, "PUT", json={"categories": {}})).json() == NOTHING
