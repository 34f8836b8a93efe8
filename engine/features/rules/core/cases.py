"""Test cases of rules: an event and what the rules must make of it, run by `engine rules test RULES CASES`.

    [[case]]
    name = "a cart is left behind"
    event = "cart.abandoned"
    payload = { user = "ann", target = "cart:7" }
    person = { level = "vip", locale = "de", active = "3h" }   # last active this long before the event
    expect = [{ rule = "cart", user = "ann", delay = "36m", data.text = "Still thinking about it?" }]
    cancels = [{ rule = "reminder", user = "ann" }]

A case passes when there are exactly as many notifications and cancellations as it lists, in their order, and each has at least the
members that are listed. `payload` is passed to the rules as it is, as `POST /v1/events` and `engine replay` do.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from engine.core.model.duration import parse_duration_ms
from engine.core.model.envelope import Merge
from engine.errors import Invalid, RulesError
from engine.features.rules.core.rules import Notification, Rules, RulesOutcome, delivery_id

NOW_MS: Final = 1_900_000_000_000
"""The time of the events of cases, unless their payload has a `ts`."""


_DURATIONS: Final = ("delay", "ttl", "window")


class Case(Struct, forbid_unknown_fields=True):
    """One test case."""

    name: str
    event: str
    payload: dict[str, Any] = {}
    tenant: str = "default"
    person: dict[str, str] = {}
    expect: list[dict[str, Any]] = []
    cancels: list[dict[str, Any]] = []


class _File(Struct, forbid_unknown_fields=True):
    case: list[Case]


def parse_cases(text: str, source: str) -> list[Case]:
    """The cases in a TOML text.

    Raises:
        RulesError: with the reason.
    """
    try:
        return msgspec.convert(tomllib.loads(text), _File).case
    except (ValueError, RecursionError) as error:  # msgspec's and tomllib's errors are ValueErrors
        raise RulesError(f"{source}: {error}") from error


def outcome_of(rules: Rules, case: Case) -> RulesOutcome:
    """Apply the rules to the case's event.

    Raises:
        RulesError: `person.active` is not a duration.
    """
    try:
        active_ms = NOW_MS - parse_duration_ms(case.person["active"]) if "active" in case.person else 0
    except Invalid as error:
        raise RulesError(f"case {case.name!r}: person.active: {error.detail}") from error
    facts = {"level": case.person.get("level"), "locale": case.person.get("locale"), "active_ms": active_ms}
    delivery = delivery_id(case.event, case.payload)
    return rules.apply(case.event, case.payload, delivery, tenant=case.tenant, now_ms=NOW_MS, user_facts=lambda _user: facts)


def differences(rules: Rules, case: Case) -> list[str]:
    """How the outcome differs from what the case expects; empty when it passes."""
    outcome = outcome_of(rules, case)
    notifications = [members(notification) for notification in outcome.notifications]
    cancellations = [msgspec.to_builtins(cancellation) for cancellation in outcome.cancellations]
    return _compare("notification", case.expect, notifications) + _compare("cancellation", case.cancels, cancellations)


def members(notification: Notification) -> dict[str, Any]:
    """A notification as a table, with the conditions of its sending; `delay`, `ttl` and `window` are in milliseconds."""
    table = msgspec.structs.asdict(notification)
    if notification.conditions is not None:
        table["conditions"] = msgspec.structs.asdict(notification.conditions)
    merge: Merge | None = table.pop("merge")
    if merge is not None:
        table |= {"window": merge.window_ms, "leading": merge.leading, "summary": merge.text}
    delay_ms, ttl_ms = table.pop("delay_ms"), table.pop("ttl_ms")
    return {**table, "delay": delay_ms, "ttl": ttl_ms}


def recipient(table: Mapping[str, Any]) -> str:
    """Who a notification or a cancellation is for, in words."""
    if table.get("topic") is None:
        return str(table["user"])
    return f"topic {table['topic']}" if table["topic"] else "everyone"


def _compare(what: str, expected: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[str]:
    if len(expected) != len(found):
        named = ", ".join(f"{one['rule']} for {recipient(one)}" for one in found) or "none"
        return [f"{len(expected)} {what}s expected, there are {len(found)}: {named}"]
    return [
        f"{what} {number}: {place}: expected {wanted!r}, found {there!r}"
        for number, (wish, one) in enumerate(zip(expected, found, strict=True), 1)
        for place, wanted, there in _unlike(wish, one, "")
    ]


def _unlike(wish: Mapping[str, Any], found: Mapping[str, Any], prefix: str) -> list[tuple[str, Any, Any]]:
    unlike: list[tuple[str, Any, Any]] = []
    for name, wanted in wish.items():
        there = found.get(name)
        if isinstance(wanted, dict) and isinstance(there, dict):
            unlike += _unlike(wanted, there, f"{prefix}{name}.")
        elif (parse_duration_ms(wanted) if name in _DURATIONS and isinstance(wanted, str) else wanted) != there:
            unlike.append((f"{prefix}{name}", wanted, there))
    return unlike
