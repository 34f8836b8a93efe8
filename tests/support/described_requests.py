"""What Schemathesis needs to make requests from the engine's description: the formats of its texts, and the rules it states in words only.

Loaded by the program too, as the module of its hooks (`SCHEMATHESIS_HOOKS`).
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import schemathesis
from hypothesis import strategies as st
from schemathesis.core.mutations import Mutation
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation import GenerationMode

from engine.config import Config
from engine.core.policy.profile import DAYS
from tests.support.edge_world import SECRET

CONFIG = Config(jwt_secret=SECRET)
_WEEK_MINUTES = 7 * 1440

graphic = st.characters(exclude_categories=("C", "Z"))
zones = st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/St_Johns"])
times = st.datetimes(datetime(1970, 1, 2), datetime(2029, 1, 1), timezones=st.just(UTC)).map(datetime.isoformat)  # noqa: DTZ001
for name, texts in (
    ("p256-point", st.just("BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4")),
    ("printable", st.text(graphic | st.just(" "), min_size=1, max_size=20)),
    ("topic", st.text(graphic.filter(lambda one: one != "*"), min_size=1, max_size=20)),
    ("time-zone", zones),
    ("date-time", times),
    ("deadline", st.sampled_from(["90s", "30m", "1h30m", "2.5d"])),
):
    schemathesis.openapi.format(name, texts)


def beyond_json_schema(body: Any) -> bool:
    """Does a body break one of the rules that the description can only state in words?"""
    for item in body if isinstance(body, list) else [body]:
        if not isinstance(item, dict):
            continue
        collapse = item.get("collapse") or {}
        ask = item.get("ask") or {}
        ids = [choice["id"] for choice in ask.get("answers") or ()]
        if (
            (
                bool(ask)
                and (
                    len(set(ids)) < len(ids)
                    or ask.get("default", None) not in (*ids, None)
                    or "user" not in item
                    or "collapse" in item
                    or "do" in ask
                    or "to" in ask
                )
            )
            or any(
                _fills_the_week(hours) or any(quiet["from"] == quiet["to"] for quiet in hours)
                for hours in (item.get("quiet"), *(item.get("quiet_categories") or {}).values())
                if hours
            )
            or any(
                isinstance(item.get(name), int | float) and item[name] > (time.time() + CONFIG.delay_s_max) * 1000
                for name in ("at", "until")
            )
            or item.get("ttl", CONFIG.ttl_s_default) <= collapse.get("window", 0)
            or not {"{", "}"}.isdisjoint(collapse.get("text", ""))
            or any(
                isinstance(item.get(name), float) for name in ("seq", "ts", "at", "amount", "upto", "version")
            )  # 1.0 is an integer of JSON Schema
        ):
            return True
    return False


def _fills_the_week(hours: list[dict[str, Any]]) -> bool:
    """Do these quiet hours leave no minute?"""
    minutes: set[int] = set()
    for quiet in hours:
        begin, end = (60 * int(clock[:2]) + int(clock[3:]) for clock in (quiet["from"], quiet["to"]))
        for day in map(DAYS.index, quiet.get("days") or DAYS):
            minutes.update(minute % _WEEK_MINUTES for minute in range(day * 1440 + begin, day * 1440 + begin + (end - begin) % 1440))
    return len(minutes) == _WEEK_MINUTES


def unspoilt(case: schemathesis.Case) -> bool:
    """Is what the case expects what the interface promises? Schemathesis does not know these."""
    names = (case.query or {}).get("name", ())
    if isinstance(names, list) and sum(len(quote(str(name))) for name in names) > CONFIG.request_head_bytes_max / 2:
        return False
    if (case.method, case.path) == ("DELETE", "/v1/questions/{question}") and {"user", "topic"}.isdisjoint(case.query or ()):
        return False  # one of the two is needed
    if case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE:
        return not beyond_json_schema(case.body)
    mutations = case.meta.phase.data.mutations if case.meta is not None else ()
    if mutations and all(_is_harmless(mutation) for mutation in mutations):
        return False
    return not any(name.lower().startswith("x-schemathesis-") for name in case.headers or ())  # unknown headers are ignored everywhere


def _is_harmless(mutation: Mutation) -> bool:
    """May what it makes be valid? A text that was to break its format may have it all the same; unknown names in a query are ignored."""
    in_query = mutation.parameter_location is ParameterLocation.QUERY
    return set(mutation.keywords) <= ({"format", "additionalProperties"} if in_query else {"format"})


def waits(case: schemathesis.Case) -> bool:
    """Does it ask to wait, for however long? Numbers such as 1e+16, too."""
    try:
        return float((case.query or {}).get("wait", 25)) >= 0
    except (TypeError, ValueError):
        return False


def at_once(case: schemathesis.Case) -> None:
    """Keep a request from waiting."""
    if case.path in ("/v1/poll", "/v1/event-groups/{group}/events", "/v1/questions/{question}", "/v1/growing/{id}") and waits(case):
        case.query = {**(case.query or {}), "wait": 0}


BEGINNINGS: tuple[dict[str, Any], ...] = (
    {"user": "user-connect", "type": "reminder", "delay": 600},
    {"user": "user-connect", "type": "deploy.ask", "ask": {"answers": [{"id": "yes", "label": "Yes"}], "deadline": "30m"}},
)
"""What chains of requests begin with: at random, few messages can be cancelled, and fewer answered."""


def begin(case: schemathesis.Case) -> None:
    """Let a chain of requests that publishes first begin with one of these."""
    if case.meta is None or case.meta.phase.name.value != "stateful" or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return
    if case.operation.definition.raw["operationId"] == "publish" and case.media_type == "application/json":
        case.body = BEGINNINGS[len(str(case.body)) % len(BEGINNINGS)]


@schemathesis.hook
def filter_case(_context: schemathesis.HookContext, case: schemathesis.Case) -> bool:
    return unspoilt(case)


@schemathesis.hook
def before_call(_context: schemathesis.HookContext, case: schemathesis.Case, _kwargs: Any) -> None:
    at_once(case)
    begin(case)
