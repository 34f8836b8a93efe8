"""Rules on the recordings that ship with the project, and on events made for one question each."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from engine.core.model.envelope import Merge
from engine.features.rules.core.rules import (
    ALREADY,
    NO_RECIPIENT,
    NOT_A_TOPIC,
    NOT_ROLLED_OUT,
    OWN_ACTION,
    Cancellation,
    Rules,
    RulesOutcome,
    delivery_id,
)
from engine.features.rules.core.toml_loader import parse_rules

EXAMPLE = Path(__file__).parents[4] / "examples" / "github"
GITHUB = parse_rules((EXAMPLE / "rules.toml").read_text(), "rules.toml")


def recorded() -> list[dict[str, Any]]:
    with gzip.open(EXAMPLE / "deliveries.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def handwritten() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLE / "handwritten.jsonl").read_text().splitlines()]


def outcome_of(delivery: dict[str, Any], rules: Rules = GITHUB) -> RulesOutcome:
    return rules.apply(delivery["event"], delivery["payload"], delivery_id(delivery["event"], delivery["payload"]))


def one_rule(text: str, defaults: str = "") -> Rules:
    return parse_rules(f'[defaults]\n{defaults}\n[[rule]]\nname = "r"\nevent = "e"\ntype = "t"\n{text}\n', "x.toml")


def users(rules: Rules, payload: dict[str, Any]) -> list[str]:
    return [notification.user for notification in rules.apply("e", payload, "d").notifications]


# -- the example ---------------------------------------------------------------------------------------------------------
def test_the_recordings_notify_whom_the_example_promises() -> None:
    told = Counter((n.rule, n.user) for delivery in recorded() for n in outcome_of(delivery).notifications)
    assert told == {
        ("comment", "Codertocat"): 8,
        ("review", "Codertocat"): 3,
        ("review-request", "octocat"): 1,
        ("star", "Codertocat"): 2,
        ("fork", "Codertocat"): 2,
        ("watch", "Codertocat"): 2,
        ("release", "Codertocat"): 2,
        ("check-failed", "Codertocat"): 1,
    }


def test_every_rule_of_the_example_has_a_delivery_that_shows_it() -> None:
    shown = {n.rule for delivery in recorded() + handwritten() for n in outcome_of(delivery).notifications}
    assert shown == {rule.name for rule in GITHUB.rules}


def test_reviews_review_requests_and_mentions_are_urgent_and_nothing_else_is() -> None:
    urgent = {n.rule for delivery in recorded() + handwritten() for n in outcome_of(delivery).notifications if n.priority == "high"}
    assert urgent == {"mention", "review", "review-request"}


def test_a_mentioned_author_is_told_once_and_urgently_under_the_name_of_the_account() -> None:
    outcome = outcome_of(handwritten()[0])
    assert [(n.user, n.rule, n.priority) for n in outcome.notifications] == [
        ("monalisa", "mention", "high"),
        ("octocat", "mention", "high"),
    ]
    assert [(skip.rule, skip.user, skip.reason) for skip in outcome.skipped] == [("comment", "octocat", ALREADY)]


def test_every_notification_is_a_small_publishable_item() -> None:
    for delivery in recorded() + handwritten():
        for notification in outcome_of(delivery).notifications:
            item = notification.item()
            assert item["data"]["title"]
            assert item["target"]["url"].startswith("https://github.com/")
            assert len(item["id"]) <= 128
            assert "rule" not in item
            assert None not in item.values()
            assert len(json.dumps(item)) < 2000


def test_ids_are_stable_per_delivery_and_differ_between_deliveries() -> None:
    first = [n.id for delivery in recorded() for n in outcome_of(delivery).notifications]
    again = [n.id for delivery in recorded() for n in outcome_of(json.loads(json.dumps(delivery, sort_keys=True))).notifications]
    assert first == again
    assert len(set(first)) == len(first)


def test_without_notify_self_almost_nothing_of_the_one_account_recordings_is_left() -> None:
    text = (EXAMPLE / "rules.toml").read_text().replace("notify_self = true\ncontext", "notify_self = false\ncontext")
    rules = parse_rules(text, "rules.toml")
    outcomes = [outcome_of(delivery, rules) for delivery in recorded()]
    assert sum(len(outcome.notifications) for outcome in outcomes) == 4
    assert {skip.reason for outcome in outcomes for skip in outcome.skipped} == {OWN_ACTION}


# -- matching ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("condition", "payload", "holds"),
    [
        ('{ path = "a.b", equals = 1 }', {"a": {"b": 1}}, True),
        ('{ path = "a.b", equals = 1 }', {"a": {"b": 2}}, False),
        ('{ path = "a.b", equals = 1 }', {"a": None}, False),
        ('{ path = "a.b", in = ["x", "y"] }', {"a": {"b": "y"}}, True),
        ('{ path = "a.b", in = ["x", "y"] }', {"a": {"b": "z"}}, False),
        ('{ path = "a.b", exists = true }', {"a": {"b": 0}}, True),
        ('{ path = "a.b", exists = true }', {"a": {"b": None}}, False),
        ('{ path = "a.b", exists = false }', {}, True),
        ('{ path = "a.b", not_equal = "x" }', {"a": {"b": "y"}}, True),
        ('{ path = "a.b", not_equal = "x" }', {"a": {"b": "x"}}, False),
        ('{ path = "a.b", not_equal = "x" }', {}, True),
        ('{ path = "l[].n", equals = "x" }', {"l": [{"n": "y"}, {"n": "x"}]}, True),
        ('{ path = "l[].n", not_equal = "x" }', {"l": [{"n": "y"}, {"n": "x"}]}, False),
    ],
)
def test_conditions(condition: str, payload: dict[str, Any], holds: bool) -> None:
    rules = one_rule(f'recipients = ["who"]\nwhen = [{condition}]')
    assert users(rules, {"who": "u", **payload}) == (["u"] if holds else [])


def test_a_rule_with_actions_matches_no_other_and_none_without_one() -> None:
    rules = one_rule('recipients = ["who"]\naction = ["opened", "closed"]')
    assert [users(rules, {"who": "u", **action}) for action in ({"action": "closed"}, {"action": "edited"}, {})] == [["u"], [], []]
    assert rules.apply("other", {"who": "u", "action": "closed"}, "d").matched == []


def test_recipients_come_from_lists_once_each_and_only_as_text_or_numbers() -> None:
    rules = one_rule('recipients = ["who[].login", "more"]')
    payload = {
        "who": [{"login": "a"}, {"login": "b"}, {"login": "a"}, {}, "x", {"login": None}, {"login": True}, {"login": 7}],
        "more": "b",
    }
    assert users(rules, payload) == ["a", "b", "7"]


def test_nobody_is_notified_of_their_own_action_unless_the_rule_says_so() -> None:
    payload = {"who": ["me", "you"], "by": "me"}
    assert users(one_rule('recipients = ["who[]"]', 'actor = "by"'), payload) == ["you"]
    assert users(one_rule('recipients = ["who[]"]\nnotify_self = true', 'actor = "by"'), payload) == ["me", "you"]
    assert users(one_rule('recipients = ["who[]"]\nnotify_self = false', 'actor = "by"\nnotify_self = true'), payload) == ["you"]


def test_whether_case_matters_is_for_the_file_to_say() -> None:
    payload = {"who": ["Me", "ME"], "by": "me"}
    assert users(one_rule('recipients = ["who[]"]', 'actor = "by"'), payload) == ["Me", "ME"]
    assert users(one_rule('recipients = ["who[]"]', 'actor = "by"\nusers_ignore_case = true'), payload) == []


def test_a_matching_rule_that_finds_nobody_says_so_and_names_that_are_none_are_left_out() -> None:
    outcome = one_rule('recipients = ["who"]').apply("e", {}, "d")
    assert [(skip.rule, skip.user, skip.reason) for skip in outcome.skipped] == [("r", "", NO_RECIPIENT)]
    assert users(one_rule('recipients = ["who[]"]'), {"who": ["", "a\nb", "x" * 129, "ok"]}) == ["ok"]


@pytest.mark.parametrize("payload", [{}, {"no": ""}, {"no": None}])
def test_an_id_without_a_value_is_that_of_the_delivery(payload: dict[str, Any]) -> None:
    rules = one_rule('recipients = ["u"]\nid = "{no}"')
    made = [rules.apply("e", {"u": "a"} | payload, delivery).notifications[0].id for delivery in ("d1", "d2")]
    assert made == ["r/d1", "r/d2"], "two events are two messages"


def test_a_rule_for_members_skips_an_event_that_names_no_group() -> None:
    rules = one_rule('recipients = ["u"]\ndelay = "1h"\nfire = { while_member = "{team}" }')
    outcome = rules.apply("e", {"u": "a"}, "d")
    assert (outcome.notifications, [one.reason for one in outcome.skipped]) == ([], ["the event names no group for fire.while_member"])
    (made,) = rules.apply("e", {"u": "a", "team": "red"}, "d").notifications
    assert made.conditions is not None
    assert made.conditions.member_of == "red"


@pytest.mark.parametrize("action", [{"a": 1}, ["created"], 7, None])
def test_an_action_that_is_no_text_matches_no_rule_with_actions(action: Any) -> None:
    rules = one_rule('action = "created"\nrecipients = ["u"]')
    assert rules.apply("e", {"u": "a", "action": action}, "d").matched == []
    assert rules.apply("e", {"u": "a", "action": "created"}, "d").matched == ["r"]


def test_a_mention_in_another_case_is_cancelled_as_it_was_armed() -> None:
    text = """
