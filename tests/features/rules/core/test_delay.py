"""When a rule's notification is sent, whether it still is, and to whom a rule is rolled out."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.model.placeholders import Scope
from engine.core.policy.conditions import Again, Conditions, Drop, Go
from engine.features.policy.core.timer_conditions import Known, at_fire
from engine.features.rules.core.delay import Rollout
from engine.features.rules.core.rules import NOT_ROLLED_OUT, Rules
from engine.features.rules.core.toml_loader import parse_rules

EXAMPLES = Path(__file__).parents[4] / "examples"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW = 1_900_000_000_000
T3 = 'delay = { by = "$level", vip = "1h", normal = "2h", others = "24h", active_within = "24h", factor = 0.6 }'


def one_rule(text: str) -> Rules:
    return parse_rules(f'[[rule]]\nname = "r"\nevent = "e"\ntype = "t"\nrecipients = ["user"]\n{text}\n', "x.toml")


@pytest.mark.parametrize(
    ("level", "active_ago_ms", "delay_ms"),
    [
        ("vip", None, HOUR_MS),
        ("normal", None, 2 * HOUR_MS),
        ("gold", None, DAY_MS),
        (None, None, DAY_MS),
        ("vip", 0, 2_160_000),
        ("vip", DAY_MS - 1, 2_160_000),
        ("vip", DAY_MS, HOUR_MS),
        ("normal", HOUR_MS, 4_320_000),
        ("gold", HOUR_MS, 51_840_000),
    ],
)
def test_the_delay_follows_level_and_activity(level: str | None, active_ago_ms: int | None, delay_ms: int) -> None:
    active_ms = 0 if active_ago_ms is None else NOW - active_ago_ms
    scope = Scope({}, {"$level": level, "$active_ms": active_ms})
    assert one_rule(T3).rules[0].delay.of(scope, NOW) == delay_ms


# -- Conditions when the time has come. -----------------------------------------------------------------------------------
SINCE = NOW - DAY_MS


@pytest.mark.parametrize(
    ("conditions", "known", "outcome"),
    [
        (Conditions(SINCE), Known(), Go),
        (Conditions(SINCE, unless_active=True), Known(active_ms=SINCE), Go),
        (Conditions(SINCE, unless_active=True), Known(active_ms=SINCE + 1), "interacted"),
        (Conditions(SINCE, unless_events=("paid",)), Known(events={"paid": SINCE}), Go),
        (Conditions(SINCE, unless_events=("paid",)), Known(events={"paid": SINCE + 1}), "opposite_event"),
        (Conditions(SINCE, unless_events=("paid",)), Known(active_ms=NOW, events={"seen": NOW}), Go),
        (Conditions(SINCE, member_of="g1"), Known(groups=frozenset(["g1"])), Go),
        (Conditions(SINCE, member_of="g1"), Known(groups=frozenset(["g2"])), "not_member"),
        (Conditions(SINCE, inactive_ms=30 * DAY_MS, delay_ms=DAY_MS), Known(active_ms=NOW - 31 * DAY_MS), Go),
    ],
)
def test_conditions_are_evaluated_by_what_is_known(conditions: Conditions, known: Known, outcome: Any) -> None:
    found = at_fire(conditions, known, NOW)
    assert (found.reason if isinstance(found, Drop) else type(found)) == outcome


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 40 * DAY_MS), max_size=30))
def test_one_timer_finds_the_first_month_without_activity_however_often_a_user_comes(pauses_ms: list[int]) -> None:
    """The model: the first moment that lies 30 days and 24 hours behind the last activity before it."""
    visits = [NOW]
    for pause_ms in pauses_ms:
        visits.append(visits[-1] + pause_ms)
    wait_ms = 31 * DAY_MS
    expected = next(
        (visit + wait_ms for visit, following in itertools.pairwise(visits) if following >= visit + wait_ms),
        visits[-1] + wait_ms,
    )
    conditions, due_ms = Conditions(NOW, inactive_ms=30 * DAY_MS, delay_ms=DAY_MS), NOW + wait_ms
    while True:
        known = Known(active_ms=max(visit for visit in visits if visit < due_ms))
        outcome = at_fire(conditions, known, due_ms)
        if isinstance(outcome, Go):
            break
        assert isinstance(outcome, Again)
        assert outcome.at_ms > due_ms, "it would be asked for ever"
        due_ms = outcome.at_ms
    assert due_ms == expected


# -- Cancelling and rolling out. --------------------------------------------------------------------------------------------
def test_an_event_cancels_what_a_rule_armed_for_its_users_under_the_same_key() -> None:
    rules = one_rule('delay = "1h"\ncollapse = "cart/{user}"\ncancel_on = ["paid", "emptied"]')
    armed = rules.apply("e", {"user": "ann"}, "d", now_ms=NOW).notifications[0]
    for event in ("paid", "emptied"):
        outcome = rules.apply(event, {"user": "ann"}, "d2", now_ms=NOW)
        assert [(found.user, found.collapse) for found in outcome.cancellations] == [("ann", armed.collapse)]
        assert outcome.matched == []
    assert rules.apply("other", {"user": "ann"}, "d3").cancellations == []


def test_a_key_is_short_whatever_it_is_made_of() -> None:
    rules = one_rule('delay = "1h"\ncollapse = "{user}/{x}"\ncancel_on = "paid"')
    long = {"user": "ann", "x": "y" * 1000}
    key = rules.apply("e", long, "d").notifications[0].collapse
    assert len(key) <= 128
    assert rules.apply("paid", long, "d").cancellations[0].collapse == key


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=1, max_size=20), st.floats(0, 1), st.floats(0, 1))
def test_who_is_in_at_a_share_is_in_at_every_larger_one(user: str, one: float, other: float) -> None:
    smaller, larger = sorted((one, other))
    if Rollout(smaller).includes("r", "t", user):
        assert Rollout(larger).includes("r", "t", user)
    assert Rollout(1.0).includes("r", "t", user)
    assert not Rollout(0.0).includes("r", "t", user)
    assert Rollout(0.0, frozenset(["t"])).includes("r", "t", user)


def test_a_share_is_about_that_share_and_another_for_each_rule() -> None:
    users = [f"u{n}" for n in range(4000)]
    first = {user for user in users if Rollout(0.25).includes("one", "t", user)}
    second = {user for user in users if Rollout(0.25).includes("two", "t", user)}
    assert 850 < len(first) < 1150
    assert len(first & second) < 400


def test_who_is_not_in_the_rollout_is_left_out_with_the_reason() -> None:
    rules = one_rule("rollout = { share = 0 , tenants = ['acme'] }")
    assert [skip.reason for skip in rules.apply("e", {"user": "ann"}, "d").skipped] == [NOT_ROLLED_OUT]
    assert [told.user for told in rules.apply("e", {"user": "ann"}, "d", tenant="acme").notifications] == ["ann"]


def test_what_is_sent_later_takes_nobodys_turn() -> None:
    text = '[[rule]]\nname = "{}"\nevent = "e"\ntype = "t"\nrecipients = ["user"]\n{}\n'
    rules = parse_rules(text.format("later", 'delay = "1h"') + text.format("now", "") + text.format("again", ""), "x")
    assert [told.rule for told in rules.apply("e", {"user": "ann"}, "d").notifications] == ["later", "now"]
