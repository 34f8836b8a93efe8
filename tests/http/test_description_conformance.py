"""Requests made from the description: what it allows is accepted, what it forbids is rejected, and every answer is as it says.
A wrong parameter of a query is named.

Schemathesis makes them, the same in every run, and sends them to an edge over real sockets. All its checks are on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation import GenerationMode
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.specs.openapi.checks import ignored_auth

from engine.core.model.defined_categories import CATEGORIES
from tests.support.background_loop import in_background
from tests.support.described import described
from tests.support.described_requests import CONFIG, at_once, beyond_json_schema, unspoilt
from tests.support.edge_world import EdgeWorld, edge_world

LEFT_OUT = (
    "/v1/ws",  # no HTTP
    "/v1/sse",  # ends when the client does
    "/v1/tokens/revoke",  # would revoke the token of the test; and a valid token cannot be made from a schema
    "/v1/edges/{edge}/drain",  # would end the edge
    "/v1/rules",  # a text in TOML cannot be made from a schema, nor what follows a state that others change; see tests/api
    "/v1/rules/stage",
    "/v1/rules/rollback",
    "/v1/rules/dry-run",
    "/v1/tenant-rules",
    "/v1/tenant-rules/stage",
    "/v1/tenant-rules/rollback",
    "/v1/tenant-rules/dry-run",
)

EVERY_SCOPE = "connect publish admin operator"

SETTINGS: dict[str, Any] = {
    "seed": 1,
    "generation": {"deterministic": True, "max-examples": 8, "database": "none", "with-security-parameters": False},
    # Four media types of many fields: their boundaries alone are thousands of cases. tests/http/description has those that matter.
    "operations": [
        {"include-path": ["/v1/notifications", "/v1/explain"], "phases": {"coverage": {"enabled": False}}},
        # DELETE there is no undeclared method: it erases the user whose name is the whole rest of the path.
        {"include-path": "/v1/users/{user}/messages/{message}", "checks": {"unsupported_method": {"enabled": False}}},
    ],
    "checks": {
        # 413: a text that is longer than allowed.
        "negative_data_rejection": {"expected-statuses": ["400", "404", "405", "406", "413", "415", "422"]},
        "positive_data_acceptance": {"expected-statuses": ["2xx", "404", "409"]},
    },
}

DOCUMENT = described(CONFIG, sorted(CATEGORIES))
METHODS = {"get", "post", "put", "patch", "delete"}
OPERATIONS = [
    (path, method)
    for path, item in DOCUMENT["paths"].items()
    if path not in LEFT_OUT
    for method in item.keys() & METHODS
    if (path, method) != ("/v1/notifications", "get")  # no HTTP
]
description = schemathesis.openapi.from_dict(DOCUMENT, config=SchemathesisConfig.from_dict(SETTINGS))


@pytest.fixture(scope="module")
def edge() -> Iterator[EdgeWorld]:
    with in_background(edge_world(publish_delay_target_ms=60_000)) as world:  # however busy the machine is
        world.status = {"version": "1", "shards": [], "edges": [], "schedulers": [], "totals": {}}
        yield world


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False
        yield session


refuses_strangers: set[str] = set()
"""Operations that were found to need a token. It is no matter of their arguments, and would be two more requests each time."""


def is_as_described(case: schemathesis.Case, edge: EdgeWorld, session: requests.Session) -> None:
    if not unspoilt(case):
        return
    at_once(case)
    edge.shard.profiles.clear()  # choices of many requests would be too many of one user
    headers = {"Authorization": f"Bearer {edge.token(scopes=EVERY_SCOPE)}"}
    known = [ignored_auth] if case.operation.label in refuses_strangers else None
    answer = case.call_and_validate(base_url=edge.url(), headers=headers, session=session, excluded_checks=known, timeout=60)
    if answer.status_code == 400 and (wrong := wrong_in_query(case)):
        assert any(f"`{name}`" in answer.json()["detail"] for name in wrong), answer.text
    if 200 <= answer.status_code < 300 and case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE:
        refuses_strangers.add(case.operation.label)


def wrong_in_query(case: schemathesis.Case) -> set[str]:
    """The parameters of its query that are not as described."""
    if case.meta is None:
        return set()
    data = case.meta.phase.data
    return {one.parameter for one in data.mutations or [data] if one.parameter and one.parameter_location is ParameterLocation.QUERY}


@pytest.mark.parametrize(("path", "method"), sorted(OPERATIONS))
def test_the_interface_is_as_described(path: str, method: str, edge: EdgeWorld, session: requests.Session) -> None:
    # What `description.parametrize()` does when tests are collected: there it would cost every worker ten seconds.
    test = build_operation_test(
        config=description.config,
        operation=description[path][method],
        test_func=is_as_described,
        given_kwargs={},
        feedback=FeedbackSources(),
    )
    test(edge=edge, session=session)


@pytest.mark.parametrize("body", [{"type": "reminder", "at": 10**15}, {"ids": ["1"], "until": 10**15}, {"ids": ["1"], "until": 1e15}])
def test_times_that_the_engine_refuses_are_no_findings(body: dict[str, Any]) -> None:
    assert beyond_json_schema(body)


@pytest.mark.parametrize(("days", "filled"), [(["mon", "tue", "wed", "thu", "fri", "sat", "sun"], True), (["mon"], False), ([], True)])
def test_quiet_hours_that_fill_the_week_are_no_finding(days: list[str], filled: bool) -> None:
    assert beyond_json_schema({"quiet": [{"from": "00:00", "to": "12:00"}, {"from": "12:00", "to": "00:00", "days": days}]}) == filled
