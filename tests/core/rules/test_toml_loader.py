"""What a rules file becomes, and the line, the rule and the reason that a wrong one is refused with."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.model.category import Category
from engine.core.policy.conditions import Conditions
from engine.core.policy.contact_policy import TOUCH
from engine.core.policy.user_state import EVENTS_MAX, FOLLOWERS_MAX
from engine.core.rules.delay import Rollout
from engine.core.rules.toml_loader import parse_rules
from engine.errors import RulesError

GOOD = '[[rule]]\nname = "a"\nevent = "e"\ntype = "t"\nrecipients = ["u"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"x.toml: at least one rule or category"),
        ("rule = []", r"x.toml: at least one rule or category"),
        ("[[rule]\n", r"x.toml: .*line 1"),
        ('[[rule]]\nname = "a"\nevent = "e"\ntype = "t"\n', r"x.toml:1: rule 'a': recipients: .*notifies nobody"),
        ('# one\n\n[[rule]]\nname = "a"\nevent = "e"\nrecipients = ["u"]\n', r"x.toml:3: rule 'a': .*`type`"),
        (GOOD + 'priority = "urgent"\n', r"x.toml:1: rule 'a': priority: .*urgent"),
        (GOOD + 'colour = 1\n', r"x.toml:1: rule 'a': .*colour"),
        ('[[rule]]\nname = "a"\nevent = "e"\ntype = "a b"\nrecipients = ["u"]\n', r"x.toml:1: rule 'a': type: words"),
        ('[[rule]]\nname = "a"\nevent = "e"\ntype = "t"\nrecipients = ["u u"]\n', r"x.toml:1: rule 'a': recipients: a path looks like"),
        (GOOD + 'title = "{"\n', r"x.toml:1: rule 'a': data.title: a brace"),
        (GOOD + 'when = [{ path = "x" }]\n', r"when\[0\]: exactly one"),
        (GOOD + 'do = "shop.touch"\n', r"x.toml:1: rule 'a': do: ray://NAMESPACE"),
        (GOOD + 'do = "https://u@h/"\n', r"x.toml:1: rule 'a': do: ray://NAMESPACE"),
        (GOOD + 'do = "https://h/"\ncategory = "touch"\n', r"x.toml:1: rule 'a': category: not with do"),
        (GOOD * 2, r"x.toml:6: rule 'a': another rule has this name"),
        ('[[rule]]\nname = "A b"\nevent = "e"\ntype = "t"\nrecipients = ["u"]\n', r"x.toml:1: rule 'A b': name"),
        ('[[rule]]\nname = "a"\nevent = []\ntype = "t"\nrecipients = ["u"]\n', r"x.toml:1: rule 'a': event"),
        (GOOD + 'target = 2020-01-01\n', r"x.toml:1: rule 'a': target: text, number"),
        ("[defaults]\nnotify_self = 1\n[[rule]]\n", r"x.toml: "),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_line_rule_and_reason(text: str, message: str) -> None:
    with pytest.raises(RulesError, match=message):
        parse_rules(text, "x.toml")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('delay = "soon"', "x.toml:1: rule 'r': delay: a duration looks like"),
        ('delay = { by = "$level", vip = "1h" }', "delay: by, others and at least one level"),
        ('delay = { by = "$level", others = "1h" }', "delay: by, others and at least one level"),
        ('delay = { by = "a b", vip = "1h", others = "1h" }', "delay.by: a path"),
        ('delay = { by = "$level", vip = "1 hour", others = "1h" }', "delay.vip: a duration"),
        ('delay = { by = "$level", vip = "1h", others = "1h", factor = 0.5 }', "factor and active_within need each other"),
        ('delay = { by = "$level", vip = "1h", others = "1h", factor = 2, active_within = "1h" }', "delay.factor"),
        ('rollout = { share = 1.5 }', "rollout.share"),
        ('rollout = { percent = 5 }', "percent"),
        ('inactive = "x"', "inactive: a duration"),
        ('fire = { if_raining = true }', "if_raining"),
        ('template = { text = "{{ a" }', "template.text: line 1 of the text"),
        ('collapse = "{a"', "collapse: a brace without its partner"),
    ],
)  # fmt: skip
def test_a_wrong_timing_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(RulesError) as refused:
        parse_rules(GOOD.replace('"a"', '"r"') + text, "x.toml")
    assert reason in str(refused.value)
    assert str(refused.value).startswith("x.toml:1: rule 'r': ")


def rule_of(name: str, text: str = "") -> str:
    return GOOD.replace('"a"', f'"{name}"') + text + "\n"


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_an_error_names_the_line_of_its_rule_wherever_the_rule_stands(gaps: list[int]) -> None:
    good = "".join("\n" * gap + rule_of(f"r{n}") for n, gap in enumerate(gaps))
    text = good + rule_of("bad", 'collapse = "{"')
    line = text[: text.index('name = "bad"')].count("\n")
    with pytest.raises(RulesError, match=rf"^x\.toml:{line}: rule 'bad': collapse: "):
        parse_rules(text, "x.toml")


def test_a_rule_without_a_member_has_that_of_the_defaults_and_its_own_wins() -> None:
    defaults = '[defaults]\npriority = "low"\ncategory = "touch"\nnotify_self = true\nid = "{$rule}"\nrollout = { tenants = ["t"] }\n'
    own = 'priority = "high"\ncategory = ""\nnotify_self = false\nid = "i"\nrollout = { share = 0.5 }'
    plain, special = parse_rules(defaults + rule_of("plain") + rule_of("special", own), "x").rules
    assert (plain.priority, plain.category, plain.notify_self, plain.rollout) == ("low", "touch", True, Rollout(0.0, frozenset(("t",))))
    assert (special.priority, special.category, special.notify_self, special.rollout) == ("high", "", False, Rollout(0.5, frozenset()))
    assert plain.id != special.id


def test_a_rule_that_names_no_event_or_activity_makes_the_engine_record_none() -> None:
    rules = parse_rules(rule_of("r"), "x")
    assert (rules.events_asked, rules.activity_asked) == (frozenset(), False)


@pytest.mark.parametrize(
    ("text", "events", "activity", "conditions"),
    [
        ('fire = { unless_event = "paid" }', ["paid"], False, Conditions(0, False, ("paid",), "", 0)),
        ('fire = { unless_event = ["paid", "left"] }', ["left", "paid"], False, Conditions(0, False, ("paid", "left"), "", 0)),
        ("fire = { unless_active = true }", [], True, Conditions(0, True, (), "", 0)),
        ('inactive = "3s"', [], True, Conditions(0, False, (), "", 3000)),
    ],
)
def test_what_a_condition_refers_to_is_what_the_engine_records(
    text: str, events: list[str], activity: bool, conditions: Conditions
) -> None:
    rules = parse_rules(rule_of("r", text), "x")
    assert (sorted(rules.events_asked), rules.activity_asked, rules.rules[0].fire) == (events, activity, conditions)


def test_a_delay_that_depends_on_activity_makes_the_engine_record_it() -> None:
    delay = 'delay = { by = "$level", vip = "1h", others = "2h", factor = 0.5, active_within = "1d" }'
    assert parse_rules(rule_of("r", delay), "x").activity_asked


def test_rules_refer_to_at_most_as_many_events_as_are_kept_of_a_user() -> None:
    def asking(count: int) -> str:
        return "".join(rule_of(f"r{n}", f'fire = {{ unless_event = ["e{n}", "e0"] }}') for n in range(count))

    assert len(parse_rules(asking(EVENTS_MAX), "x").events_asked) == EVENTS_MAX
    with pytest.raises(RulesError, match=f"fire.unless_event: .* at most {EVENTS_MAX} events, these ask for {EVENTS_MAX + 1}"):
        parse_rules(asking(EVENTS_MAX + 1), "x")


def test_at_most_as_many_rules_follow_a_user_as_timers_are_kept_of_one() -> None:
    def following(count: int) -> str:
        return "".join(rule_of(f"r{n}", 'inactive = "1h"') for n in range(count))

    assert len(parse_rules(following(FOLLOWERS_MAX), "x").rules) == FOLLOWERS_MAX
    with pytest.raises(RulesError, match=f"inactive: at most {FOLLOWERS_MAX} rules .* these are {FOLLOWERS_MAX + 1}"):
        parse_rules(following(FOLLOWERS_MAX + 1), "x")


# -- Categories. ---------------------------------------------------------------------------------------------------------
def test_categories_are_defined_beside_the_rules_and_touch_is_there_without() -> None:
    text = """
