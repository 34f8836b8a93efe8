"""The description of the interface: valid, complete, and true."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest
from starlette.routing import Route, WebSocketRoute

from engine.auth.tokens import Principal
from engine.config import Config
from engine.core.model.message import object_bytes
from engine.core.wire.records import PUBLISH_STATUS, UNAVAILABLE
from engine.http import static_files
from engine.http.problems import Problem
from engine.publish.cloud_events import CloudEvent
from engine.publish.drafts import parse_drafts
from engine.publish.items import Item
from engine.publish.media_types import MEDIA_TYPES, Content
from engine.routes import app
from tests.support.described import described
from tests.support.edge_world import SECRET, EdgeWorld, edge_world, frame_of

CONFIG = Config(jwt_secret=SECRET)
CATEGORIES = ["touch"]
DOCUMENT = described(CONFIG, CATEGORIES)
METHODS = ("get", "post", "put", "patch", "delete")


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in DOCUMENT["paths"].items():
        for method in METHODS:
            if method in item:
                yield path, method, item[method]


def nodes(value: Any) -> Iterator[Any]:
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nodes(inner)


def valid(name: str, value: Any) -> bool:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


# -- Valid. ------------------------------------------------------------------------------------------------------------
def test_every_schema_is_a_json_schema() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_reference_leads_somewhere_and_every_component_is_used() -> None:
    references = [node["$ref"] for node in nodes(DOCUMENT) if isinstance(node, dict) and "$ref" in node]
    for reference in references:
        value: Any = DOCUMENT
        for part in reference.removeprefix("#/").split("/"):
            value = value[part]
    named = {f"#/components/{kind}/{name}" for kind in ("schemas", "responses") for name in DOCUMENT["components"][kind]}
    assert named == set(references)


def test_every_operation_is_whole() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(names) == len(set(names))
    tags = {tag["name"] for tag in DOCUMENT["tags"]}
    for path, method, operation in operations():
        assert operation["summary"]
        assert set(operation["tags"]) <= tags
        bodiless = operation["operationId"] in ("drainEdge", "rebalance", "upgrade", "confirmAddress", "endDigests")
        assert ("requestBody" in operation) == (
            (method in ("post", "patch") and not bodiless)
            or operation["operationId"] in ("setChannels", "setProfile", "storeRules", "storeRulesOfTenant", "addBrowser", "setOwnEmail")
        )
        for status, response in operation["responses"].items():
            assert re.fullmatch(r"[1-5]\d\d", status)
            assert "$ref" in response or response["description"]
        declared = [*DOCUMENT["paths"][path].get("parameters", ()), *operation.get("parameters", ())]
        assert {parameter["name"] for parameter in declared if parameter["in"] == "path"} == set(re.findall(r"{(\w+)}", path))
        assert all(parameter["required"] for parameter in declared if parameter["in"] == "path")


def test_the_document_is_json_and_names_its_version() -> None:
    described = json.loads(json.dumps(DOCUMENT))
    assert described["openapi"].startswith("3.1.")
    assert described["info"]["version"]


# -- Complete. ---------------------------------------------------------------------------------------------------------
async def test_every_route_and_method_is_described_and_everything_described_exists() -> None:
    async def nothing() -> dict[str, Any]:
        return {}

    application = app(EdgeWorld(CONFIG, 1).services(nothing, nothing))
    parts_of_the_page = {route.path for route in static_files.routes()} - {"/", "/admin", "/client.js"}
    served = set()
    for route in application.routes:
        if isinstance(route, WebSocketRoute):
            served.add((route.path, "get"))
        elif isinstance(route, Route) and route.path not in parts_of_the_page:
            served |= {(re.sub(":[a-z]+}", "}", route.path), method.lower()) for method in route.methods or () if method != "HEAD"}
    assert served == {(path, method) for path, method, _ in operations()}


def test_every_field_and_media_type_of_publishing_is_described() -> None:
    described = DOCUMENT["components"]["schemas"]
    assert set(described["Notification"]["properties"]) == set(Item.__struct_fields__)
    assert set(described["CloudEvent"]["properties"]) == set(CloudEvent.__struct_fields__)
    assert set(described["Result"]["properties"]["status"]["enum"]) == set(PUBLISH_STATUS)
    assert set(DOCUMENT["paths"]["/v1/notifications"]["post"]["requestBody"]["content"]) == set(MEDIA_TYPES)


# -- True. -------------------------------------------------------------------------------------------------------------
def accepted(item: object, content_type: str) -> bool:
    try:
        parse_drafts(
            json.dumps(item).encode(), Content(content_type), Principal("t", "u", frozenset(), 0), CONFIG, 1_700_000_000_000, lambda: "id"
        )
    except Problem:
        return False
    return True


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"user": ...},
        {"user": ""},
        {"user": ..., "users": ["a", "b"]},
        {"user": ..., "users": []},
        {"users": ["b"]},
        {"user": ..., "topic": "repo:a/b"},
        {"user": ..., "topic": "a b"},
        {"user": ..., "topic": "a.*"},
        {"topic": "x"},
        {"user": ..., "broadcast": True},
        {"user": ..., "broadcast": False},
        {"user": ..., "broadcast": True, "topic": "x"},
        {"type": "a..b"},
        {"type": "x" * 129},
        {"type": ...},
        {"id": ""},
        {"id": "k"},
        {"id": "timer:3-a"},
        {"id": "timers"},
        {"priority": "high"},
        {"priority": "urgent"},
        {"delay": 1.5},
        {"delay": -1},
        {"delay": "1"},
        {"delay": 1, "at": 1},
        {"at": 1},
        {"at": -1},
        {"ttl": 0},
        {"ttl": 0.5},
        {"ttl": 1e9},
        {"retain": None},
        {"collapse": {"key": "k"}},
        {"collapse": {"key": ""}},
        {"collapse": {"key": "k", "window": 5}},
        {"collapse": {"key": "k", "window": 0, "leading": False}},
        {"collapse": {"key": "k", "leading": True}},
        {"collapse": {"key": "k", "window": 0.5, "leading": True, "text": "{count} likes"}},
        {"collapse": {"key": "k", "window": 0, "text": "{count} likes"}},
        {"collapse": {"key": "k", "window": 86401}},
        {"collapse": {"window": 0}},
        {"collapse": {"key": "k", "more": 1}},
        {"retain": False},
        {"dealy": 1},
        {"ts": 1.5},
        {"data": None, "actor": [1], "target": "t", "context": {}},
        {"url": "https://example.com/orders/17?tab=1#top"},
        {"url": "/orders/17"},
        {"url": "HTTP://h"},
        {"url": ""},
        {"url": "orders"},
        {"url": "//evil.example/"},
        {"url": "https:///x"},
        {"url": "javascript:alert(1)"},
        {"url": "/a b"},
        {"url": "/\\evil.example"},
        {"url": "/" + "a" * 4095},
        {"url": "/" + "a" * 4096},
        {"image": "https://example.com/a.png"},
        {"image": "/a.png"},
        {"image": "data:image/png;base64,AAAA"},
        {"type": "https://example.com/order:paid"},
        {"category": "touch"},
        {"category": "nonsense"},
        {"user": ..., "broadcast": True, "category": "touch"},
        {"user": ..., "topic": "x", "collapse": {"key": "k"}},
        {"user": ..., "topic": "x", "unless_active": True},
        {"user": ..., "topic": "x", "unless_active": False},
        {"broadcast": False},
        {"ts": -1},
        {"ts": 253_402_300_799_999},
        {"ts": 253_402_300_800_000},
        {"at": "1969-12-31T00:00:00Z"},
        {"at": "1970-01-02T00:00:00Z"},
        {"user": "a\nb"},
    ],
)
def test_what_the_schema_allows_is_accepted_and_what_it_forbids_is_refused(change: dict[str, object]) -> None:
    item = {name: value for name, value in {"user": "u", "type": "a.b", **change}.items() if value is not ...}
    assert valid("Notification", item) is accepted(item, "application/json")


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"subject": ...},
        {"specversion": "2"},
        {"traceparent": "x"},
        {"ttl": -1},
        {"url": "/a"},
        {"url": "a"},
        {"image": "/a"},
        {"image": "a"},
        {"id": ...},
        {"id": "timer:3-a"},
        {"source": ...},
        {"source": ""},
        {"source": "x" * 500},
        {"source": "x" * 501},
        {"id": "x" * 501},
        {"id": "a\u0007"},
        {"delay": 1, "at": 5},
        {"time": "1969-12-31T00:00:00Z"},
        {"data_base64": "AAAA"},
    ],
)
def test_the_schema_of_cloud_events_says_what_is_accepted(change: dict[str, object]) -> None:
    base = {"specversion": "1.0", "id": "1", "source": "/s", "type": "a.b", "subject": "u"}
    event = {name: value for name, value in {**base, **change}.items() if value is not ...}
    assert valid("CloudEvent", event) is accepted(event, "application/cloudevents+json")


@pytest.mark.parametrize(
    ("schema", "path", "body", "good"),
    [
        ("Event", "/v1/events", {"type": "a.b", "user": "u"}, True),
        ("Event", "/v1/events", {"type": "a b", "user": "u"}, False),
        ("Event", "/v1/events", {"type": "a.b", "user": ""}, False),
        ("Event", "/v1/events", {"type": "a.b", "user": "u", "id": ""}, False),
        ("Event", "/v1/events", {"type": "a.b", "user": "u", "ts": -1}, False),
        ("Event", "/v1/events", {"type": "a.b", "user": "u", "more": 1}, False),
        ("Signal", "/v1/signals", {"name": "views"}, True),
        ("Signal", "/v1/signals", {"name": "views", "more": 1}, False),
        ("Signal", "/v1/signals", {"name": ""}, False),
        ("Acknowledgement", "/v1/ack", {"seq": 0, "ids": [], "ts": 0}, True),
        ("Acknowledgement", "/v1/ack", {"seq": 0, "epoch": "e7"}, True),
        ("Acknowledgement", "/v1/ack", {"seq": 0, "epoch": ""}, False),
        ("Acknowledgement", "/v1/ack", {"ids": []}, False),
        ("Acknowledgement", "/v1/ack", {"seq": 0, "ts": -1}, False),
        ("Acknowledgement", "/v1/ack", {"seq": 1 << 53}, False),
        ("InboxChoice", "/v1/inbox/read", {"upto": 1, "epoch": "e7"}, True),
        ("InboxChoice", "/v1/inbox/read", {"upto": 1, "epoch": ""}, False),
        ("InboxChoice", "/v1/inbox/read", {"epoch": "e7"}, False),
        ("Refusal", "/v1/nack", {"ids": ["m1"], "reason": "no such post"}, True),
        ("Refusal", "/v1/nack", {"ids": ["m1"]}, True),
        ("Refusal", "/v1/nack", {"ids": []}, False),
        ("Refusal", "/v1/nack", {"reason": "no such post"}, False),
        ("Refusal", "/v1/nack", {"ids": ["m1"], "reason": "x" * 1025}, False),
        ("Refusal", "/v1/nack", {"ids": ["m1"], "seq": 1}, False),
        ("Profile", "/v1/users/u/profile", {"mute": {"types": ["promo.*"]}, "quiet": [{"from": "22:00", "to": "07:00"}]}, True),
        ("Profile", "/v1/users/u/profile", {"mute": {"types": ["*"]}}, False),
        ("Profile", "/v1/users/u/profile", {"mute": {"types": ["a"] * 51}}, False),
        ("Profile", "/v1/users/u/profile", {"quiet": [{"from": "22:00", "to": "07:00", "more": 1}]}, False),
        ("Schedule", "/v1/scheduled/5-x", {"at": "1969-12-31T00:00:00Z"}, False),
        ("Schedule", "/v1/scheduled/5-x", {"delay": 1, "at": 1}, False),
    ],
)
async def test_a_body_is_accepted_exactly_where_its_schema_allows_it(schema: str, path: str, body: object, good: bool) -> None:
    method = {"Profile": "PUT", "Schedule": "PATCH"}.get(schema, "POST")
    async with edge_world() as world, world.http() as client:
        answer = await client.request(method, path, json=body)
    assert valid(schema, body) is good
    assert answer.status_code in ((200, 202) if good else (422,)), answer.text


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/v1/scheduled?user=", {}),
        ("DELETE", "/v1/scheduled?user=u&collapse=", {}),
        ("GET", "/v1/subscriptions?user=", {}),
        ("PUT", "/v1/subscriptions/a%0Ab", {}),
        ("DELETE", "/v1/subscriptions/a%20b", {}),
        ("GET", "/v1/signals?name=", {}),
        ("GET", "/v1/heartbeat", {"X-Last-Seq": str(1 << 53)}),
        ("GET", "/v1/heartbeat", {"X-Last-Seq": "-1"}),
        ("GET", "/v1/poll?wait=-1", {}),
    ],
)
async def test_a_parameter_that_its_schema_forbids_is_400(method: str, path: str, headers: dict[str, str]) -> None:
    async with edge_world() as world, world.http() as client:
        answer = await client.request(method, path, headers=headers)
    assert (answer.status_code, valid("Problem", answer.json())) == (400, True)


def test_a_message_is_as_described() -> None:
    body = b'{"user":"u","type":"a.b","actor":{"id":1},"data":[1]}'
    (draft,) = parse_drafts(body, Content(), Principal("t", "u", frozenset(), 0), CONFIG, 1_700_000_000_000, lambda: "id")
    assert valid("Message", json.loads(object_bytes("7", 3, 1, draft.envelope.body)))


async def test_the_answers_of_a_running_edge_are_as_described() -> None:
    async with edge_world() as world, world.http() as client, world.connect("u1") as socket:
        assert (await client.get("/openapi.json")).json() == described(world.config, CATEGORIES)
        anyone = await client.get("/openapi.json", headers={"authorization": ""})
        assert anyone.json() == described(world.config, ())
        assert not [name for name in CATEGORIES if f'"{name}"' in anyone.text], "categories are for those with a token"
        item = {"user": "u1", "type": "a.b"}

        answer = await client.post("/v1/notifications", json=[item, {**item, "delay": 60, "id": "later"}])
        assert answer.status_code == 202
        assert valid("PublishAnswer", answer.json())
        (message,) = (await frame_of(socket))["messages"]
        assert valid("Message", message)
        sid = answer.json()["results"][1]["scheduled_id"]
        for method, path, body, schema in (
            ("GET", "/v1/scheduled?user=u1", None, "ScheduledList"),
            ("GET", f"/v1/scheduled/{sid}", None, "Scheduled"),
            ("PATCH", f"/v1/scheduled/{sid}", {"delay": 90}, "Scheduled"),
            ("DELETE", f"/v1/scheduled/{sid}", None, "Cancelled"),
            ("GET", "/v1/poll?wait=0", None, "PollAnswer"),
            ("GET", "/v1/heartbeat", None, "Presence"),
            ("POST", "/v1/ack", {"seq": 1}, "Acknowledged"),
            ("POST", "/v1/nack", {"ids": ["m1"]}, "Refused"),
            ("GET", "/healthz", None, "Health"),
            ("GET", "/readyz", None, "Readiness"),
        ):
            answer = await client.request(method, path, json=body)
            assert answer.status_code == 200, (path, answer.text)
            assert valid(schema, answer.json()), (path, answer.text)
        world.gateway.storage.stores_away = [1]
        answer = await client.get("/readyz")
        assert (answer.json()["stores_away"], valid("Readiness", answer.json())) == ([1], True)
        world.status = {"version": "1", "shards": [], "edges": [], "schedulers": [], "totals": {}}
        assert valid("TenantStatus", (await client.get("/v1/status")).json())
        assert valid("Status", (await world.once(scopes="operator").get("/v1/status")).json())


async def test_the_scope_that_an_operation_names_suffices_and_is_needed() -> None:
    """But for WebSockets, which refuse a plain request first, and for reads of one's own, whatever the scope of the token."""
    own = {"/v1/users/{user}/profile", "/v1/users/{user}/channels", "/v1/users/{user}/messages/{message}"}
    names = {"user": "u1", "edge": "edge-9", "mark": "seen", "group": "g", "letter": "1-0", "message": "m", "sid": "0-none", "topic": "t"}
    names |= {"question": "q", "secret": "s", "id": "0" * 32}
    others = {"metrics": "connect", "publish": "connect metrics", "events": "connect publish operator metrics"}
    others |= {"admin": "connect publish events metrics", "operator": "connect publish admin events metrics"}
    wrong = []
    async with edge_world() as world:

        async def refused(method: str, path: str, scope: str) -> bool:
            url = path.format(**names, version=1)
            async with world.http(scopes=scope) as client, client.stream(method, url, params={"wait": 0}) as answer:
                return answer.status_code in {401, 403}

        for path, method, operation in operations():
            if "101" in operation["responses"] or (method == "get" and path in own):
                continue
            named = re.findall(r"Needs the scope `(\w+)`", operation.get("description", ""))
            other = others.get(named[0] if named else "", "metrics")
            if await refused(method, path, other) != bool(named) or (named and await refused(method, path, named[0])):
                wrong.append(f"{method} {path}: {named}")
    assert not wrong


async def test_the_problems_of_a_running_edge_are_as_described(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    world.ready = {"shard-0": False}
    requests = [
        client.post("/v1/notifications", content=b"{"),
        client.post("/v1/notifications", content=b"{}", headers={"content-type": "text/plain"}),
        client.post("/v1/notifications", json=[{"user": "u", "type": "a b"}]),
        client.get("/v1/scheduled/0-none"),
        client.get("/v1/poll", headers={"Authorization": "Bearer nonsense"}),
        client.get("/v1/poll?wait=x"),
        client.get("/readyz"),
        client.get("/nowhere"),
        client.put("/v1/ack"),
    ]
    answers = await asyncio.gather(*requests)
    world.shard.status = UNAVAILABLE
    answers.append(await client.post("/v1/notifications", json={"user": "u", "type": "a.b"}))
    assert [answer.status_code for answer in answers] == [400, 415, 422, 404, 401, 400, 503, 404, 405, 503]
    for answer in answers:
        assert answer.headers["content-type"] == "application/problem+json"
        assert valid("Problem", answer.json()), answer.text
