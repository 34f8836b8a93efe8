"""How the outcome of an event would differ under other rules."""

from __future__ import annotations

from engine.features.rules.core.dry_run import OutcomeDifference, difference
from engine.features.rules.core.rules import RulesOutcome
from engine.features.rules.core.toml_loader import parse_rules


def rule(name: str, text: str = "") -> str:
    return f'[[rule]]\nname = "{name}"\nevent = "e"\ntype = "t"\nrecipients = ["users[]"]\n{text}\n'


def outcome(text: str, event: str = "e") -> RulesOutcome:
    return parse_rules(text, "x.toml").apply(event, {"users": ["ann", "bob"]}, "d")


def test_the_same_rules_make_no_difference() -> None:
    found = difference(outcome(rule("a", 'title = "x"')), outcome(rule("a", 'title = "x"')))
    assert (found, found.any) == (OutcomeDifference([], [], [], [], []), False)


def test_what_is_added_removed_and_changed_is_named_with_its_members() -> None:
    now = outcome(rule("b", "delay = '1h'") + rule("a", 'title = "x"'))
    then = outcome(rule("c", "delay = '1h'") + rule("a", 'title = "y"\npriority = "high"'))
    found = difference(now, then)
    assert [(one["rule"], one["user"]) for one in found.added] == [("c", "ann"), ("c", "bob")]
    assert [(one["rule"], one["user"]) for one in found.removed] == [("b", "ann"), ("b", "bob")]
    assert [(one.rule, one.user) for one in found.changed] == [("a", "ann"), ("a", "bob")]
    assert found.changed[0].now == {"priority": "normal", "data": {"title": "x"}}
    assert found.changed[0].then == {"priority": "high", "data": {"title": "y"}}


def test_cancellations_differ_in_both_directions() -> None:
    now, then = (outcome(rule("a", f'cancel_on = "off"\ncollapse = "{key}"'), "off") for key in ("old", "new"))
    found = difference(now, then)
    assert ([one["collapse"] for one in found.cancels], [one["collapse"] for one in found.spares]) == (["new"] * 2, ["old"] * 2)
