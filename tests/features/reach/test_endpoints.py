"""`/v1/users/{user}/channels`: who may, what is refused, and that an erasure and an export have it."""

from __future__ import annotations

import hashlib
from typing import Any

import httpx
import pytest

from engine.core.wire import records as wire
from tests.support.edge_world import EdgeWorld, edge_world

PATH = "/v1/users/ann/channels"


async def call(world: EdgeWorld, method: str, body: Any = None, *, by: str = "app", scopes: str = "publish") -> httpx.Response:
    return await world.once(by, scopes=scopes).request(method, PATH, json=body)


async def test_addresses_are_set_read_and_replaced(world: EdgeWorld) -> None:
    assert (await call(world, "GET")).json() == {}
    for given in ({"email": "ann@example.org"}, {"email": "ann@example.net"}, {}):
        answer = await call(world, "PUT", given)
        assert (answer.status_code, answer.json()) == (200, given)
        assert (await call(world, "GET", by="ann", scopes="connect")).json() == given


@pytest.mark.parametrize(("by", "scopes"), [("ann", "connect"), ("app", "connect"), ("app", "metrics")])
async def test_only_publishers_and_admins_set_addresses(world: EdgeWorld, by: str, scopes: str) -> None:
    assert (await call(world, "PUT", {"email": "ann@example.org"}, by=by, scopes=scopes)).status_code == 403
    assert world.addresses.kept == {}


async def test_a_user_reads_no_addresses_of_another(world: EdgeWorld) -> None:
    assert (await call(world, "GET", by="bob", scopes="connect")).status_code == 403


@pytest.mark.parametrize("body", [{"email": "ann"}, {"email": "a@b.c\r\nBcc: d@e.f"}, {"mail": "ann@example.org"}, {"email": 1}])
async def test_a_bad_address_is_named_and_nothing_is_kept(world: EdgeWorld, body: Any) -> None:
    answer = await call(world, "PUT", body)
    assert answer.status_code == 422, answer.text
    assert "mail" in answer.json()["errors"][0]["path"]
    assert world.addresses.kept == {}


async def test_storage_that_is_away_is_503(world: EdgeWorld) -> None:
    world.addresses.away = True
    assert [(await call(world, method, {})).status_code for method in ("GET", "PUT")] == [503, 503]


async def test_an_erasure_forgets_them_and_an_export_has_them(world: EdgeWorld) -> None:
    await call(world, "PUT", {"email": "ann@example.org"})
    async with world.http("app", scopes="admin") as client:
        export = await client.get("/v1/users/ann/export")
        assert export.json()["channels"] == [{"email": "ann@example.org"}]
        world.addresses.away = True
        assert (await client.delete("/v1/users/ann")).status_code == 503
        assert world.shard.of(wire.Erase) == [], "the shard is asked last"
        world.addresses.away = False
        assert (await client.delete("/v1/users/ann")).status_code == 204
    assert world.addresses.kept == {}


async def test_urls_of_services_are_taken_as_the_operator_allows_them() -> None:
    async with edge_world(apprise_urls=("json://hooks.example.com/",)) as world:
        given = {"apprise": ["json://hooks.example.com/ann"]}
        assert (await call(world, "PUT", given)).json() == given
        for number, url in enumerate(("json://10.0.0.1/x", "slack://T/A/B", "json://hooks.example.com/\n")):
            answer = await call(world, "PUT", {"apprise": [given["apprise"][0], url]})
            assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "$.apprise[1]"), number
        assert (await call(world, "GET")).json() == given, "nothing of a refused request is kept"


BROWSER = {
    "endpoint": "https://fcm.googleapis.com/fcm/send/abc:def",
    "expirationTime": None,
    "keys": {
        "p256dh": "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
        "auth": "BTBZMqHH6r4Tts7J_aSIgg",
    },
}
KEPT = {name: value for name, value in BROWSER.items() if value is not None}


async def test_a_user_adds_and_removes_browsers_of_its_own(world: EdgeWorld) -> None:
    async with world.http("ann") as ann, world.http("bob") as bob:
        key = (await ann.get("/v1/channels/push")).json()["key"]
        assert (len(key), (await bob.get("/v1/channels/push")).json()["key"]) == (87, key), "one of the engine"
        for _ in range(2):
            assert (await ann.put("/v1/channels/push", json=BROWSER)).status_code == 204
        assert (await ann.get(PATH)).json() == {"push": [KEPT]}
        id = hashlib.sha256(str(BROWSER["endpoint"]).encode()).hexdigest()[:32]
        assert (await bob.delete(f"/v1/channels/push/{id}")).status_code == 204
        assert (await ann.get(PATH)).json() == {"push": [KEPT]}, "it is no browser of bob's"
        for _ in range(2):
            assert (await ann.delete(f"/v1/channels/push/{id}")).status_code == 204
        assert (await ann.get(PATH)).json() == {}


async def test_other_addresses_are_replaced_and_the_browsers_stay(world: EdgeWorld) -> None:
    await call(world, "PUT", {"push": [BROWSER]})
    assert (await call(world, "PUT", {"email": "ann@example.org"})).json() == {"email": "ann@example.org", "push": [KEPT]}
    assert (await call(world, "PUT", {"push": []})).json() == {}


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"endpoint": "https://10.0.0.1/a"}, "$.endpoint"),
        ({"keys": {"p256dh": "B" + "A" * 86, "auth": "BTBZMqHH6r4Tts7J_aSIgg"}}, "$.keys.p256dh"),
        ({"keys": {}}, "$.keys"),
        ({"url": "x"}, "$"),
    ],
)
async def test_a_bad_browser_is_named_and_nothing_is_kept(world: EdgeWorld, change: Any, path: str) -> None:
    answer = await world.once("ann").put("/v1/channels/push", json=BROWSER | change)
    assert (answer.status_code, answer.json()["errors"][0]["path"].startswith(path)) == (422, True), answer.text
    assert world.addresses.kept == {}
    assert (await call(world, "PUT", {"push": [BROWSER | change]})).status_code == 422


async def test_without_a_token_and_without_storage_no_browser_is_added(world: EdgeWorld) -> None:
    assert (await world.once("ann").get("/v1/channels/push", headers={"Authorization": ""})).status_code == 401
    world.addresses.away = True
    assert (await world.once("ann").put("/v1/channels/push", json=BROWSER)).status_code == 503
