"""Unsubscribe links: made for an application, opened by whoever has one, and of no other use."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from engine.auth.tokens import mint
from engine.core.model.category import DIGEST, OFF, ON
from engine.core.policy.profile import Profile
from engine.core.wire import records as wire
from engine.features.policy import unsubscribing
from engine.features.policy.link_page import FORM_BYTES_MAX
from engine.features.policy.unsubscribe_links import LinkClaims, make_link_token
from engine.features.policy.unsubscribing import RememberedKey
from tests.support.edge_world import SECRET, EdgeWorld, edge_world

RULES = """
[category.news]
title = "Weekly <news>"
[category.billing]
user_may = ["on", "digest"]
"""
ONE_CLICK = {"List-Unsubscribe": "One-Click"}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[EdgeWorld]:
    (tmp_path / "rules.toml").write_text(RULES)
    async with edge_world(rules_path=str(tmp_path / "rules.toml")) as world:
        yield world


async def make(world: EdgeWorld, *, scopes: str = "publish", **body: Any) -> httpx.Response:
    return await world.once("app", scopes=scopes).post("/v1/unsubscribe-links", json=body)


async def link(world: EdgeWorld, user: str = "u1", category: str = "news") -> str:
    answer = await make(world, user=user, category=category)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["links"][0]["path"])


async def visit(world: EdgeWorld, method: str, path: str, **options: Any) -> httpx.Response:
    """As a browser or mail program that the engine knows nothing of."""
    async with httpx.AsyncClient(base_url=world.url(), trust_env=False, verify=False) as client:
        return await client.request(method, path, **options)


def choice(world: EdgeWorld, user: str = "u1", category: str = "news") -> int | None:
    profile = world.shard.profiles.get(f"default:{user}")
    return None if profile is None else profile.categories.get(category)


async def test_opening_a_link_changes_nothing_and_its_button_turns_the_category_off(world: EdgeWorld) -> None:
    path = await link(world)
    page = await visit(world, "GET", path)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "“Weekly &lt;news&gt;”" in page.text
    assert '<form method="post"><button>Unsubscribe</button></form>' in page.text
    for name, value in (("cache-control", "no-store"), ("referrer-policy", "no-referrer"), ("x-robots-tag", "noindex")):
        assert page.headers[name] == value
    assert (await visit(world, "HEAD", path)).status_code == 200
    assert world.shard.received == []
    done = await visit(world, "POST", path, data={})
    assert (done.status_code, choice(world)) == (200, OFF)
    assert "You get no more notifications" in done.text


async def test_a_user_with_as_many_choices_as_may_be_unsubscribes(world: EdgeWorld) -> None:
    entries_max = world.gateway.config.profile_entries_max
    world.shard.profiles["default:u1"] = Profile(categories={f"c{number}": OFF for number in range(entries_max)})
    assert (await visit(world, "POST", await link(world), data=ONE_CLICK)).status_code == 200
    assert choice(world) == OFF


async def test_a_mail_program_unsubscribes_by_one_click_and_a_repeat_is_not_written(world: EdgeWorld) -> None:
    path = await link(world)
    for options in ({"data": ONE_CLICK}, {"files": {"List-Unsubscribe": (None, "One-Click")}}, {"content": b""}, {"data": ONE_CLICK}):
        assert (await visit(world, "POST", path, **options)).status_code == 200
        assert choice(world) == OFF
    assert len(world.shard.of(wire.ChangeProfile)) == 1


async def test_a_body_beyond_that_of_a_form_is_rejected(world: EdgeWorld) -> None:
    path = await link(world)
    assert (await visit(world, "POST", path, content=b"x" * (FORM_BYTES_MAX + 1))).status_code == 413
    assert (await visit(world, "POST", path, content=b"x" * FORM_BYTES_MAX)).status_code == 200


async def test_undo_goes_back_to_what_was_chosen(world: EdgeWorld) -> None:
    world.shard.profiles["default:u1"] = Profile(level="vip", categories={"news": DIGEST})
    path = await link(world)
    done = await visit(world, "POST", path, data=ONE_CLICK)
    again = re.search(r'<input type="hidden" name="again" value="(\w+)"><', done.text)
    assert again is not None
    undone = await visit(world, "POST", path, data={"again": again[1]})
    assert "again" in undone.text
    assert world.shard.profiles["default:u1"] == Profile(level="vip", categories={"news": DIGEST})
    world.shard.profiles.clear()
    done = await visit(world, "POST", path, data={"again": "nonsense"})
    assert (choice(world), 'value="on"' in done.text) == (OFF, True)
    await visit(world, "POST", path, data={"again": "on"})
    assert choice(world) == ON


async def test_web_mail_of_another_site_may_open_and_post_a_link(world: EdgeWorld) -> None:
    path = await link(world)
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://mail.example"}, {"Origin": "null"}):
        assert (await visit(world, "GET", path, headers=headers)).status_code == 200
        assert (await visit(world, "POST", path, headers=headers, data=ONE_CLICK)).status_code == 200


async def test_a_link_is_for_one_user_and_category_and_no_token_passes_for_it_or_is_replaced_by_it(world: EdgeWorld) -> None:
    path = await link(world, "ann")
    token = parse_qs(urlsplit(path).query)["token"][0]
    head, payload, signature = token.split(".")
    other = (await link(world, "bob")).partition("token=")[2].split(".")
    key, soon = b"k" * 32, int(time.time()) + 60
    not_links = (
        "",
        "x",
        f"{head}.{other[1]}.{signature}",
        f"{head}.{payload}.{other[2]}",
        token[:-4],
        make_link_token(LinkClaims("default", "ann", "news", soon), b"x" * 32),
        make_link_token(LinkClaims("default", "ann", "news", soon - 61), key),
        mint(SECRET, "ann", ["connect"], 60, now_s=time.time()),
        mint("k" * 32, "ann", ["connect"], 60, now_s=time.time()),  # signed with the key of links, if ever somebody had it
        "a" * 5000 + ".b.c",
    )
    for text in not_links:
        for method in ("GET", "POST"):
            answer = await visit(world, method, f"/v1/unsubscribe?token={text}")
            assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8"), text
            assert len(text) < 20 or text[:20] not in answer.text
    assert world.shard.received == []
    for path_ in ("/v1/preferences", "/v1/inbox", "/v1/poll"):
        assert (await visit(world, "GET", f"{path_}?token={token}")).status_code == 401


async def test_links_are_made_for_many_users_and_only_of_categories_that_users_can_turn_off(world: EdgeWorld) -> None:
    answer = (await make(world, users=["ann", "团/b"], category="touch")).json()
    assert [one["user"] for one in answer["links"]] == ["ann", "团/b"]
    assert answer["expires_at"] > (time.time() + 4 * 365 * 86_400) * 1000
    await visit(world, "POST", answer["links"][1]["path"])
    assert choice(world, "团/b", "touch") == OFF
    assert (await make(world, scopes="connect", user="a", category="touch")).status_code == 403
    for body, path, words in (
        ({"user": "a", "category": "billing"}, "$.category", "billing"),
        ({"user": "a", "category": "other"}, "$.category", "defined are billing, news, touch"),
        ({"category": "news"}, "$", "exactly one"),
        ({"category": "news", "user": "a", "users": ["b"]}, "$", "exactly one"),
        ({"category": "news", "users": []}, "$.users", "1 to 1000"),
        ({"category": "news", "users": ["a", "\n"]}, "$.users[1]", "control"),
        ({"category": "news", "user": ""}, "$.user", "control"),
    ):
        refused = await make(world, **body)
        assert refused.status_code == 422
        (error,) = refused.json()["errors"]
        assert (error["path"], words in error["detail"]) == (path, True), error


async def test_a_category_that_cannot_be_turned_off_any_more_is_refused_and_one_that_is_gone_is_kept(world: EdgeWorld) -> None:
    soon = int(time.time()) + 60
    for category, status, kept in (("billing", 409, None), ("gone", 200, OFF)):
        path = f"/v1/unsubscribe?token={make_link_token(LinkClaims('default', 'u1', category, soon), b'k' * 32)}"
        assert (await visit(world, "GET", path)).status_code == status
        answer = await visit(world, "POST", path)
        assert (answer.status_code, category in answer.text, choice(world, category=category)) == (status, True, kept)


async def test_a_key_is_asked_of_storage_once_a_second_however_many_links_come() -> None:
    asked: list[int] = []
    now_ms = 5000

    async def ask() -> bytes:
        asked.append(now_ms)
        return b"key %d" % len(asked)

    key = RememberedKey(ask, lambda: now_ms)
    assert {await key() for _ in range(100)} == {b"key 1"}
    now_ms += 1000
    assert {await key() for _ in range(100)} == {b"key 2"}
    assert asked == [5000, 6000]


async def test_while_storage_is_away_the_page_asks_to_try_again(world: EdgeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsubscribing, "_KEY_MS", 0)
    path = await link(world)
    world.shard.profile_status = wire.UNAVAILABLE
    answer = await visit(world, "POST", path, headers={"Accept-Language": "zh-CN,zh;q=0.9"})
    assert (answer.status_code, "请稍后再试" in answer.text, "retry-after" in answer.headers) == (503, True, True)
    world.link_key_away = True
    assert (await visit(world, "GET", path)).status_code == 503
    assert (await visit(world, "POST", path)).status_code == 503
    assert (await make(world, user="a", category="news")).status_code == 503
