"""What an answer to a publish request means."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.client.http_connection import Response
from engine.client.publish_results import ItemError, PublishError, Result, problem_of, raise_rejection, rejection_of, results_of
from engine.errors import ClientError, Forbidden, Refused, TooManyConnections, Unauthorized, Unreachable


def answer(status: int, body: Any) -> Response:
    return Response(status, {}, body if isinstance(body, bytes) else json.dumps(body).encode())


def rejection(ids: list[str], status: int, body: Any) -> PublishError:
    with pytest.raises(PublishError) as caught:
        raise_rejection(ids, answer(status, body))
    return caught.value


def test_results_are_read_and_unknown_members_ignored() -> None:
    body = {"accepted": 1, "results": [{"id": "a", "user": "u", "status": "accepted", "seq": 3, "later": 1}]}
    assert results_of(answer(202, body)) == [Result(id="a", user="u", status="accepted", seq=3)]


@pytest.mark.parametrize("body", [b"", b"<html>", {}, {"results": [{"id": 5}]}, b'{"results":[{"id":"\xff"}]}'])
def test_a_202_of_something_else_is_refused(body: Any) -> None:
    with pytest.raises(Refused):
        results_of(answer(202, body))


@pytest.mark.parametrize(
    ("status", "final"),
    [("accepted", True), ("scheduled", True), ("merged", True), ("duplicate", True), ("suppressed", True), ("conflict", False),
     ("unavailable", False), ("overloaded", False)],
)  # fmt: skip
def test_a_result_is_final_when_the_item_was_handled(status: str, final: bool) -> None:
    assert Result(id="a", status=status).final is final


def test_the_text_of_an_answer_that_is_no_problem_is_its_detail() -> None:
    assert problem_of(answer(502, b"Bad gateway\n")).detail == "Bad gateway"
    assert problem_of(answer(502, b'{"detail":"\xfcber"}')).detail == '{"detail":"\N{REPLACEMENT CHARACTER}ber"}'
    assert problem_of(answer(502, b'{"errors":' + b"[" * 5000)).detail.startswith('{"errors":[')
    assert problem_of(answer(502, b"\xff" * 1000)).detail == "\N{REPLACEMENT CHARACTER}" * 200


@pytest.mark.parametrize(("status", "kind"), [(401, Unauthorized), (403, Forbidden), (404, Refused), (405, Refused)])
def test_a_request_that_is_rejected_as_a_whole_raises_by_its_status(status: int, kind: type[Refused]) -> None:
    error = rejection_of(answer(status, {"detail": "why"}))
    assert (type(error), str(error), error.status) == (kind, f"why ({status})", status)
    with pytest.raises(kind, match="why"):
        raise_rejection(["a"], answer(status, {"detail": "why"}))
    assert "no reason" in str(rejection_of(answer(status, {})))


def test_errors_name_their_items_by_index() -> None:
    errors = [{"index": 1, "path": "$[1].type", "detail": "not a type"}, {"index": 0}, {"index": 7, "detail": "of no item"}]
    error = rejection(["a", "b"], 422, {"detail": "2 of 2", "errors": errors})
    assert [(one.index, one.id, one.detail, one.path) for one in error.errors] == [
        (1, "b", "not a type", "$[1].type"),
        (0, "a", "2 of 2", ""),
    ]
    assert (error.status, error.count, error.results) == (422, 2, [])
    assert str(error).startswith("422: item 1 (id b) $[1].type: not a type; item 0 (id a): 2 of 2")


def test_a_conflict_names_its_items_by_id_and_has_the_results_of_the_others() -> None:
    results = [
        {"id": "b", "user": "x", "status": "accepted", "seq": 1},
        {"id": "a", "user": "y", "status": "conflict", "reason": "another payload"},
        {"id": "a", "user": "z", "status": "conflict"},
    ]
    error = rejection(["b", "a", "a"], 409, {"results": results})
    assert [(one.index, one.detail) for one in error.errors] == [(1, "another payload"), (1, "conflict")], "the first item of that id"
    assert [result.id for result in error.results] == ["b"]


@pytest.mark.parametrize(("ids", "expected"), [(["a"], (0, "a")), (["a", "b"], (-1, "?"))])
def test_an_answer_about_no_item_is_about_the_only_one_or_about_none(ids: list[str], expected: tuple[int, str]) -> None:
    error = rejection(ids, 413, b"too large")
    assert [(one.index, one.id, one.detail) for one in error.errors] == [(*expected, "too large")]


def test_many_errors_are_shortened_in_the_text_and_counted() -> None:
    error = rejection([str(n) for n in range(5)], 422, {"errors": [{"index": n, "detail": "bad"} for n in range(5)]})
    assert str(error).endswith("and 2 more")
    assert PublishError(error.errors, 422, more=10).count == 15


@given(st.integers(400, 499), st.binary(max_size=50) | st.builds(lambda value: json.dumps(value).encode(), st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["detail", "errors", "results", "index", "id"]), inner),
    max_leaves=10,
)))  # fmt: skip
def test_any_answer_raises_an_error_of_the_client(status: int, body: bytes) -> None:
    with pytest.raises(ClientError):
        raise_rejection(["a", "b"], answer(status, body))


@pytest.mark.parametrize(
    "error",
    [
        PublishError([ItemError(0, "a", "no")], 422, [Result(id="b", status="accepted")], more=3),
        Refused("no such group", 404),
        Unauthorized("expired", 401),
        Forbidden("the scope is missing", 403),
        TooManyConnections("a newer one", 4409),
        Unreachable("it did not answer", 503),
    ],
)
def test_errors_are_the_same_in_another_process(error: ClientError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