[category.social]
cap = 5
per = "12h"
same_type = "10m"
quiet = false
[category.law]
mandatory = true
"""
    categories = parse_rules(text, "rules.toml").categories
    assert categories == {
        "touch": TOUCH,
        "social": Category(cap=5, cap_ms=12 * 3_600_000, same_type_ms=600_000, quiet=False),
        "law": Category(mandatory=True),
    }
    assert parse_rules("[category.touch]\ncap = 1", "r").categories == {"touch": Category(cap=1)}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "at least one rule or category"),
        ("[category.x]\ncap = -1", "category"),
        ("[category.x]\ncap = 101", "category"),
        ('[category.x]\nper = "0s"', "rules.toml: category 'x': per: more than nothing"),
        ('[category.x]\nsame_type = "400d"', "rules.toml: category 'x': same_type: more than nothing, at most 365d"),
        ('[category.x]\nper = "soon"', "rules.toml: category 'x': per: a duration"),
        ("[category.x]\nlimit = 3", "unknown field `limit`"),
        ('[category."A B"]\ncap = 3', "category"),
        (
            '[[rule]]\nname = "a"\nevent = "e"\nrecipients = ["user"]\ntype = "t"\ncategory = "x"',
            "rules.toml:1: rule 'a': category: no category is named so; defined are touch",
        ),
    ],
)
def test_what_is_wrong_with_a_category_is_said(text: str, reason: str) -> None:
    with pytest.raises(RulesError, match=re.escape(reason)):
        parse_rules(text, "rules.toml")
