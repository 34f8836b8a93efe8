"""What a rules file becomes, and the line, the rule and the reason that a wrong one is refused with."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.core.model.category import CHOICES, DAY_MS, ON, Category
from engine.core.model.defined_categories import TOUCH
from engine.core.model.step import READ, ChannelStep
from engine.core.policy.conditions import Conditions
from engine.core.policy.user_state import EVENTS_MAX, FOLLOWERS_MAX
from engine.errors import RulesError
from engine.features.policy.core.preferences_json import may
from engine.features.rules.core.delay import Rollout
from engine.features.rules.core.toml_loader import parse_rules

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
        (GOOD * 2, r"x.toml:6: rule 'a': name: another rule has this name"),
        ('[[rule]]\nname = "A b"\nevent = "e"\ntype = "t"\nrecipients = ["u"]\n', r"x.toml:1: rule 'A b': name"),
        ('[[rule]]\nname = "a"\nevent = []\ntype = "t"\nrecipients = ["u"]\n', r"x.toml:1: rule 'a': event"),
        (GOOD + 'target = 2020-01-01\n', r"x.toml:1: rule 'a': target: text, number"),
        (GOOD + 'data = { n = nan }\n', r"x.toml:1: rule 'a': data.n: text, number"),
        (GOOD + 'when = [{ path = "day", equals = 2020-01-01 }]\n', r"x.toml:1: rule 'a': when\[0\].equals: a text is needed"),
        (GOOD + 'when = [{ path = "day", in = ["x", 10:00:00] }]\n', r"x.toml:1: rule 'a': when\[0\].in: a text is needed"),
        ("[category.ok]\n[category.digest]\ncap = -1\n", r"x.toml: category.digest.cap: Expected"),
        ('[category."a b"]\n', r"x.toml: category: Expected"),
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
        ('ttl = "soon"', "ttl: a duration looks like"),
        ('ttl = "0s"', "ttl: more than nothing, at most 365d"),
        ('window = "5"', "window: a duration looks like"),
        ('window = "0ms"', "window: more than nothing"),
        ('window = "1h"\nttl = "1h"', "ttl: must be longer than the window"),
        ('window = "1h"\ndo = "https://h/"', "window: not with do"),
        ('leading = true', "leading: needs a window"),
        ('summary = "{count}"', "summary: needs a window"),
        ('window = "1h"\nsummary = "{"', "summary: a brace"),
        ('topic = "x"', "topic: a rule needs recipients or mentions, or topic, or broadcast = true"),
        ('broadcast = true', "broadcast: a rule needs recipients"),
    ],
)  # fmt: skip
def test_a_wrong_timing_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(RulesError) as refused:
        parse_rules(GOOD.replace('"a"', '"r"') + text, "x.toml")
    assert reason in str(refused.value)
    assert str(refused.value).startswith("x.toml:1: rule 'r': ")


TO_MANY = GOOD.replace('recipients = ["u"]\n', "")


@pytest.mark.parametrize("audience", ['topic = "a/{b}"', "broadcast = true"])
@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("notify_self = true", "notify_self"),
        ('category = "touch"', "category"),
        ("fire = { unless_active = true }", "fire"),
        ('inactive = "1d"', "inactive"),
        ('window = "1m"', "window"),
        ('do = "https://h/"', "do"),
        ('locales.de = { title = "x" }', "locales"),
        ('variants = [{ name = "a" }]', "variants"),
        ('delay = { by = "$level", vip = "1h", others = "2h" }', "delay"),
        ('summary = "x"', "summary"),
    ],
)
def test_what_depends_on_a_user_is_refused_of_a_rule_for_many(audience: str, text: str, field: str) -> None:
    assert parse_rules(f"{TO_MANY}{audience}\n", "x").rules[0].audience is not None
    with pytest.raises(RulesError, match=f"x.toml:1: rule 'a': {field}: not with topic and broadcast"):
        parse_rules(f"{TO_MANY}{audience}\n{text}\n", "x.toml")


def test_what_goes_to_many_has_low_priority_unless_the_file_says_otherwise() -> None:
    many = f"{TO_MANY}broadcast = true\n"
    assert parse_rules(many, "x").rules[0].priority == "low"
    assert parse_rules(f"{many}priority = 'high'", "x").rules[0].priority == "high"
    assert parse_rules(f"[defaults]\npriority = 'normal'\n{many}", "x").rules[0].priority == "normal"
    assert parse_rules(GOOD, "x").rules[0].priority == "normal"


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
        "law": Category(mandatory=True, user_may=1 << ON),
    }
    assert parse_rules("[category.touch]\ncap = 1", "r").categories == {"touch": Category(cap=1)}


def test_a_total_is_a_limit_of_every_category_that_does_not_decline_it() -> None:
    text = "[total]\ncap = 5\nper = '7d'\n[category.a]\ncap = 1\n[category.b]\ntotal = false\n"
    total = {"total_cap": 5, "total_ms": 7 * 86_400_000}
    categories = parse_rules(text, "r").categories
    assert categories == {"touch": replace(TOUCH, **total), "a": Category(cap=1, **total), "b": Category()}
    assert parse_rules("[total]\ncap = 5", "r").categories == {"touch": replace(TOUCH, total_cap=5)}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[total]", "rules.toml: total"),
        ('[default_category]\nacme = "x"', "rules.toml: default_category: acme: no category is named 'x'; defined are touch"),
        ('[default_category]\n"a b" = "touch"', "rules.toml: default_category: a b: a tenant's name is needed, or * for all others"),
        ("[total]\ncap = 0", "rules.toml: total.cap"),
        ("[total]\ncap = 1\nper = '0s'", "rules.toml: total: per: more than nothing, at most 365d"),
        ("[total]\ncap = 1\nper = 'soon'", "rules.toml: total: per: a duration"),
        ("", "at least one rule or category"),
        ("[category.x]\ncap = -1", "category"),
        ("[category.x]\ncap = 101", "category"),
        ('[category.x]\nper = "0s"', "rules.toml: category 'x': per: more than nothing"),
        ('[category.x]\nsame_type = "400d"', "rules.toml: category 'x': same_type: more than nothing, at most 365d"),
        ('[category.x]\nper = "soon"', "rules.toml: category 'x': per: a duration"),
        ("[category.x]\nlimit = 3", "unknown field `limit`"),
        ('[category."A B"]\ncap = 3', "category"),
        ('[category.x]\nuser_may = ["mute"]', r"user_may"),
        ('[category.x]\nuser_may = ["off"]', "category 'x': user_may: must have the default in it, 'on'"),
        ('[category.x]\ninbox = "none"\ndefault = "inbox"', "category 'x': default: not with inbox"),
        ('[category.x]\ninbox = "none"\nuser_may = ["on", "inbox"]', "category 'x': user_may: not with inbox"),
        ('[category.x]\nunsubscribe = true\nuser_may = ["on", "digest"]', "category 'x': unsubscribe: users cannot turn"),
        ("[category.x]\nmandatory = true\nunsubscribe = true", "category 'x': unsubscribe: users cannot turn"),
        ('[inbox]\n"a b" = "1d"', "rules.toml: inbox: a b: an event type"),
        ('[inbox]\n"post.*" = "soon"', "rules.toml: inbox: post.*: a duration"),
        ('[inbox]\n"post.*" = "400d"', "rules.toml: inbox: post.*: more than nothing, at most 365d"),
        ("[category.x]\nuser_may = []", "category 'x': user_may: must have the default"),
        ('[category.x]\ndefault = "mute"', "default"),
        ('[category.x]\nmandatory = true\ndefault = "off"', "category 'x': default: not with mandatory"),
        ('[category.x]\nmandatory = true\nuser_may = ["on", "off"]', "category 'x': user_may: not with mandatory"),
        (f'[category.x]\ntitle = "{"t" * 101}"', "title"),
        (
            '[[rule]]\nname = "a"\nevent = "e"\nrecipients = ["user"]\ntype = "t"\ncategory = "x"',
            "rules.toml:1: rule 'a': category: no category is named so; defined are touch",
        ),
    ],
)
def test_what_is_wrong_with_a_category_is_said(text: str, reason: str) -> None:
    with pytest.raises(RulesError, match=re.escape(reason)):
        parse_rules(text, "rules.toml")


def test_types_say_how_long_their_messages_stay_in_the_inbox() -> None:
    rules = parse_rules('[inbox]\n"post.*" = "1d"\n"promo.now" = "none"', "r")
    assert rules.kept == {"post.*": DAY_MS, "promo.now": 0}


def test_a_category_says_what_users_may_choose_and_what_holds_for_who_has_not() -> None:
    text = """
