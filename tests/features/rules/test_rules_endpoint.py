"""`/v1/rules`: versions are stored, tried, staged, put in force and rolled back, by one operator at a time; refusals change nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from engine.config import Config
from engine.core.wire import records as wire
from tests.support.described import described
from tests.support.edge_world import EdgeWorld, edge_world

COMPONENTS = described(Config(), [])["components"]
ANY = {"If-Match": "*"}
EVENTS = count()


def rules_of(title: str, more: str = "") -> str:
    return f'[[rule]]\nname = "like"\nevent = "post.liked"\nrecipients = ["user"]\ntype = "forum.like"\ntitle = "{title}"\n{more}'


@asynccontextmanager
async def operated(**settings: Any) -> AsyncIterator[tuple[EdgeWorld, httpx.AsyncClient]]:
    async with edge_world(**settings) as world, world.http("ann", scopes="operator publish") as client:
        world.status["edges"] = [{"index": 0, "rules": world.rules.stats()}]
        yield world, client


async def titles(world: EdgeWorld, client: httpx.AsyncClient, *users: str) -> list[str]:
    before = len(world.shard.of(wire.Post))
    for user in users or ("u1",):
        answer = await client.post("/v1/events", json={"type": "post.liked", "user": user, "id": f"e{next(EVENTS)}"})
        assert answer.status_code == 202, answer.text
    bodies = [post.envelope.body.decode() for post in world.shard.of(wire.Post)[before:]]
    return [body.partition('"title":"')[2].partition('"')[0] for body in bodies]


async def overview(world: EdgeWorld, client: httpx.AsyncClient) -> dict[str, Any]:
    world.status["edges"] = [{"index": 0, "rules": world.rules.stats()}, {"index": 1}]
    answer = await client.get("/v1/rules")
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    jsonschema.validate(shown, {"$ref": "#/components/schemas/RulesOverview", "components": COMPONENTS})
    assert answer.headers["etag"] == f'"{shown["revision"]}"'
    return shown


async def test_a_version_is_stored_and_in_force_at_once_and_listed_with_who_and_when() -> None:
    async with operated() as (world, client):
        assert (await overview(world, client))["source"] == "none"
        stored = await client.put("/v1/rules", content=rules_of("one"), headers=ANY)
        assert stored.status_code == 200, stored.text
        jsonschema.validate(stored.json(), {"$ref": "#/components/schemas/RulesChanged", "components": COMPONENTS})
        assert (stored.json()["version"], stored.json()["active"]) == (1, 1)
        assert await titles(world, client) == ["one"]
        shown = await overview(world, client)
        (version,) = shown["versions"]
        assert (shown["source"], shown["active"], version["by"], version["rules"], version["state"]) == ("stored", 1, "ann", 1, "active")
        assert shown["edges"] == [{"edge": "edge-0", "version": 1, "staged": 0, "share": 0.0, "refused": ""}]
        (rule,) = shown["rules"]
        assert (rule["name"], rule["matched"], rule["sent"], rule["skipped"]) == ("like", 1, 1, 0)
        text = await client.get("/v1/rules/versions/1")
        assert (text.text, text.headers["content-type"].partition(";")[0]) == (rules_of("one"), "application/toml")
        for absent in ("2", "0", "x", "-1", "1" * 40):
            assert (await client.get(f"/v1/rules/versions/{absent}")).status_code == 404


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        (rules_of("x", 'delay = "soon"\n'), "rule[0].delay", 1),
        ("# a comment\n" + rules_of("x", 'priority = "urgent"\n'), "rule[0].priority", 2),
        (rules_of("x", 'window = "30d"\n'), "rule[0].window", None),
        (rules_of("x", 'ttl = "300d"\n'), "rule[0].ttl", None),
        (rules_of("x", 'delay = "3651d"\n'), "rule[0].delay", None),
        (rules_of("x", 'delay = { by = "$level", vip = "3651d", others = "1h" }\n'), "rule[0].delay", None),
        (rules_of("x", 'inactive = "3650d"\ndelay = "1h"\n'), "rule[0].inactive", None),
        (rules_of("x", 'do = "https://elsewhere.example/"\n'), "rule[0].do", None),
        ('[category.x]\nper = "soon"\n', "category.x.per", None),
        ("[[rule]\n", "$", 1),
    ],
)
async def test_rules_that_cannot_be_used_are_refused_with_field_and_line_and_nothing_is_stored(
    text: str, path: str, line: int | None
) -> None:
    async with operated() as (world, client):
        for refused in (
            await client.put("/v1/rules", content=text, headers=ANY),
            await client.post("/v1/rules/dry-run", content=text),
        ):
            assert refused.status_code == 422, refused.text
            (error,) = refused.json()["errors"]
            assert (error["path"], error.get("line")) == (path, line)
        assert world.rules_store.stored.stamp == ""


async def test_of_two_operators_who_change_the_same_state_the_second_is_told() -> None:
    async with operated() as (world, client):
        first = (await client.put("/v1/rules", content=rules_of("one"), headers=ANY)).json()["revision"]
        none = await client.put("/v1/rules", content=rules_of("two"))
        assert none.status_code == 428
        mine = {"If-Match": f'"{first}"'}
        second = await client.put("/v1/rules", content=rules_of("two"), headers=mine)
        assert second.status_code == 200
        late = await client.put("/v1/rules", content=rules_of("three"), headers=mine)
        assert (late.status_code, late.json()["revision"]) == (412, second.json()["revision"])
        for path, body in (("stage", {"version": 1, "share": 0.5}), ("rollback", {})):
            assert (await client.post(f"/v1/rules/{path}", json=body, headers=mine)).status_code == 412
            assert (await client.post(f"/v1/rules/{path}", json=body)).status_code == 428
        assert await titles(world, client) == ["two"]


async def test_every_change_needs_if_match_even_one_in_effect_already() -> None:
    async with operated() as (_, client):
        await client.put("/v1/rules", content=rules_of("one"), headers=ANY)
        answers = [
            await client.put("/v1/rules", content=rules_of("one")),
            await client.post("/v1/rules/stage", json={"version": 1, "share": 1}),
            await client.post("/v1/rules/rollback", json={"version": 1}),
        ]
        assert [answer.status_code for answer in answers] == [428] * 3


async def test_a_change_whose_answer_was_lost_can_be_repeated_and_is_made_once() -> None:
    async with operated() as (world, client):
        world.rules_store.loses_answer = True
        lost = await client.put("/v1/rules", content=rules_of("one"), headers={"If-Match": '""'})
        assert lost.status_code == 503
        world.rules_store.loses_answer = False
        again = await client.put("/v1/rules", content=rules_of("one"), headers={"If-Match": '""'})
        assert (again.status_code, again.json()["version"]) == (200, 1)
        await world.rules.follower.catch_up()
        assert await titles(world, client) == ["one"]
        await client.put("/v1/rules?share=0.5", content=rules_of("two"), headers=ANY)
        old = {"If-Match": f'"{again.json()["revision"]}"'}
        assert (await client.put("/v1/rules?share=0.5", content=rules_of("two"), headers=old)).json()["version"] == 2
        assert (await client.post("/v1/rules/stage", json={"version": 2, "share": 0.5}, headers=old)).status_code == 200
        assert (await client.post("/v1/rules/stage", json={"version": 2, "share": 0.6}, headers=old)).status_code == 412
        assert world.rules_store.stored.state.last == 2


async def test_a_version_is_tried_on_a_share_of_the_users_and_rolled_back() -> None:
    users = [f"u{number}" for number in range(60)]
    async with operated() as (world, client):
        await client.put("/v1/rules", content=rules_of("one"), headers=ANY)
        staged = await client.put("/v1/rules?share=0.3", content=rules_of("two"), headers=ANY)
        assert staged.json()["staged"] == {"version": 2, "share": 0.3}
        few = await titles(world, client, *users)
        assert 5 < few.count("two") < 35
        await client.post("/v1/rules/stage", json={"version": 2, "share": 0.7}, headers=ANY)
        many = await titles(world, client, *(f"{user}" for user in users))
        kept = [after for before, after in zip(few, many, strict=True) if before == "two"]
        assert set(kept) <= {"two"}
        assert (await overview(world, client))["edges"][0]["staged"] == 2
        back = await client.post("/v1/rules/rollback", headers=ANY)
        assert "staged" not in back.json()
        assert set(await titles(world, client, *users)) == {"one"}
        await client.post("/v1/rules/stage", json={"version": 2, "share": 1}, headers=ANY)
        assert set(await titles(world, client, *users)) == {"two"}
        assert (await client.post("/v1/rules/rollback", json={"version": 1}, headers=ANY)).json()["active"] == 1
        assert set(await titles(world, client, *users)) == {"one"}
        words = [change["what"] for change in (await overview(world, client))["changes"]]
        assert words == ["rolled back", "activated", "unstaged", "staged", "staged", "stored", "activated", "stored"]


async def test_timers_of_a_rolled_back_version_keep_their_conditions() -> None:
    later = 'delay = "1h"\nfire = { unless_event = "order.paid", unless_active = true }\n'
    async with operated() as (world, client):
        for content, share in (
            (rules_of("now"), "1"),
            (rules_of("later", later), "0.999"),
            (rules_of("never", "notify_self = true\n"), "0"),
        ):
            stored = await client.put(f"/v1/rules?share={share}", content=content, headers=ANY)
            assert stored.status_code == 200, stored.text
        await titles(world, client, "u1", "u2")
        assert len(world.scheduler.timers) == 2
        assert (await client.post("/v1/rules/rollback", headers=ANY)).status_code == 200
        before = len(world.shard.of(wire.Happened))
        for event in ("order.paid", "order.seen"):
            answer = await client.post("/v1/events", json={"type": event, "user": "u1", "id": f"e{next(EVENTS)}"})
            assert answer.status_code == 202, answer.text
        assert [happened.event for happened in world.shard.of(wire.Happened)[before:]] == ["order.paid", ""]


async def test_a_stored_version_precedes_the_file_until_it_is_rolled_back_to(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(rules_of("file"))
    async with operated(rules_path=str(path)) as (world, client):
        assert await titles(world, client) == ["file"]
        await client.put("/v1/rules", content=rules_of("stored"), headers=ANY)
        path.write_text(rules_of("file again, and not in force"))
        assert await titles(world, client) == ["stored"]
        shown = await overview(world, client)
        assert (shown["source"], shown["file"]) == ("stored", {"path": str(path), "refused": ""})
        assert (await client.post("/v1/rules/rollback", headers=ANY)).json()["active"] == 0
        assert (await titles(world, client))[0].startswith("file")


async def test_what_is_stored_with_no_share_is_not_in_force() -> None:
    async with operated() as (world, client):
        await client.put("/v1/rules", content=rules_of("one"), headers=ANY)
        stored = await client.put("/v1/rules?share=0", content=rules_of("two"), headers=ANY)
        assert (stored.json()["version"], stored.json()["active"]) == (2, 1)
        assert await titles(world, client) == ["one"]
        for share in ("2", "-1", "x", "nan"):
            assert (await client.put(f"/v1/rules?share={share}", content=rules_of("x"), headers=ANY)).status_code == 400


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("stage", {"version": 9, "share": 0.5}, "$.version"),
        ("stage", {"version": 1, "share": 1.5}, "$.share"),
        ("stage", {"version": 1}, "$"),
        ("stage", {"version": 1, "share": 0.5}, "$.version"),
        ("rollback", {"version": 9}, "$.version"),
        ("rollback", {"to": 9}, "$.to"),
    ],
)
async def test_a_step_that_makes_no_sense_is_refused_with_its_field(path: str, body: dict[str, Any], place: str) -> None:
    async with operated() as (world, client):
        await client.put("/v1/rules", content=rules_of("one"), headers=ANY)
        before = world.rules_store.stored
        refused = await client.post(f"/v1/rules/{path}", json=body, headers=ANY)
        status = 409 if place == "$.version" else 422
        assert (refused.status_code, refused.json()["errors"][0]["path"]) == (status, place), refused.text
        assert world.rules_store.stored == before


async def test_a_change_of_whatever_it_is_replaces_an_unreadable_state() -> None:
    async with operated() as (world, client):
        await client.put("/v1/rules", content=rules_of("one"), headers=ANY)
        world.rules_store.corrupt = True
        refused = await client.put("/v1/rules", content=rules_of("two"), headers={"If-Match": '"1-x"'})
        assert (refused.status_code, "If-Match: *" in refused.json()["detail"]) == (503, True)
        answer = await client.put("/v1/rules", content=rules_of("two"), headers=ANY)
        assert (answer.status_code, answer.json()["active"]) == (200, 2)
        assert await titles(world, client) == ["two"]


async def test_without_storage_nothing_is_changed_and_events_go_on() -> None:
    async with operated() as (world, client):
        await client.put("/v1/rules", content=rules_of("one"), headers=ANY)
        world.rules_store.away = world.sample_store.away = True
        for answer in (
            await client.put("/v1/rules", content=rules_of("two"), headers=ANY),
            await client.post("/v1/rules/rollback", headers=ANY),
            await client.get("/v1/rules"),
            await client.get("/v1/rules/versions/1"),
            await client.post("/v1/rules/dry-run", content=rules_of("two")),
        ):
            assert (answer.status_code, "retry-after" in answer.headers) == (503, True), answer.text
        assert await titles(world, client) == ["one"]


async def test_a_dry_run_says_what_recent_events_would_make_and_sends_nothing() -> None:
    async with operated() as (world, client):
        await client.put("/v1/rules", content=rules_of("one"), headers=ANY)
        await titles(world, client, "u1", "u2")
        assert (await client.post("/v1/events", json={"type": "x", "user": "u1"})).status_code == 202
        sent = len(world.shard.of(wire.Post))
        other = rules_of("two") + rules_of("three").replace('"like"', '"mine"').replace("post.liked", "x")
        for tried in (
            await client.post("/v1/rules/dry-run", content=other),
            await client.post("/v1/rules/dry-run?version=2")
            if (await client.put("/v1/rules?share=0", content=other, headers=ANY)).status_code == 200
            else None,
        ):
            assert tried is not None
            assert tried.status_code == 200, tried.text
            found = tried.json()
            jsonschema.validate(found, {"$ref": "#/components/schemas/DryRun", "components": COMPONENTS})
            assert (found["against"], found["events"], found["same"]) == (1, 3, 0)
            assert found["rules"] == {"like": {"now": 2, "then": 2}, "mine": {"now": 0, "then": 1}}
            newest, liked, _ = found["differences"]
            assert (newest["event"]["type"], newest["added"][0]["rule"]) == ("x", "mine")
            assert (liked["changed"][0]["now"], liked["changed"][0]["then"]) == ({"data": {"title": "one"}}, {"data": {"title": "two"}})
        assert len(world.shard.of(wire.Post)) == sent
        only = await client.post("/v1/rules/dry-run?type=post.liked&limit=1&tenant=default", content=other)
        assert (only.json()["events"], only.json()["differences"][0]["event"]["user"]) == (1, "u2")
        assert (await client.post("/v1/rules/dry-run?tenant=nobody", content=other)).json()["events"] == 0
        same = (await client.post("/v1/rules/dry-run?version=1")).json()
        assert (same["same"], same["differences"]) == (3, [])


async def test_a_dry_run_knows_the_users_that_its_rules_depend_on() -> None:
    by_level = rules_of("one", 'delay = { by = "$level", vip = "1h", others = "2h" }\n')
    async with operated() as (world, client):
        await client.put("/v1/rules", content=rules_of("one"), headers=ANY)
        await titles(world, client, "u1")
        await client.put("/v1/users/u1/profile", json={"level": "vip"})
        found = (await client.post("/v1/rules/dry-run", content=by_level)).json()
        assert found["differences"][0]["changed"][0]["then"] == {"delay": 3_600_000}


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "version=1"])
async def test_a_dry_run_that_asks_for_too_much_or_for_two_things_is_400(query: str) -> None:
    async with operated() as (_, client):
        assert (await client.post(f"/v1/rules/dry-run?{query}", content=rules_of("x"))).status_code == 400
        assert (await client.post("/v1/rules/dry-run")).status_code == 400


async def test_rules_that_are_too_large_are_413() -> None:
    async with operated(rules_bytes_max=1000) as (_, client):
        assert (await client.put("/v1/rules", content=rules_of("x") + "#" * 1000, headers=ANY)).status_code == 413
