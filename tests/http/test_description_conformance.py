"""Requests made from the description: what it allows is accepted, what it forbids is rejected, and every answer is as it says.

Schemathesis makes them, the same in every run, and sends them to an edge over real sockets. All its checks are on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis.config import SchemathesisConfig
from schemathesis.generation import GenerationMode
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test

from engine.config import Config
from engine.core.policy.contact_policy import CATEGORIES
from engine.http.description.document import document
from tests.support.background_loop import in_background
from tests.support.edge_world import SECRET, EdgeWorld, edge_world

CONFIG = Config(jwt_secret=SECRET)
LEFT_OUT = (
    "/v1/ws",  # no HTTP
    "/v1/sse",  # ends when the client does
    "/v1/tokens/revoke",  # would revoke the token of the test; and a valid token cannot be made from a schema
    "/v1/edges/{edge}/drain",  # would end the edge
    "/v1/rules",  # a text in TOML cannot be made from a schema, nor what follows a state that others change; see tests/api
    "/v1/rules/stage",
    "/v1/rules/rollback",
    "/v1/rules/dry-run",
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

graphic = st.characters(exclude_categories=("C", "Z"))
zones = st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/St_Johns"])
times = st.datetimes(datetime(1970, 1, 2), datetime(2029, 1, 1), timezones=st.just(UTC)).map(datetime.isoformat)  # noqa: DTZ001
for name, texts in (
    ("printable", st.text(graphic | st.just(" "), min_size=1, max_size=20)),
    ("topic", st.text(graphic.filter(lambda one: one != "*"), min_size=1, max_size=20)),
    ("time-zone", zones),
    ("date-time", times),
):
    schemathesis.openapi.format(name, texts)

DOCUMENT = document(CONFIG, sorted(CATEGORIES))
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


def beyond_json_schema(body: Any) -> bool:
    """Does a body break one of the rules that the description can only state in words?"""
    for item in body if isinstance(body, list) else [body]:
        if not isinstance(item, dict):
            continue
        collapse = item.get("collapse") or {}
        if (
            any(quiet["from"] == quiet["to"] for quiet in item.get("quiet") or ())
            or (isinstance(item.get("at"), int) and item["at"] > (time.time() + CONFIG.delay_s_max) * 1000)
            or item.get("ttl", CONFIG.ttl_s_default) <= collapse.get("window", 0)
            or not {"{", "}"}.isdisjoint(collapse.get("text", ""))
            or any(isinstance(item.get(name), float) for name in ("seq", "ts", "at", "amount"))  # 1.0 is an integer of JSON Schema
        ):
            return True
    return False


def unspoilt(case: schemathesis.Case) -> bool:
    """Is what the case expects what the interface promises? Schemathesis does not know these."""
    names = (case.query or {}).get("name", ())
    if isinstance(names, list) and sum(len(str(name)) for name in names) > CONFIG.request_head_bytes_max / 4:
        return False
    if case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE:
        return not beyond_json_schema(case.body)
    return not any(name.lower().startswith("x-schemathesis-") for name in case.headers or ())  # unknown headers are ignored everywhere


def waits(case: schemathesis.Case) -> bool:
    """Does it ask to wait, for however long? Numbers such as 1e+16, too."""
    try:
        return float((case.query or {}).get("wait", 25)) >= 0
    except (TypeError, ValueError):
        return False


def is_as_described(case: schemathesis.Case, edge: EdgeWorld, session: requests.Session) -> None:
    if not unspoilt(case):
        return
    if case.path in ("/v1/poll", "/v1/event-groups/{group}/events") and waits(case):
        case.query = {**(case.query or {}), "wait": 0}
    edge.shard.profiles.clear()  # choices of many requests would be too many of one user
    headers = {"Authorization": f"Bearer {edge.token(scopes=EVERY_SCOPE)}"}
    case.call_and_validate(base_url=edge.url(), headers=headers, session=session, timeout=60)


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
