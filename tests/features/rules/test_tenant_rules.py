"""`/v1/tenant-rules`: each tenant's admin changes the rules of its own tenant, within the operator's limits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from engine.config import Config
from engine.core.model.category import DAY_MS
from engine.core.wire import records as wire
from engine.features.rules.core.own_rules import OwnLimits, joined, parse_own, within
from engine.features.rules.core.toml_loader import parse_rules
from engine.features.rules.core.versions import VersionState
from engine.features.rules.rules_store import RulesStore, StoredState, stamps_of_tenants
from tests.support.edge_world import EdgeWorld, edge_world

ANY = {"If-Match": "*"}
PATH = "/v1/tenant-rules"
EVENTS = count()
CATEGORY = '[category.shop]\ncap = 5\ntitle = "Shop"\n'
ALLOWED: dict[str, Any] = {"tenant_rules_max": 3, "tenant_hosts": ("*.acme.example",), "webhook_hosts": ("*.acme.example", "h.example")}
ALLOWED |= {"webhook_secret": "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz", "smtp_url": "smtp://m", "mail_from": "a@b.c"}


def rules_of(title: str, name: str = "like", event: str = "post.liked", more: str = 'category = "shop"') -> str:
    return f'{CATEGORY}[[rule]]\nname = "{name}"\nevent = "{event}"\nrecipients = ["user"]\ntype = "t"\ntitle = "{title}"\n{more}\n'


@asynccontextmanager
async def tenants(**settings: Any) -> AsyncIterator[tuple[EdgeWorld, httpx.AsyncClient, httpx.AsyncClient]]:
    """An edge, and the admins of two tenants, who publish as well."""
    async with (
        edge_world(**ALLOWED | settings) as world,
        world.http("ann", tenant="acme", scopes="admin publish connect") as acme,
        world.http("zoe", tenant="zebra", scopes="admin publish connect") as zebra,
    ):
        yield world, acme, zebra


async def put(client: httpx.AsyncClient, text: str, path: str = PATH, **query: Any) -> dict[str, Any]:
    answer = await client.put(path, content=text, headers=ANY, params=query)
    assert answer.status_code == 200, answer.text
    stored: dict[str, Any] = answer.json()
    return stored


async def titles(world: EdgeWorld, client: httpx.AsyncClient, user: str = "u1") -> list[str]:
    """What an event of the tenant makes."""
    before = len(world.shard.of(wire.Post))
    answer = await client.post("/v1/events", json={"type": "post.liked", "user": user, "id": f"e{next(EVENTS)}"})
    assert answer.status_code == 202, answer.text
    bodies = [post.envelope.body.decode() for post in world.shard.of(wire.Post)[before:]]
    return [body.partition('"title":"')[2].partition('"')[0] for body in bodies]


async def test_the_rules_of_a_tenant_are_for_its_events_alone() -> None:
    async with tenants() as (world, acme, zebra):
        await put(acme, rules_of("of acme"))
        await put(zebra, rules_of("of zebra"))
        assert (await titles(world, acme), await titles(world, zebra)) == (["of acme"], ["of zebra"])
        async with world.http("u", tenant="third", scopes="publish") as third:
            assert await titles(world, third) == []
        assert (await acme.get(f"{PATH}/versions/1")).text == rules_of("of acme")
        shown = (await acme.get(PATH)).json()
        assert ([rule["name"] for rule in shown["rules"]], shown["versions"][0]["by"]) == (["own/like"], "ann")


async def test_an_admin_reaches_the_rules_of_no_other_tenant_and_an_operator_those_of_all() -> None:
    async with tenants() as (world, acme, zebra):
        await put(acme, rules_of("of acme"))
        for method, path in (("GET", ""), ("PUT", ""), ("GET", "/versions/1"), ("POST", "/rollback"), ("POST", "/dry-run")):
            answer = await zebra.request(method, f"{PATH}{path}", params={"tenant": "acme"}, headers=ANY)
            assert answer.status_code == 403, (method, path)
        assert (await zebra.get(f"{PATH}/versions/1")).status_code == 404
        assert (await acme.put("/v1/rules", content=rules_of("x"), headers=ANY)).status_code == 403, "the operator's"
        assert (await world.once("op", scopes="operator").get(f"{PATH}/versions/1", params={"tenant": "acme"})).text == rules_of("of acme")
        assert (await world.once("app", tenant="acme", scopes="publish").get(PATH)).status_code == 403


async def test_the_operators_rules_come_first() -> None:
    async with tenants() as (world, acme, _):
        async with world.http("op", scopes="operator") as operator:
            await put(operator, rules_of("the operator's"), "/v1/rules")
        await put(acme, rules_of("again") + rules_of("other", name="other", event="*").removeprefix(CATEGORY))
        assert await titles(world, acme) == ["the operator's"]
        await put(acme, rules_of("first"), share=0.5)
        assert [await titles(world, acme, f"u{n}") for n in range(8)] == [["the operator's"]] * 8


async def test_categories_of_a_tenant_are_offered_to_its_users_and_the_operators_hold() -> None:
    async with tenants() as (world, acme, zebra):
        await put(acme, rules_of("x"))
        shop = (await acme.get("/v1/preferences")).json()["available"]["shop"]
        assert shop["title"] == "Shop"
        assert "shop" not in (await zebra.get("/v1/preferences")).json()["available"]
        item = {"user": "u1", "type": "t", "category": "shop"}
        assert (await acme.post("/v1/notifications", json=item)).status_code == 202
        assert (await zebra.post("/v1/notifications", json=item)).status_code == 422
        async with world.http("op", scopes="operator") as operator:
            await put(operator, '[category.shop]\ncap = 1\ntitle = "The operator\'s"\n', "/v1/rules")
        assert (await acme.get("/v1/preferences")).json()["available"]["shop"]["title"] == "The operator's"


def test_a_category_of_both_knows_the_last_step_of_the_tenants_rules() -> None:
    """Its messages are remembered until then."""
    operator = parse_rules('[category.shop]\nsteps = [{ channel = "email", after = "1h" }]\n[category.plain]\n', "r")
    rule = rules_of("x", more='category = "shop"\nsteps = [{ channel = "email", after = "5d" }]')
    own = parse_own(rule, "own", "acme", OwnLimits(3, ("email",), (), 0))
    categories = within(own, joined(operator, own, "acme")).categories
    assert (categories["shop"].steps_ms, categories["plain"].steps_ms) == (5 * DAY_MS, 0)
    assert joined(operator, parse_own(CATEGORY, "own", "acme", OwnLimits(3, (), (), 0)), "acme").categories == operator.categories


async def test_a_tenant_stages_tries_and_rolls_back() -> None:
    async with tenants() as (world, acme, zebra):
        await put(acme, rules_of("one"))
        await titles(world, acme)
        await titles(world, zebra)
        tried = (await acme.post(f"{PATH}/dry-run", content=rules_of("two"))).json()
        assert (tried["events"], len(tried["differences"])) == (1, 1), "of its own events alone"
        assert tried["differences"][0]["event"]["tenant"] == "acme"
        await put(acme, rules_of("two"), share=0)
        assert await titles(world, acme) == ["one"]
        staged = await acme.post(f"{PATH}/stage", json={"version": 2, "share": 1}, headers=ANY)
        assert staged.json()["active"] == 2
        assert await titles(world, acme) == ["two"]
        assert (await acme.post(f"{PATH}/rollback", headers=ANY)).json()["active"] == 1
        assert await titles(world, acme) == ["one"]
        assert (await acme.put(PATH, content=rules_of("three"), headers={"If-Match": '"9-x"'})).status_code == 412


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("[total]\ncap = 5\n" + CATEGORY, "total"),
        ('[inbox]\n"a.b" = "1d"\n' + CATEGORY, "inbox"),
        (CATEGORY + '[default_category]\nzebra = "shop"\n', "default_category.zebra"),
        ("".join(rules_of("x", name=f"r{n}").removeprefix(CATEGORY if n else "") for n in range(4)), "rule"),
        ("[category.shop]\nmandatory = true\n", "category.shop.mandatory"),
        ("[category.shop]\n", "category.shop.cap"),
        ('[category.shop]\ncap = 21\nper = "1d"\n', "category.shop.cap"),
        ('[category.shop]\ncap = 5\nper = "1h"\n', "category.shop.cap"),
        (CATEGORY + 'steps = [{ channel = "apprise" }]\n', "category.shop.steps[0].channel"),
        (CATEGORY + 'steps = [{ channel = "email", mandatory = true }]\n', "category.shop.steps[0].mandatory"),
        (rules_of("x", more='category = "shop"\nsteps = [{ channel = "apprise" }]'), "rule[0].steps[0].channel"),
        (rules_of("x", more=""), "rule[0].category"),
        (rules_of("x", more='do = "ray://shop/carts.touch"'), "rule[0].do"),
        (rules_of("x", more='do = "https://h.example/"'), "rule[0].do"),
        (rules_of("x", more='category = "shop"\ninactive = "1d"'), "rule[0].inactive"),
        (rules_of("x", more='category = "shop"\nfire = { unless_active = true }'), "rule[0].fire"),
        (rules_of("x", more='category = "shop"\nfire = { while_member = "team" }'), "rule[0].fire"),
        (rules_of("x", more='category = "shop"\ntemplate = { body = "{{ 1 }}" }'), "rule[0].template"),
        (rules_of("x", more='category = "shop"\nrollout = { tenants = ["zebra"] }'), "rule[0].rollout.tenants"),
    ],
)
async def test_what_the_operator_does_not_allow_is_refused_by_its_place(text: str, path: str) -> None:
    async with tenants() as (world, acme, _):
        answer = await acme.put(PATH, content=text, headers=ANY)
        assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, path), answer.text
        assert world.tenant_store("acme").stored.stamp == "", "nothing is stored"


async def test_what_is_allowed_is_taken() -> None:
    async with tenants() as (_, acme, _zebra):
        await put(acme, CATEGORY + 'steps = [{ channel = "email", after = "1h", unless = "read" }]\n[default_category]\nacme = "shop"\n')
        await put(acme, rules_of("x", more='do = "https://hooks.acme.example/"'))


async def test_without_the_setting_tenants_have_no_rules_and_those_of_before_rest() -> None:
    async with tenants(tenant_rules_max=0) as (world, acme, _):
        answer = await acme.put(PATH, content=rules_of("x"), headers=ANY)
        assert (answer.status_code, "tenant_rules_max" in answer.json()["detail"]) == (404, True)
        await world.tenant_rules.catch_up()
        assert await titles(world, acme) == []


async def test_other_edges_follow_and_a_tenant_whose_rules_are_broken_stands_alone() -> None:
    async with tenants(rules_poll_ms=5) as (world, acme, zebra):
        for client in (acme, zebra):
            await put(client, rules_of("one"))
        stored = world.tenant_store("acme").stored
        world.tenant_store("acme").kept[1] = "nonsense ="
        await put(zebra, rules_of("two"))
        world.tenant_store("acme").stored = StoredState("9-y", stored.state)
        world.rules.rule_book.own.clear()
        fresh = type(world.tenant_rules)(world.config, world.rules, world.tenant_store, world.tenant_stamps)
        await fresh.catch_up()
        assert await titles(world, zebra) == ["two"]
        refused = await acme.post("/v1/events", json={"type": "post.liked", "user": "u1"})
        assert refused.status_code == 503
        assert world.rules.rule_book.reason() == "", "the edge is not degraded by it"


async def test_versions_of_tenants_are_apart_in_storage(redis_client: Redis) -> None:
    operator, acme, zebra = (RulesStore(redis_client, Config(), tenant) for tenant in ("", "acme", "zebra"))
    for store in (operator, acme):
        assert await store.change(StoredState(), VersionState(last=1), (store is acme and "acme") or "operator") is not None
    assert (await acme.texts([1]), await operator.texts([1]), await zebra.texts([1])) == ({1: "acme"}, {1: "operator"}, {})
    assert (await zebra.read()).stamp == ""
    assert await stamps_of_tenants(redis_client) == {"acme": await acme.stamp()}
