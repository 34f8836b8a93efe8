"""CloudEvents: one event is one item, whichever way it came and whatever its source and id hold."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from cloudevents.core.bindings.http import to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent as SdkEvent
from cloudevents.v1.conversion import to_binary as to_binary_v1
from cloudevents.v1.conversion import to_structured as to_structured_v1
from cloudevents.v1.http import CloudEvent as SdkEventV1
from hypothesis import given
from hypothesis import strategies as st

from engine.auth.tokens import Principal
from engine.config import Config
from engine.core.model.constants import HIGH, LOW, NORMAL
from engine.core.model.names import is_id
from engine.core.model.trace_context import trace_in
from engine.http.problems import Problem
from engine.publish.cloud_events import message_id
from engine.publish.drafts import Draft, parse_drafts
from engine.publish.media_types import Content, Form, least_priority
from tests.support.edge_world import EdgeWorld, edge_world
from tests.support.recursion_limit import recursion_limit_of_an_edge

CONFIG = Config()
NOW_MS = 1_700_000_000_000
EVENT = "application/cloudevents+json"
BINARY = {"ce-specversion": "1.0", "ce-id": "A-1", "ce-source": "/shop", "ce-type": "order.paid", "ce-subject": "ann"}


def content(headers: dict[str, str | bytes] | list[tuple[str, str | bytes]]) -> Content:
    pairs = headers.items() if isinstance(headers, dict) else headers
    return Content.of([(name.lower().encode(), value if isinstance(value, bytes) else value.encode("latin-1")) for name, value in pairs])


def publish(headers: Any, body: bytes = b"{}", config: Config = CONFIG) -> Draft:
    publisher = Principal("acme", "publisher", frozenset(("publish",)), 0)
    (draft,) = parse_drafts(body, content(headers), publisher, config, NOW_MS, lambda: "made")
    return draft


def refused(headers: Any, body: bytes = b"{}", config: Config = CONFIG) -> Problem:
    with pytest.raises(Problem) as caught:
        publish(headers, body, config)
    return caught.value


def path(problem: Problem) -> str:
    (error,) = problem.members["errors"]
    return str(error["path"])


def structured(headers: dict[str, str], **more: Any) -> bytes:
    return json.dumps({name[3:]: value for name, value in headers.items()} | more).encode()


# -- Identity. ---------------------------------------------------------------------------------------------------------
names = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1) | st.sampled_from(["1", ":", "1:a", "a", "aa", "a:a", "2:aa"])


@given(names, names, names, names)
def test_two_events_have_one_id_exactly_when_source_and_id_are_equal(source: str, id: str, other_source: str, other_id: str) -> None:
    same = (source, id) == (other_source, other_id)
    assert (message_id(source, id) == message_id(other_source, other_id)) is same


@given(names, names)
def test_whatever_source_and_id_hold_the_id_of_the_message_is_valid(source: str, id: str) -> None:
    assert is_id(message_id(source, id), CONFIG.id_chars_max)


def test_the_id_of_the_message_is_as_the_protocol_states() -> None:
    # `printf 5:/shopA-1 | sha256sum`. It is kept for 24 h and compared across upgrades.
    assert message_id("/shop", "A-1") == "ce:26a2cc25e6cec09db58ec9e44937c808"


def test_the_receiver_sees_source_and_id() -> None:
    assert b'"context":{"source":"/shop","id":"A-1"}' in publish(BINARY).envelope.body


# -- Binary mode. ------------------------------------------------------------------------------------------------------
def test_headers_are_attributes_and_the_body_is_the_data() -> None:
    extensions = {"ce-time": "2023-11-14T22:13:20Z", "ce-priority": "high", "ce-ttl": "0.5", "ce-retain": "false", "ce-delay": "2"}
    draft = publish({**BINARY, **extensions, "content-type": "application/json", "ce-traceparent": "00-ab"}, b' {"order": 17}\n')
    assert (draft.user, draft.idempotent, draft.envelope.id) == ("ann", True, message_id("/shop", "A-1"))
    assert (draft.ttl_ms, draft.envelope.retain, draft.due_ms) == (500, False, NOW_MS + 2000)
    body = json.loads(b"{%b}" % draft.envelope.body)
    assert {name: body[name] for name in ("type", "priority", "ts", "data")} == {
        "type": "order.paid",
        "priority": "high",
        "ts": NOW_MS,
        "data": {"order": 17},
    }


@pytest.mark.parametrize("at", [str(NOW_MS + 5000), "2023-11-14T22:13:25Z"])
def test_at_may_be_a_number_or_a_time(at: str) -> None:
    assert publish({**BINARY, "ce-at": at}).due_ms == NOW_MS + 5000


@given(st.fixed_dictionaries({"ce-id": names, "ce-source": names, "ce-subject": names.filter(lambda text: len(text) <= 128)}))
def test_the_same_event_in_either_mode_is_one_message(texts: dict[str, str]) -> None:
    attributes = BINARY | {name: text.replace("\u2028", "").replace("\u2029", "") or "x" for name, text in texts.items()}
    event = SdkEvent({name[3:]: value for name, value in attributes.items()} | {"time": datetime(2026, 1, 2, tzinfo=UTC)}, {"a": [1]})
    sent = to_binary(event, JSONFormat())
    in_binary = publish(sent.headers, sent.body)
    in_json = publish({"content-type": EVENT}, structured(attributes, time="2026-01-02T00:00:00Z", data={"a": [1]}))
    assert (in_binary.user, in_binary.envelope) == (in_json.user, in_json.envelope)


def test_the_extension_for_distributed_tracing_is_the_traceparent_of_the_message() -> None:
    traceparent = f"00-{'a' * 32}-{'b' * 16}-01"
    for draft in (
        publish({**BINARY, "ce-traceparent": traceparent}),
        publish({"content-type": EVENT}, structured(BINARY, traceparent=traceparent)),
    ):
        assert str(trace_in(draft.envelope.body)) == traceparent
    assert trace_in(publish({**BINARY, "ce-traceparent": "nonsense"}).envelope.body) is None


@pytest.mark.parametrize(
    ("value", "source"),
    [
        ("/a%20b", "/a b"),
        ("%E2%82%AC", "€"),
        ("100%25%2541", "100%%41"),
        ('"/a b"', "/a b"),
        (r'"say \"hi\" \\"', 'say "hi" \\'),
        ("€".encode(), "€"),
        ("5%", "5%"),
    ],
)
def test_a_header_is_unquoted_and_percent_decoded_once(value: str | bytes, source: str) -> None:
    assert publish({**BINARY, "ce-source": value}).envelope.id == message_id(source, "A-1")


@pytest.mark.parametrize(
    ("content_type", "body", "data"),
    [
        (None, b"[1]", [1]),
        ("application/json; charset=utf-8", b"null", None),
        ("application/vnd.shop.order+json", b'{"a":1}', {"a": 1}),
        ("text/plain", "5 €\n".encode(), "5 €\n"),
        ("text/xml; charset=UTF-8", b"<a/>", "<a/>"),
        ("application/json", b"", None),
        (None, b"", None),
    ],
)
def test_the_data_is_json_or_text(content_type: str | None, body: bytes, data: Any) -> None:
    headers = BINARY if content_type is None else {**BINARY, "content-type": content_type}
    assert json.loads(b"{%b}" % publish(headers, body).envelope.body)["data"] == data


@pytest.mark.parametrize("content_type", ["application/octet-stream", "application/x-ndjson", "text/plain; charset=latin-1"])
def test_data_of_another_media_type_is_415_with_those_that_are_accepted(content_type: str) -> None:
    problem = refused({**BINARY, "content-type": content_type}, b"x")
    assert problem.status == 415
    assert "json" in problem.headers["Accept"]


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b"\xff", 400), (b'1,"subject":"bob"', 400), (b"[" * 5000, 422)])
def test_a_body_that_is_no_json_is_refused(body: bytes, status: int) -> None:
    with recursion_limit_of_an_edge():
        assert refused(BINARY, body).status == status


@pytest.mark.parametrize("missing", BINARY)
def test_a_required_header_that_is_missing_is_named_and_nothing_is_published(missing: str) -> None:
    problem = refused({name: value for name, value in BINARY.items() if name != missing})
    assert (problem.status, path(problem)) == (422, missing)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"ce-specversion": "0.3"}, "ce-specversion"),
        ({"ce-id": ""}, "ce-id"),
        ({"ce-id": "a%0Ab"}, "ce-id"),
        ({"ce-id": "x" * 501}, "ce-id"),
        ({"ce-id": b"\xff"}, "ce-id"),
        ({"ce-id": "%FF"}, "ce-id"),
        ({"ce-source": ""}, "ce-source"),
        ({"ce-source": "x" * 501}, "ce-source"),
        ({"ce-source": "%00"}, "ce-source"),
        ({"ce-subject": "a%0D%0Ab"}, "ce-subject"),
        ({"ce-type": "a b"}, "ce-type"),
        ({"ce-time": "yesterday"}, "ce-time"),
        ({"ce-priority": "urgent"}, "ce-priority"),
        ({"ce-ttl": "-1"}, "ce-ttl"),
        ({"ce-delay": "nan"}, "ce-delay"),
        ({"ce-delay": "soon"}, "ce-delay"),
        ({"ce-retain": "maybe"}, "ce-retain"),
        ({"ce-url": "javascript:alert(1)"}, "ce-url"),
    ],
)
def test_what_is_wrong_is_told_by_the_name_of_its_header(change: dict[str, Any], where: str) -> None:
    problem = refused({**BINARY, **change})
    assert (problem.status, path(problem)) == (422, where)


def test_data_that_is_too_large_is_413() -> None:
    problem = refused(BINARY, b'"%b"' % (b"x" * 100), Config(data_bytes_max=100))
    assert (problem.status, path(problem)) == (413, "$")


def test_a_header_given_twice_is_refused() -> None:
    assert path(refused([*BINARY.items(), ("ce-id", "A-2")])) == "ce-id"


def test_attributes_cannot_take_the_place_of_the_data() -> None:
    draft = publish(
        {**BINARY, "ce-data": '"forged"', "ce-data_base64": "AAAA", "ce-users": "bob", "ce-datacontenttype": "text/plain"}, b"1"
    )
    assert draft.envelope.body.endswith(b'"data":1')


def test_a_body_that_says_it_holds_events_is_not_in_binary_mode() -> None:
    draft = publish({**BINARY, "content-type": f"{EVENT}; charset=utf-8"}, structured({**BINARY, "ce-id": "B"}))
    assert draft.envelope.id == message_id("/shop", "B")
    assert content({"content-type": "application/cloudevents-batch+json", **BINARY}).form is Form.EVENTS
    assert refused({**BINARY, "content-type": "application/cloudevents+avro"}).status == 415


def test_a_foreign_header_with_the_same_beginning_changes_nothing() -> None:
    assert publish({"ce-traceparent": "00-ab"}, b'{"user":"ann","type":"a.b","id":"k"}').envelope.id == "k"


@pytest.mark.parametrize(("value", "priority"), [("high", HIGH), ("low", LOW), ("normal", NORMAL), ("urgent", NORMAL), (None, NORMAL)])
def test_the_priority_is_found_without_parsing(value: str | None, priority: int) -> None:
    headers = BINARY if value is None else {**BINARY, "ce-priority": value}
    assert least_priority(b'{"priority":"low"}', content(headers)) == priority
    assert least_priority(b'{"priority":"low"}', content({**headers, "content-type": EVENT})) == LOW


# -- Over HTTP. --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("short", [True, False], ids=["fast path", "ASGI"])
async def test_an_event_of_the_sdk_is_idempotent_in_binary_and_structured_mode(short: bool) -> None:
    attributes: dict[str, Any] = {
        "id": "Ä 1:2",
        "source": "https://shop.example/a?b=%20",
        "type": "https://shop.example/types/order:paid/v1",
    }
    attributes |= {"subject": "zoë x", "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "priority": "high"}
    async with edge_world(short=short) as world, world.http("zoë x") as client:
        for sent in (
            to_binary(SdkEvent(attributes, {"order": 17}), JSONFormat()),
            to_binary(SdkEvent({**attributes, "datacontenttype": "application/json"}, {"order": 17}), JSONFormat()),
            to_structured(SdkEvent(attributes, {"order": 17}), JSONFormat()),
        ):
            answer = await client.post("/v1/notifications", content=sent.body, headers=sent.headers)
            assert answer.status_code == 202, answer.text
            (result,) = answer.json()["results"]
            assert (result["id"], result["user"], result["seq"]) == (message_id(attributes["source"], attributes["id"]), "zoë x", 1)
        sent = to_binary(SdkEvent({**attributes, "source": "/another"}, {"order": 17}), JSONFormat())
        assert (await client.post("/v1/notifications", content=sent.body, headers=sent.headers)).json()["results"][0]["seq"] == 2
        sent = to_binary(SdkEvent(attributes, {"order": 18}), JSONFormat())
        assert (await client.post("/v1/notifications", content=sent.body, headers=sent.headers)).status_code == 409
        (first, _) = (await client.get("/v1/poll?wait=0")).json()["messages"]
        assert first["data"] == {"order": 17}
        assert first["type"] == attributes["type"]
        assert first["context"] == {"source": attributes["source"], "id": attributes["id"]}


async def test_requests_of_the_older_sdk_are_understood_too() -> None:
    event = SdkEventV1({"id": "1", "source": "/s", "type": "a.b", "subject": "u1"}, {"n": 1})
    async with edge_world() as world, world.http() as client:
        for headers, body in (to_binary_v1(event), to_structured_v1(event)):
            answer = await client.post("/v1/notifications", content=body, headers=headers)
            assert [(one["id"], one["seq"]) for one in answer.json()["results"]] == [(message_id("/s", "1"), 1)]


async def test_what_would_become_of_an_event_is_explained_in_binary_mode_too(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/explain", content=b"{}", headers=BINARY)
    assert answer.json()["results"][0]["user"] == "ann"
    problem = (await client.post("/v1/explain", content=b"{}", headers={**BINARY, "ce-ttl": "0"})).json()
    assert re.match(r"ce-ttl: seconds", problem["detail"])
