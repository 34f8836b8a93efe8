"""The small bodies of `PATCH /v1/scheduled/{id}`, `POST /v1/ack` and `POST /v1/nack`: read, or refused with the path of what is wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.ack_and_patch import parse_ack, parse_nack, parse_patch
from engine.config import Config
from engine.core.model.constants import SEQ_MAX, TS_MS_MAX
from engine.http.problems import Problem, problem_response
from tests.support.json_values import json_values

NOW_MS = 1_700_000_000_000
CONFIG = Config()


@pytest.mark.parametrize(
    ("body", "due_ms"),
    [
        (b'{"delay":1.5}', NOW_MS + 1500),
        (b'{"delay":0}', NOW_MS),
        (b'{"at":1}', NOW_MS),
        (b'{"at":"2023-11-14T22:13:21Z"}', NOW_MS + 1000),
    ],
)
def test_a_patch_says_when(body: bytes, due_ms: int) -> None:
    assert parse_patch(body, CONFIG, NOW_MS) == due_ms


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{}", 422),
        (b'{"delay":1,"at":1}', 422),
        (b'{"delay":-1}', 422),
        (b'{"dealy":1}', 422),
        (b"[]", 422),
        (b'{"delay":1e999}', 422),
        (b"", 400),
        (b'{"at":"\xff"}', 400),
        (b'{"at":' + b"[" * 100_000, 422),
    ],
)
def test_a_patch_that_says_anything_else_is_a_problem(body: bytes, status: int) -> None:
    with pytest.raises(Problem) as caught:
        parse_patch(body, CONFIG, NOW_MS)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"seq":0}', (0, [], 0, "")),
        (b'{"seq":%d}' % SEQ_MAX, (SEQ_MAX, [], 0, "")),
        (b'{"ids":["a","b"],"ts":1}', (-1, ["a", "b"], 1, "")),
        (b'{"ids":[],"seq":3}', (3, [], 0, "")),
        (b'{"ids":["a"],"seq":3}', (3, ["a"], 0, "")),
        (b'{"seq":3,"epoch":"7"}', (3, [], 0, "7")),
    ],
)
def test_an_acknowledgement_has_a_sequence_number_or_ids(body: bytes, expected: tuple[int, list[str], int, str]) -> None:
    assert parse_ack(body, CONFIG) == expected


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b"{}", "$"),
        (b'{"ids":[]}', "$"),
        (b'{"seq":-1}', "$.seq"),
        (b'{"seq":%d}' % (SEQ_MAX + 1), "$.seq"),
        (b'{"seq":1,"ts":-1}', "$.ts"),
        (b'{"seq":1,"ts":%d}' % (TS_MS_MAX + 1), "$.ts"),
        (b'{"seq":1,"epoch":7}', "$.epoch"),
        (b'{"seq":1,"epoch":""}', "$.epoch"),
        (b'{"seq":1,"epoch":"%b"}' % (b"7" * 129), "$.epoch"),
        (b'{"seq":"1"}', "$.seq"),
        (b'{"seq":true}', "$.seq"),
        (b'{"ids":["a",""]}', "$.ids[1]"),
        (b'{"ids":["a",5]}', "$.ids[1]"),
        (b'{"ids":"a"}', "$.ids"),
        (b'{"ids":[%b]}' % b",".join([b'"a"'] * 1001), "$.ids"),
        (b'{"sqe":1}', "$.sqe"),
    ],
)
def test_an_acknowledgement_of_anything_else_is_a_problem(body: bytes, path: str) -> None:
    with pytest.raises(Problem) as caught:
        parse_ack(body, CONFIG)
    assert caught.value.status == 422
    assert caught.value.members["errors"][0]["path"] == path


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"ids":["a","b"],"reason":"no such post"}', (["a", "b"], "no such post")),
        (b'{"ids":["a"]}', (["a"], "")),
        (b'{"ids":["a"],"reason":"%b"}' % (b"x" * 1024), (["a"], "x" * 1024)),
    ],
)
def test_a_refusal_has_ids_and_may_have_a_reason(body: bytes, expected: tuple[list[str], str]) -> None:
    assert parse_nack(body, CONFIG) == expected


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b"{}", "$"),
        (b'{"ids":[]}', "$.ids"),
        (b'{"ids":["a",""]}', "$.ids[1]"),
        (b'{"ids":[%b]}' % b",".join([b'"a"'] * 1001), "$.ids"),
        (b'{"ids":["a"],"reason":5}', "$.reason"),
        (b'{"ids":["a"],"reason":"%b"}' % (b"x" * 1025), "$.reason"),
        (b'{"ids":["a"],"seq":1}', "$.seq"),
    ],
)
def test_a_problem_names_the_wrong_field_of_a_refusal(body: bytes, path: str) -> None:
    with pytest.raises(Problem) as caught:
        parse_nack(body, CONFIG)
    assert caught.value.status == 422
    assert caught.value.members["errors"][0]["path"] == path


@given(
    st.binary(max_size=200)
    | st.dictionaries(st.sampled_from(["seq", "epoch", "ids", "ts", "at", "delay", "reason"]), json_values).map(
        lambda v: json.dumps(v).encode()
    )
)
def test_arbitrary_small_bodies_are_read_or_a_problem(body: bytes) -> None:
    for read in (lambda: parse_patch(body, CONFIG, NOW_MS), lambda: parse_ack(body, CONFIG), lambda: parse_nack(body, CONFIG)):
        try:
            read()
        except Problem as problem:
            problem_response(problem)
