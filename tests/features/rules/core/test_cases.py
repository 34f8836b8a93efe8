"""Cases beside a rules file: read, applied, and reported where the rules make something else of the event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RulesError
from engine.features.rules.core.cases import NOW_MS, Case, differences, members, outcome_of, parse_cases
from engine.features.rules.core.rules import Rules
from engine.features.rules.core.toml_loader import parse_rules

EXAMPLES = Path(__file__).parents[4] / "examples"


def one_rule(text: str) -> Rules:
    return parse_rules(f'[[rule]]\nname = "r"\nevent = "e"\ntype = "t"\nrecipients = ["user", "others[]"]\n{text}\n', "x.toml")


@pytest.mark.parametrize(
    ("rules", "case"),
    [
        pytest.param(name, case, id=f"{name}: {case.name}")
        for name in ("touch", "forum")
        for case in parse_cases((EXAMPLES / name / "cases.toml").read_text(), name)
    ],
)
def test_the_examples_do_what_is_written_beside_them(rules: str, case: Any) -> None:
    parsed = parse_rules((EXAMPLES / rules / "rules.toml").read_text(), rules)
    assert differences(parsed, case) == []


def test_a_case_that_does_not_hold_says_where() -> None:
    rules = one_rule('delay = "1h"')
    text = '[[case]]\nname = "n"\nevent = "e"\npayload = { user = "u" }\n'
    for expected, difference in (
        ("", "0 notifications expected, there are 1: r for u"),
        ('expect = [{ rule = "r", delay = "2h" }]', "notification 1: delay: expected '2h', found 3600000"),
        ('expect = [{ rule = "r", data.x = 1 }]', "notification 1: data.x: expected 1, found None"),
        ('expect = [{}]\ncancels = [{}]', "1 cancellations expected, there are 0: none"),
    ):  # fmt: skip
        (case,) = parse_cases(text + expected, "cases")
        assert differences(rules, case) == [difference]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[case]\n", "line 1"),
        ("", "missing required field `case`"),
        ('[[case]]\nname = "n"\n', "missing required field `event`"),
        ('[[case]]\nname = "n"\nevent = "e"\nexpects = []\n', "unknown field `expects`"),
        ('[[case]]\nname = "n"\nevent = "e"\nperson = { level = 1 }\n', "person"),
        ("a = " + "[" * 5000, "cases.toml: "),
    ],
)
def test_a_file_that_holds_no_cases_is_refused_with_its_name_and_the_reason(text: str, reason: str) -> None:
    with pytest.raises(RulesError) as refused:
        parse_cases(text, "cases.toml")
    assert str(refused.value).startswith("cases.toml: ")
    assert reason in str(refused.value)


def test_a_case_happens_at_a_fixed_time_to_a_user_who_was_active_so_long_before() -> None:
    rules = one_rule('delay = { by = "$level", vip = "1h", others = "2h", factor = 0.5, active_within = "1d" }')
    delays = {
        ago: outcome_of(rules, Case("n", "e", {"user": "u"}, person={"level": "vip", **active})).notifications[0].delay_ms
        for ago, active in (("never", {}), ("23h", {"active": "23h"}), ("25h", {"active": "25h"}))
    }
    assert delays == {"never": 3_600_000, "23h": 1_800_000, "25h": 3_600_000}


def test_a_case_of_a_tenant_is_subject_to_the_rollout_to_it() -> None:
    rules = one_rule('rollout = { tenants = ["early"] }')
    notified = {tenant: len(outcome_of(rules, Case("n", "e", {"user": "u"}, tenant)).notifications) for tenant in ("early", "default")}
    assert notified == {"early": 1, "default": 0}


def test_an_activity_that_is_no_duration_is_refused_with_the_name_of_the_case() -> None:
    with pytest.raises(RulesError, match=r"case 'n': person\.active: a duration"):
        outcome_of(one_rule(""), Case("n", "e", {"user": "u"}, person={"active": "lately"}))


def test_the_order_of_notifications_and_cancellations_counts() -> None:
    rules = one_rule('cancel_on = "stop"\ncollapse = "k"')
    for event, member in (("e", "expect"), ("stop", "cancels")):
        payload = {"user": "a", "others": ["b"]}
        held = [{"rule": "r", "user": "a"}, {"rule": "r", "user": "b"}]
        assert differences(rules, Case("n", event, payload, **{member: held})) == [], event  # type: ignore[arg-type]
        assert len(differences(rules, Case("n", event, payload, **{member: held[::-1]}))) == 2  # type: ignore[arg-type]


def wishes(found: Any) -> st.SearchStrategy[Any]:
    """Tables with some of the members of `found`, also of the tables in it."""
    if not isinstance(found, dict):
        return st.just(found)
    return st.fixed_dictionaries({}, optional={name: wishes(member) for name, member in found.items()})


RULES = one_rule('delay = "1h"\ndata = { a = 1, b = { c = "{user}", d = [1] } }\nfire = { unless_event = "x" }')
PAYLOAD = {"user": "u"}
FOUND = members(outcome_of(RULES, Case("n", "e", PAYLOAD)).notifications[0])


@given(wishes(FOUND))
def test_any_part_of_what_is_found_may_be_expected(wish: dict[str, Any]) -> None:
    assert differences(RULES, Case("n", "e", PAYLOAD, expect=[wish])) == []


@given(wishes(FOUND), st.sampled_from(["rule", "user", "type", "priority", "id", "delay", "x"]))
def test_one_member_that_differs_is_one_difference_that_names_it(wish: dict[str, Any], name: str) -> None:
    (difference,) = differences(RULES, Case("n", "e", PAYLOAD, expect=[{**wish, name: -1}]))
    assert difference.startswith(f"notification 1: {name}: expected -1, found ")


def test_a_payload_without_a_time_happens_at_the_time_of_cases() -> None:
    assert outcome_of(one_rule('inactive = "1h"'), Case("n", "e", {"user": "u"})).notifications[0].conditions.since_ms == NOW_MS  # type: ignore[union-attr]