[category.plain]
[category.billing]
user_may = ["on", "digest"]
title = "Invoices"
[category.news]
default = "off"
[category.feed]
default = "inbox"
[category.noise]
inbox = "none"
[category.law]
mandatory = true
user_may = ["on"]
"""
    rules = parse_rules(text, "r")
    found = {name: (may(category), CHOICES[category.default]) for name, category in rules.categories.items()}
    everything = ["on", "inbox", "digest", "off"]
    assert found == {
        "plain": (everything, "on"),
        "touch": (everything, "on"),
        "billing": (["on", "digest"], "on"),
        "news": (everything, "off"),
        "feed": (everything, "inbox"),
        "noise": (["on", "digest", "off"], "on"),
        "law": (["on"], "on"),
    }
    assert rules.titles == {"billing": "Invoices"}


def test_a_category_knows_how_late_its_last_step_is() -> None:
    text = '[category.alert]\nsteps = [{ channel = "email", after = "3d" }, { channel = "email", after = "10m" }]\n[category.plain]\n'
    rule = '[[rule]]\nname = "r"\nevent = "e"\ntype = "t"\nrecipients = ["user"]\ncategory = "{}"\n'
    rule += 'steps = [{ channel = "email", after = "5d" }]\n'
    day_ms = 86_400_000
    for category, late_ms in (("alert", (5 * day_ms, 0)), ("plain", (3 * day_ms, 5 * day_ms))):
        found = parse_rules(text + rule.replace("{}", category), "r").categories
        assert (found["alert"].steps_ms, found["plain"].steps_ms) == late_ms


def test_a_category_lists_its_steps() -> None:
    text = '[category.alert]\nsteps = [{ channel = "email" }, { channel = "email", after = "10m", unless = "read", mandatory = true }]'
    assert parse_rules(text, "r").steps == {"alert": (ChannelStep("email"), ChannelStep("email", 600_000, READ, True))}
    capped = '[category.alert]\nsteps = [{ channel = "email", cap = 3, per = "7d" }, { channel = "push", cap = 5 }]'
    assert parse_rules(capped, "r").steps["alert"] == (
        ChannelStep("email", cap=3, cap_ms=7 * DAY_MS),
        ChannelStep("push", cap=5, cap_ms=DAY_MS),
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[{ channel = "pigeon" }]', "rules.toml: category 'alert': steps[0].channel: one of push, email, apprise"),
        ('[{ channel = "email" }, { channel = "email", after = "0s" }]', "steps[1].after: more than nothing"),
        ('[{ channel = "email", unless = "bored" }]', "steps[0].unless: Invalid enum value"),
        ('[{ channel = "email", to = "oncall" }]', "steps[0].to: only with the channel apprise"),
        ('[{ channel = "email", cap = 101 }]', "steps[0].cap: Expected `int` <= 100"),
        ('[{ channel = "email", per = "1d" }]', "steps[0].per: only with cap"),
        ('[{ channel = "email", cap = 1, per = "0s" }]', "steps[0].per: more than nothing"),
        ('[{ channel = "apprise", to = "oncall", cap = 1 }]', "steps[0].cap: not with to"),
        ('[{ after = "10m" }]', "steps[0]: Object missing required field `channel`"),
        ("[" + '{ channel = "email" },' * 9 + "]", "steps: Expected `array` of length <= 8"),
    ],
)
def test_a_bad_step_is_named(text: str, told: str) -> None:
    with pytest.raises(RulesError, match=re.escape(told)):
        parse_rules(f"[category.alert]\nsteps = {text}", "rules.toml")


@pytest.mark.parametrize("member", ['window = "5m"', 'inactive = "1d"'])
def test_a_rule_whose_messages_have_no_id_of_their_own_names_no_category_with_steps(member: str) -> None:
    text = f'{GOOD}category = "alert"\n{member}\n[category.alert]\nsteps = [{{ channel = "email" }}]\n'
    with pytest.raises(RulesError, match="not with steps, of the rule or its category"):
        parse_rules(text, "rules.toml")
    own = f'{GOOD}category = "alert"\nsteps = [{{ channel = "email" }}]\n{member}\n[category.alert]\n'
    with pytest.raises(RulesError, match="not with steps, of the rule or its category"):
        parse_rules(own, "rules.toml")


def test_a_rule_lists_steps_of_its_own_which_count_for_its_category_in_preferences() -> None:
    text = f'{GOOD}category = "alert"\nsteps = [{{ channel = "push" }}, {{ channel = "apprise", to = "oncall" }}]\n[category.alert]\n'
    rules = parse_rules(text, "rules.toml")
    assert rules.rules[0].steps == (ChannelStep("push"), ChannelStep("apprise", to="oncall"))
    assert (rules.have_steps, rules.channels_of("alert"), rules.channels_of("touch")) == (True, {"push"}, frozenset())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('steps = [{ channel = "push" }]', "category: a rule with steps needs a category"),
        ('category = "alert"\nsteps = [{ channel = "pigeon" }]', "steps[0].channel: one of push, email, apprise"),
    ],
)
def test_a_bad_step_of_a_rule_is_named(text: str, told: str) -> None:
    with pytest.raises(RulesError, match=re.escape(told)):
        parse_rules(f"{GOOD}{text}\n[category.alert]\n", "rules.toml")


def test_no_rule_calls_a_channel() -> None:
    with pytest.raises(RulesError, match="do: no channel"):
        parse_rules(GOOD + 'do = "channel://email"\n', "rules.toml")
