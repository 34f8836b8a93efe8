"""The conformance cases of CloudEvents (https://github.com/cloudevents/conformance), posted to an edge and received by a client.

Each request also has the `subject` that names the user, which the engine needs and the cases leave out.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.edge_world import EdgeWorld, frame_of

BINARY = {
    "ce-specversion": "1.0",
    "ce-type": "com.example.someevent",
    "ce-time": "2018-04-05T03:56:24Z",
    "ce-id": "1234-1234-1234",
    "ce-source": "/mycontext/subcontext",
}
STRUCTURED = {name[3:]: value for name, value in BINARY.items()} | {"datacontenttype": "application/json"}
EXTENSIONS = {"comexampleextension1": "value", "comexampleextension2": '{"othervalue": 5}'}
MINIMUM = {"specversion": "1.0", "type": "io.cloudevents.minimum", "source": "//github.com/cloudevents/cloudeventsconformance/yaml/v1.yaml"}
HELLO = {"message": "Hello World!"}
SENT_MS = 1_522_900_584_000


async def posted(world: EdgeWorld, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
    """The answer's status, and the message that the user gets, or the problem."""
    answer = await world.once().post("/v1/notifications", headers=headers, content=body)
    if answer.status_code != 202:
        return answer.status_code, answer.json()
    async with world.connect("ann") as socket:
        return 202, (await frame_of(socket))["messages"][-1]


def as_json(value: Any) -> bytes:
    return json.dumps(value, indent=4).encode()


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8"])
async def test_a_binary_event_keeps_its_attributes_and_data(world: EdgeWorld, content_type: str) -> None:
    headers = BINARY | {"ce-subject": "ann", "content-type": content_type}
    status, message = await posted(world, headers, as_json(HELLO))
    assert status == 202
    assert (message["type"], message["ts"], message["data"]) == ("com.example.someevent", SENT_MS, HELLO)
    assert message["context"] == {"source": "/mycontext/subcontext", "id": "1234-1234-1234"}


@pytest.mark.parametrize("content_type", ["application/cloudevents+json", "application/cloudevents+json; charset=utf-8"])
async def test_a_structured_event_keeps_its_attributes_and_data(world: EdgeWorld, content_type: str) -> None:
    event = STRUCTURED | {"subject": "ann", "data": HELLO}
    status, message = await posted(world, {"content-type": content_type}, as_json(event))
    assert status == 202
    assert (message["type"], message["ts"], message["data"]) == ("com.example.someevent", SENT_MS, HELLO)
    assert message["context"] == {"source": "/mycontext/subcontext", "id": "1234-1234-1234"}


async def test_extensions_unknown_to_the_engine_are_ignored_in_both_modes(world: EdgeWorld) -> None:
    headers = BINARY | {"ce-subject": "ann", "content-type": "application/json"} | {f"ce-{name}": text for name, text in EXTENSIONS.items()}
    _, binary = await posted(world, headers, b'{"world":"hello"}')
    async with world.http() as client:
        event = STRUCTURED | EXTENSIONS | {"subject": "ann", "data": {"world": "hello"}}
        again = await client.post("/v1/notifications", headers={"content-type": "application/cloudevents+json"}, content=as_json(event))
    assert binary["data"] == {"world": "hello"}
    assert again.json()["results"][0]["status"] == "duplicate"


@pytest.mark.parametrize(
    ("content_type", "body", "data"),
    [
        ("text/plain; charset=us-ascii", "Hello, World!", "Hello, World!"),
        ("text/plain; charset=utf-8", "Hello, 🌎!", "Hello, 🌎!"),
        ("application/json; charset=utf-8", '"Hello, 🌎!"', "Hello, 🌎!"),
        ("application/json; charset=utf-8", '{"msg":"Hello, 🌎!"}', {"msg": "Hello, 🌎!"}),
        ("application/json; charset=utf-8", '["Hello","🌎!"]', ["Hello", "🌎!"]),
    ],
)
async def test_data_of_each_content_type_arrives_as_sent(world: EdgeWorld, content_type: str, body: str, data: Any) -> None:
    headers = {f"ce-{name}": text for name, text in MINIMUM.items()} | {"ce-id": "conformance", "ce-subject": "ann"}
    status, message = await posted(world, headers | {"content-type": content_type}, body.encode())
    assert (status, message["data"]) == (202, data)


async def test_data_in_xml_is_refused_by_its_content_type(world: EdgeWorld) -> None:
    headers = {f"ce-{name}": text for name, text in MINIMUM.items()} | {"ce-id": "conformance", "ce-subject": "ann"}
    status, _ = await posted(world, headers | {"content-type": "application/xml; charset=utf-8"}, "<msg>Hello, 🌎!</msg>".encode())
    assert status == 415