[defaults]
users_ignore_case = true
[[rule]]
name = "owner"
event = "e"
recipients = ["by"]
type = "t"
[[rule]]
name = "mention"
event = "e"
mentions = ["text"]
type = "t"
delay = "1h"
cancel_on = "closed"
"""
    rules, payload = parse_rules(text, "x.toml"), {"by": "octocat", "text": "ask @OctoCat"}
    (armed,) = [one for one in rules.apply("e", payload, "d").notifications if one.rule == "mention"]
    assert armed.user in [one.user for one in rules.apply("closed", payload, "d2").cancellations]


@pytest.mark.parametrize("later", ['delay = "7d"', 'inactive = "30d"', "fire = { unless_active = true }"])
def test_a_rule_that_delays_follows_one_that_notifies_at_once(later: str) -> None:
    rule = '[[rule]]\nname = "{}"\nevent = "e"\ntype = "t"\nrecipients = ["u"]\n{}\n'
    rules = parse_rules(rule.format("now", "") + rule.format("later", later) + rule.format("again", ""), "x.toml")
    outcome = rules.apply("e", {"u": "a"}, "d")
    assert [one.rule for one in outcome.notifications] == ["now", "later"]
    assert [(skip.rule, skip.reason) for skip in outcome.skipped] == [("again", ALREADY)]


def test_a_rule_for_members_leaves_users_to_later_rules() -> None:
    first = '[[rule]]\nname = "team"\nevent = "e"\ntype = "t"\nrecipients = ["u"]\nfire = { while_member = "red" }\n'
    rules = parse_rules(f'{first}[[rule]]\nname = "all"\nevent = "e"\ntype = "t"\nrecipients = ["u"]\n', "x.toml")
    made = rules.apply("e", {"u": "a"}, "d").notifications
    assert [one.rule for one in made] == ["team", "all"], "users who are no members have the second only"


@pytest.mark.parametrize(("actor", "text"), [({"id": 7}, '{"id":7}'), (True, "true"), (7, "7"), ("7", "7")])
def test_an_actor_that_is_no_text_is_json(actor: Any, text: str) -> None:
    (made,) = one_rule('recipients = ["u"]\nactor = "by"').apply("e", {"u": "a", "by": actor}, "d").notifications
    assert made.actor == text


def test_ids_are_what_the_template_says_and_always_short_enough() -> None:
    rules = one_rule('recipients = ["who"]\nid = "{$event}:{$rule}:{$delivery}:{$user}:{n}"')
    assert rules.apply("e", {"who": "u", "n": 5}, "d").notifications[0].id == "e:r:d:u:5"
    long = rules.apply("e", {"who": "u", "n": "x" * 500}, "d").notifications[0].id
    assert len(long) == 64


@pytest.mark.parametrize(
    ("ts", "expected"),
    [
        ("2019-05-15T15:20:42Z", 1_557_933_642_000),
        ("2019-05-15T15:20:42+02:00", 1_557_926_442_000),
        ("2019-05-15T15:20:42", 1_557_933_642_000),
        ("yesterday", None),
        ("1969-12-31T23:59:59Z", None),
        ("9999-12-31T23:59:59-14:00", None),
        (5, 5),
        (-1, None),
        (True, None),
        (1 << 60, None),
        (None, None),
    ],
)
def test_times_are_read_where_the_event_has_them(ts: object, expected: int | None) -> None:
    rules = one_rule('recipients = ["who"]\nts = "{at}"')
    assert rules.apply("e", {"who": "u", "at": ts}, "d").notifications[0].ts == expected


# -- topics, everyone, windows -------------------------------------------------------------------------------------------
TOPIC = parse_rules(
    """
