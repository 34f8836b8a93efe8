"""From the bytes of a request and its media type to items, with the place of every one that cannot be read."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from engine.config import Config
from engine.core.model.constants import HIGH, LOW, NORMAL, PRIORITIES
from engine.errors import Invalid
from engine.http.problems import Problem
from engine.publish import cloud_events
from engine.publish.items import Item
from engine.publish.media_types import DETAIL_CHARS_MAX, Content, Form, ParsedBody, form_of, least_priority, read, unacceptable
from tests.support.json_values import json_values

CONFIG = Config(items_max=5)
JSON = "application/json"
LINES = "application/x-ndjson"
EVENT = "application/cloudevents+json"
EVENTS = "application/cloudevents-batch+json"


def item(**fields: Any) -> dict[str, Any]:
    return {"user": "ann", "type": "post.liked", **fields}


def event(**attributes: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": "1", "source": "/s", "type": "a.b", "subject": "ann", **attributes}


def parsed(value: object, content_type: str = JSON) -> ParsedBody:
    return read(value if isinstance(value, bytes) else json.dumps(value).encode(), Content(content_type), CONFIG)


# -- Media types. ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "content_type",
    [None, JSON, "application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"', "application/json; charset=us-ascii; x=y"],
)
def test_json_is_accepted_however_it_is_announced(content_type: str | None) -> None:
    assert form_of(content_type) is Form.JSON


def test_lines_have_two_names_and_events_one_each() -> None:
    names = (LINES, "application/ndjson", EVENT, EVENTS, f"{EVENTS}; charset=utf8")
    assert [form_of(name) for name in names] == [Form.LINES, Form.LINES, Form.EVENT, Form.EVENTS, Form.EVENTS]


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1", "json", ";"]
)
def test_other_media_types_are_415_with_those_that_are_accepted(content_type: str) -> None:
    with pytest.raises(Problem) as caught:
        form_of(content_type)
    assert caught.value.status == 415
    assert caught.value.headers["Accept"] == ", ".join((JSON, LINES, EVENT, EVENTS))


# -- Items. ------------------------------------------------------------------------------------------------------------
@given(st.lists(json_values, min_size=1, max_size=5))
def test_an_array_and_lines_are_the_same_items_with_the_bytes_that_were_sent(values: list[Any]) -> None:
    texts = [json.dumps(value).encode() for value in values]
    items = [b'{"type":"t","user":"u","data":%b}' % text for text in texts]
    for body, content_type in ((b"[%b]" % b",".join(items), JSON), (b"\n".join(items), LINES)):
        found = parsed(body, content_type)
        assert (found.errors, found.batch) == ([], True)
        assert [bytes(one.data) for one in found.items if one is not None and one.data is not UNSET] == texts


def test_only_what_could_have_held_several_items_is_a_batch() -> None:
    bodies: list[tuple[object, str]] = [(item(), JSON), ([item()], JSON), (item(), LINES), (event(), EVENT), ([event()], EVENTS)]
    assert [parsed(body, content_type).batch for body, content_type in bodies] == [False, True, True, False, True]


def test_a_cloud_event_is_an_item_with_its_source_as_context() -> None:
    (found,) = parsed(event(time="2023-11-14T22:13:20Z", priority="low", data=[1]), EVENT).items
    assert found == Item(
        type="a.b",
        user="ann",
        id=cloud_events.message_id("/s", "1"),
        priority="low",
        context=msgspec.Raw(b'{"source":"/s","id":"1"}'),
        data=msgspec.Raw(b"[1]"),
        ts=1_700_000_000_000,
    )


@given(st.lists(st.booleans(), min_size=1, max_size=5), st.sampled_from([JSON, LINES, EVENTS]))
def test_every_item_that_cannot_be_read_has_an_error_in_its_place_and_the_others_are_read(good: list[bool], content_type: str) -> None:
    make = event if content_type == EVENTS else item
    texts = [json.dumps(make() if one else make(priority="urgent")).encode() for one in good]
    body = b"\n".join(texts) if content_type == LINES else b"[%b]" % b",".join(texts)
    found = parsed(body, content_type)
    bad = [index for index, one in enumerate(good) if not one]
    assert [one is not None for one in found.items] == good
    assert [(error["index"], error["path"]) for error in found.errors] == [
        (index, "$.priority" if content_type == LINES else f"$[{index}].priority") for index in bad
    ]
    assert all(error["detail"].endswith("; allowed are high, normal and low") for error in found.errors)


def test_an_error_is_reported_at_the_name_that_the_publisher_wrote() -> None:
    body = parsed(event(), EVENT)
    for path in ("$.user", "$.ts", "$.context", "$.data"):
        body.fault(0, Invalid("x" * 1000, path))
    assert [error["path"] for error in body.errors] == ["$.subject", "$.time", "$.source", "$.data"]
    assert {len(error["detail"]) for error in body.errors} == {DETAIL_CHARS_MAX}


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"", JSON, 400),
        (b"[1", JSON, 400),
        (b'{"user":"\xff"}', JSON, 400),
        (b"[]", JSON, 422),
        (b"\n \n", LINES, 422),
        (b"[" * 100_000, JSON, 422),
        (json.dumps([item()] * 6).encode(), JSON, 413),
        (b"5\n" * 6, LINES, 413),
        (b"[5,5,5,5,5,5]", JSON, 413),
    ],
)
def test_a_body_that_cannot_be_taken_apart_is_one_problem(body: bytes, content_type: str, status: int) -> None:
    with pytest.raises(Problem) as caught:
        parsed(body, content_type)
    assert caught.value.status == status


def test_the_problem_of_one_error_has_its_path_twice_and_a_bounded_detail() -> None:
    problem = unacceptable(Invalid("x" * 1000, "$.a"))
    assert problem.status == 422
    assert problem.detail.startswith("$.a: xxx")
    assert len(problem.detail) == DETAIL_CHARS_MAX
    assert problem.members["errors"] == [{"path": "$.a", "detail": "x" * DETAIL_CHARS_MAX}]


# -- Priority without parsing. -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("body", "content_type", "priority"),
    [
        ([item()], JSON, NORMAL),
        (item(priority="high"), JSON, HIGH),
        ([item(priority="high"), item(priority="high")], JSON, HIGH),
        ([item(priority="high"), item()], JSON, NORMAL),
        ([item(priority="high"), item(priority="low")], JSON, LOW),
        (item(data={"priority": "low", "x": "high"}), JSON, NORMAL),
        ('{"priority":"high"}\n{"priority":"low"}\n', LINES, LOW),
        ('{"priority":"high"}\n{"priority":"high"}', LINES, HIGH),
        ("[{'low'", JSON, NORMAL),
        ('["low"]', JSON, NORMAL),
        ('{"priority":"low"}', "text/plain", NORMAL),
        ([], JSON, NORMAL),
        ({"specversion": "1.0", "id": "1", "source": "s", "type": "x", "subject": "u", "priority": "low"}, EVENT, LOW),
    ],
)
def test_the_least_important_item_is_found_without_parsing(body: object, content_type: str, priority: int) -> None:
    text = body if isinstance(body, str) else json.dumps(body)
    assert least_priority(text.encode(), Content(content_type)) == priority


@given(st.lists(st.sampled_from(["high", "normal", "low", None]), min_size=1, max_size=5), st.sampled_from([JSON, LINES]))
def test_the_least_priority_is_that_of_the_parsed_items(words: list[str | None], content_type: str) -> None:
    items = [item() if word is None else item(priority=word) for word in words]
    body = "\n".join(map(json.dumps, items)) if content_type == LINES else json.dumps(items)
    assert least_priority(body.encode(), Content(content_type)) == max(PRIORITIES.index(word or "normal") for word in words)
