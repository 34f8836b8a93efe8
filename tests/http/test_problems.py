"""Problem details, byte for byte."""

from __future__ import annotations

import json

import pytest

from engine.errors import EngineError
from engine.http import problems
from engine.http.problems import Problem, problem_response


def test_a_problem_is_answered_as_rfc_9457_has_it() -> None:
    response = problem_response(problems.unprocessable("bad", [{"index": 3, "path": "$[3].user", "detail": "missing"}]))
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"
    assert response.body == (
        b'{"type":"urn:engine:problem:invalid-items","title":"Unprocessable Content","status":422,"detail":"bad",'
        b'"errors":[{"index":3,"path":"$[3].user","detail":"missing"}]}'
    )


def test_a_problem_without_a_type_is_about_blank_with_the_status_phrase() -> None:
    assert problems.not_found("no such timer").body() == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "no such timer",
    }


def test_a_problem_is_an_engine_error_that_reads_as_its_detail() -> None:
    assert isinstance(problems.bad_request("x"), EngineError)
    assert str(problems.bad_request("no JSON")) == "no JSON"


@pytest.mark.parametrize(
    ("problem", "status", "header", "value"),
    [
        (problems.bad_request("d"), 400, None, None),
        (problems.unauthorized("d"), 401, "www-authenticate", 'Bearer realm="engine", error="invalid_token"'),
        (problems.unauthorized("d", presented=False), 401, "www-authenticate", 'Bearer realm="engine"'),
        (problems.forbidden("d"), 403, "www-authenticate", None),
        (
            problems.forbidden("d", scope="publish"),
            403,
            "www-authenticate",
            'Bearer realm="engine", error="insufficient_scope", scope="publish"',
        ),
        (problems.not_found("d"), 404, None, None),
        (problems.method_not_allowed(["GET", "PATCH"]), 405, "allow", "GET, PATCH"),
        (problems.conflict("d"), 409, None, None),
        (problems.content_too_large("d"), 413, None, None),
        (problems.unsupported_media_type("d", ["application/json"]), 415, "accept", "application/json"),
        (problems.unprocessable("d", []), 422, None, None),
        (problems.too_many_requests("d", 7), 429, "retry-after", "7"),
        (problems.unavailable("d", 1), 503, "retry-after", "1"),
    ],
)
def test_each_kind_has_its_status_and_its_header(problem: Problem, status: int, header: str | None, value: str | None) -> None:
    response = problem_response(problem)
    assert response.status_code == status == json.loads(bytes(response.body))["status"]
    if header is not None:
        assert response.headers.get(header) == value


def test_a_detail_with_a_lone_surrogate_is_still_answered() -> None:
    assert json.loads(bytes(problem_response(problems.bad_request("\ud800")).body))["detail"] == "\ud800"


def test_a_conflict_tells_an_id_from_a_fired_timer() -> None:
    assert problems.conflict("d").type == problems.ID_CONFLICT
    assert problems.conflict("d", type=problems.ALREADY_FIRED).type == problems.ALREADY_FIRED
