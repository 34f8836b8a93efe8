"""A version that is staged is in force for a stable share of the users, and for nobody else."""

from __future__ import annotations

from typing import Any

from engine.features.rules.core.rules import Cancellation, Rules
from engine.features.rules.core.staging import AppliedRules, RulesInForce
from engine.features.rules.core.toml_loader import parse_rules

USERS = [f"user-{number}" for number in range(2000)]


def titled(title: str, more: str = "") -> Rules:
    return parse_rules(f'[[rule]]\nname = "r"\nevent = "e"\ntype = "t"\nrecipients = ["users[]"]\ntitle = "{title}"\n{more}', "x.toml")


def apply(rules: RulesInForce, payload: dict[str, Any], event: str = "e") -> list[AppliedRules]:
    return rules.apply(event, payload, "d", tenant="t", now_ms=1, user_facts=lambda _user: {})


def told(rules: RulesInForce) -> dict[str, str]:
    parts = apply(rules, {"users": USERS})
    made = [one for part in parts for one in part.outcome.notifications]
    assert len(made) == len(USERS), "each user is notified once"
    return {one.user: one.data["title"] for one in made}


def staged(share: float, version: int = 2) -> RulesInForce:
    return RulesInForce(titled("now"), 1, titled("then"), version, share)


def test_without_a_staged_version_one_outcome_is_that_of_the_active_one() -> None:
    (part,) = apply(RulesInForce(titled("now"), 7), {"users": ["ann"]})
    assert (part.version, [one.data["title"] for one in part.outcome.notifications]) == (7, ["now"])


def test_a_share_of_the_users_gets_what_the_staged_version_makes_and_keeps_it_when_the_share_grows() -> None:
    few = {user for user, title in told(staged(0.1)).items() if title == "then"}
    many = {user for user, title in told(staged(0.5)).items() if title == "then"}
    assert abs(len(few) / len(USERS) - 0.1) < 0.03
    assert abs(len(many) / len(USERS) - 0.5) < 0.04
    assert few < many


def test_another_version_is_tried_on_other_users() -> None:
    one, other = ({user for user, title in told(staged(0.1, version)).items() if title == "then"} for version in (2, 3))
    assert len(one & other) < len(one) / 2


def test_what_has_no_user_is_of_the_active_version() -> None:
    everyone = '[[rule]]\nname = "all"\nevent = "e"\ntype = "t"\nbroadcast = true\ntitle = "{}"\n'
    rules = RulesInForce(titled("x", everyone.replace("{}", "now")), 1, titled("x", everyone.replace("{}", "then")), 2, 0.999)
    made = [one for part in apply(rules, {}) for one in part.outcome.notifications]
    assert [(one.rule, one.data["title"]) for one in made] == [("all", "now")]


def test_what_either_version_cancels_is_cancelled() -> None:
    rules = RulesInForce(titled("x", 'cancel_on = "off"\n'), 1, titled("x", 'cancel_on = "off"\ncollapse = "new"\n'), 2, 0.5)
    ended = [one for part in apply(rules, {"users": ["ann"]}, "off") for one in part.outcome.cancellations]
    assert ended == [Cancellation("r", "ann", "r"), Cancellation("r", "ann", "new")]


def test_what_either_version_asks_for_is_recorded() -> None:
    asking = titled("x", 'fire = { unless_event = "paid", unless_active = true }\n')
    plain = titled("x")
    for rules in (RulesInForce(asking, 1, plain, 2, 0.1), RulesInForce(plain, 1, asking, 2, 0.1)):
        assert (rules.events_asked, rules.activity_asked) == (frozenset({"paid"}), True)
    assert (RulesInForce(plain).events_asked, RulesInForce(plain).activity_asked) == (frozenset(), False)
