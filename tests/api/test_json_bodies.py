from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.api.json_bodies import decode_body
from engine.http.problems import Problem
from tests.support.recursion_limit import recursion_limit_of_an_edge


class Shape(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    size: int = 0
    more: Any = None


DECODER = msgspec.json.Decoder(Shape)


def test_a_body_of_the_shape_is_read() -> None:
    assert decode_body(DECODER, b'{"name":"a","size":2}', Shape) == Shape("a", 2)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "JSON is malformed"),
        (b'{"name":', 400, "JSON is malformed"),
        (b'{"name":"\xff"}', 400, "UTF-8"),
        (b'{"nmae":"a"}', 422, "unknown field `nmae`; allowed are name, size, more"),
        (b'{"name":"a","size":"2"}', 422, "$.size"),
        (b"{}", 422, "name"),
        (b'{"name":"a","more":%b}' % (b"[" * 5000 + b"]" * 5000), 422, "nested too deeply"),
    ],
)
def test_any_other_body_is_a_problem_that_says_what_is_wrong(body: bytes, status: int, words: str) -> None:
    with recursion_limit_of_an_edge(), pytest.raises(Problem) as caught:
        decode_body(DECODER, body, Shape)
    assert caught.value.status == status
    assert words in str(caught.value)
