"""Links of the description: followed from a real answer, each leads to what it names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from engine.config import Config
from engine.core.model.constants import HIGH
from engine.features.dead_letters.store import StoredLetter
from engine.http.description.links import add_links
from tests.support.described import described
from tests.support.edge_world import SECRET, FakeLetters, edge_world

DOCUMENT = described(Config(jwt_secret=SECRET), [])
METHODS = ("get", "post", "put", "patch", "delete")
DELAYED = {"user": "ann", "type": "reminder", "delay": 600}
ASKED = {"user": "ann", "type": "deploy.ask", "ask": {"answers": [{"id": "yes", "label": "Yes"}], "deadline": "30m"}}
ITEMS = {"{sid}": DELAYED, "messages/{message}": DELAYED, "{question}": ASKED, "answers/{message}": ASKED}
"""What is published for a link to a path that holds this."""

BODIES = {"reschedule": {"delay": 60}, "answer": {"answer": "yes"}}
LETTER = StoredLetter("1700000000001-0", "ann", 1, "m1", HIGH, "no renderer", 2, b'{"id":"m1","type":"t","data":1}')


def operations() -> dict[str, tuple[str, str, dict[str, Any]]]:
    return {
        item[method]["operationId"]: (method, path, item[method])
        for path, item in DOCUMENT["paths"].items()
        for method in METHODS
        if method in item
    }


def links() -> Iterator[tuple[str, str]]:
    """From which operation to which."""
    for name, (_, _, operation) in operations().items():
        for response in operation["responses"].values():
            yield from ((name, link) for link in response.get("links", ()))


def value_at(expression: str, body: Any) -> str:
    """What an expression of a link stands for."""
    assert expression.startswith("$response.body#/")
    for part in expression.removeprefix("$response.body#/").split("/"):
        body = body[int(part) if isinstance(body, list) else part]
    return str(body)


@pytest.mark.parametrize(("origin", "target"), sorted(links()))
async def test_a_link_leads_to_what_was_answered(origin: str, target: str) -> None:
    method, path, operation = operations()[origin]
    next_method, next_path, _ = operations()[target]
    item = next((item for name, item in ITEMS.items() if name in next_path), None)
    async with edge_world() as world, world.http(scopes="connect publish admin") as client:
        assert isinstance(world.dead_letters, FakeLetters)
        world.dead_letters.letters.append(LETTER)
        answer = await client.request(method, path, json=item)
        link = operation["responses"][str(answer.status_code)]["links"][target]
        query = {}
        for parameter, expression in link["parameters"].items():
            place, _, name = parameter.partition(".")
            value = value_at(expression, answer.json())
            if place == "path":
                next_path = next_path.replace(f"{{{name}}}", quote(value, safe=""))
            else:
                query[name] = value
        followed = await client.request(next_method, next_path, params=query, json=BODIES.get(target))
    assert followed.status_code == httpx.codes.OK, followed.text


def test_every_parameter_with_an_origin_is_linked() -> None:
    assert {target for _, target in links()} == {
        name for name, (_, path, _) in operations().items() if any(f"{{{one}}}" in path for one in ("sid", "message", "question", "letter"))
    }


def test_operations_of_a_feature_that_is_left_out_are_not_linked() -> None:
    paths = {
        "/v1/scheduled/{sid}": {"parameters": [{"name": "sid", "in": "path"}], "get": {"operationId": "inspectScheduled", "responses": {}}}
    }
    add_links(paths)
    assert paths["/v1/scheduled/{sid}"]["get"] == {"operationId": "inspectScheduled", "responses": {}}