[[rule]]
name = "r"
event = "e"
type = "t"
topic = "thread/{target}"
actor = "actor"
title = "{actor} in {$topic}"
template = { text = "{{ topic }} of {{ user }}" }
cancel_on = ["off"]
delay = "1m"
""",
    "x.toml",
)


def test_a_rule_for_a_topic_makes_one_notification_for_its_subscribers() -> None:
    (made,) = TOPIC.apply("e", {"user": "ann", "actor": "ann", "target": 7}, "d").notifications
    assert (made.user, made.topic, made.actor, made.priority, made.delay_ms) == ("", "thread/7", "ann", "low", 60_000)
    assert made.data == {"title": "ann in thread/7", "text": "thread/7 of ann"}
    item = made.item()
    assert (item["topic"], "user" in item) == ("thread/7", False)


def test_an_event_without_a_name_for_its_topic_is_skipped_with_the_reason() -> None:
    for target in ("a b", "a*", "x" * 200):
        outcome = TOPIC.apply("e", {"target": target}, "d")
        assert ([skip.reason for skip in outcome.skipped], outcome.notifications) == ([NOT_A_TOPIC], [])
        assert TOPIC.apply("off", {"target": target}, "d").cancellations == []


def test_what_waits_for_a_topic_is_cancelled_under_its_key() -> None:
    assert TOPIC.apply("off", {"target": 7}, "d").cancellations == [Cancellation("r", "", "r", "thread/7")]


def test_a_broadcast_is_for_everyone_once_and_takes_nobodys_turn() -> None:
    everyone = '[[rule]]\nname = "all"\nevent = "e"\ntype = "t"\nbroadcast = true\nrollout = { tenants = ["acme"] }\n'
    rules = parse_rules(everyone + '[[rule]]\nname = "r"\nevent = "e"\ntype = "t"\nrecipients = ["u"]\n', "x.toml")
    made = rules.apply("e", {"u": "ann"}, "d", tenant="acme").notifications
    assert [(one.rule, one.user, one.topic) for one in made] == [("all", "", ""), ("r", "ann", None)]
    assert made[0].item()["broadcast"] is True
    outcome = rules.apply("e", {"u": "ann"}, "d", tenant="other")
    assert [one.rule for one in outcome.notifications] == ["r"]
    assert [(skip.rule, skip.reason) for skip in outcome.skipped] == [("all", NOT_ROLLED_OUT)]


def test_a_window_and_a_ttl_travel_with_the_notification_under_its_collapse_key() -> None:
    text = 'recipients = ["u"]\nwindow = "5m"\nleading = true\nttl = "1h"\nsummary = "{count} likes"\n'
    (made,) = one_rule(text).apply("e", {"u": "ann", "p": 3}, "d").notifications
    assert (made.merge, made.ttl_ms, made.collapse) == (Merge(300_000, True, "{count} likes"), 3_600_000, "r")
    (made,) = one_rule(f'{text}collapse = "like/{{p}}"').apply("e", {"u": "ann", "p": 3}, "d").notifications
    assert made.item()["collapse"] == {"key": "like/3", "window": 300, "leading": True, "text": "{count} likes"}
    assert made.item()["ttl"] == 3600


def test_the_language_and_the_variant_of_a_user_decide_what_they_get() -> None:
    rules = one_rule(
        """
recipients = ["u"]
title = "own, {$variant}"
locales.de = { title = "deutsch, {$variant}" }
variants = [{ name = "a" }, { name = "b", title = "other", locales.de = { title = "anders" } }]
"""
    )
    told = set()
    for number in range(40):
        for locale in ("", "de-AT", None):
            facts = {} if locale is None else {"locale": locale}
            (made,) = rules.apply("e", {"u": f"u{number}"}, "d", user_facts=lambda _user, facts=facts: facts).notifications
            told.add((locale, made.variant, made.data["title"]))
    own = {("a", "own, a"), ("b", "other")}
    assert told == {(locale, *one) for locale in ("", None) for one in own} | {("de-AT", "a", "deutsch, a"), ("de-AT", "b", "anders")}


def test_a_user_is_asked_about_only_where_a_rule_depends_on_it() -> None:
    def asked(text: str) -> list[str]:
        users: list[str] = []
        one_rule(f'recipients = ["u"]\n{text}').apply("e", {"u": "ann"}, "d", user_facts=lambda user: users.append(user) or {})
        return users

    assert asked('title = "x"\nvariants = [{ name = "a" }]') == []
    assert asked('title = "x"\nlocales.de = { title = "y" }') == ["ann"]
