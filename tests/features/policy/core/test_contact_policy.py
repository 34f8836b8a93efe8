"""The decision: every question by itself, their order, and random histories against a simple model."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from engine.core.model.category import DAY_MS, DIGEST, INBOX, OFF, ON, Category
from engine.core.model.constants import HIGH, LOW, NORMAL
from engine.core.model.defined_categories import TOUCH
from engine.core.model.step import ChannelStep
from engine.core.policy.profile import NO_PROFILE, MailDigest, Profile, QuietHours
from engine.core.policy.user_state import Counters, Recent
from engine.features.policy.core.contact_policy import TOTAL, Decision, Facts, Reason, Verdict, evaluate, forget_old, record, unwanted_by
from engine.features.policy.time_zones import zone

EMAIL = ChannelStep("email")
MORNING = MailDigest(480)

decode_counters = msgspec.msgpack.Decoder(Counters).decode
NOW = int(datetime(2026, 6, 6, 12, tzinfo=UTC).timestamp() * 1000)
HOUR_MS = 3_600_000
CATEGORIES = {
    "touch": TOUCH,
    "must": Category(mandatory=True, cap=1),
    "capped": Category(cap=2, cap_ms=HOUR_MS, quiet=False),
    "news": Category(cap=2, cap_ms=HOUR_MS, total_cap=3, total_ms=DAY_MS),
    "offers": Category(total_cap=3, total_ms=DAY_MS),
}
NIGHT = Profile(zone="Europe/Berlin", quiet=(QuietHours(22 * 60, 7 * 60),))
MIDNIGHT = int(datetime(2026, 6, 6, 22, tzinfo=UTC).timestamp() * 1000)  # in Berlin


def about(type: str, category: str = "", **fields: Any) -> Facts:
    """Facts of a message, with the limits of its category."""
    return Facts(type=type, category=category, limits=CATEGORIES.get(category, Category()), **fields)


def verdict(
    facts: Facts, profile: Profile | None = None, counters: Counters | None = None, now_ms: int = NOW, active_ms: int = 0
) -> Verdict:
    profile = profile or Profile()
    return evaluate(facts, profile, zone(profile.zone), counters or Counters(), now_ms, active_ms)


def codes(found: Verdict) -> list[str]:
    return [reason.code for reason in found.reasons]


def test_nothing_speaks_against_a_message_nobody_limits() -> None:
    found = verdict(about("a"))
    assert found.decision is Decision.DELIVER
    assert codes(found) == ["allowed"]


def test_a_muted_type_or_target_is_suppressed_whatever_its_priority() -> None:
    profile = Profile(muted_types=("promo.*",), muted_targets=("thread:9",))
    for facts in (about("promo.sale", priority=HIGH), about("a", targets=("9", "thread:9"), priority=HIGH)):
        assert verdict(facts, profile).decision is Decision.SUPPRESS
    assert verdict(about("promotion"), profile).decision is Decision.DELIVER


def test_what_a_user_must_be_told_passes_mutes_quiet_hours_and_caps() -> None:
    counters = Counters(sent={"must": Recent(DAY_MS, [NOW])})
    profile = replace(NIGHT, muted_types=("law.*",))
    found = verdict(about("law.notice", category="must"), profile, counters, MIDNIGHT)
    assert found.decision is Decision.DELIVER
    assert codes(found) == ["mandatory"]


def test_a_user_who_has_been_active_since_is_not_touched() -> None:
    facts = about("cart.abandoned", category="touch", unless_active_since_ms=NOW - 5)
    assert verdict(facts, active_ms=NOW - 5).decision is Decision.DELIVER
    found = verdict(facts, active_ms=NOW - 4)
    assert (found.decision, codes(found)) == (Decision.SUPPRESS, ["interacted"])
    assert verdict(replace(facts, unless_active_since_ms=0), active_ms=NOW).decision is Decision.DELIVER


def test_quiet_hours_defer_until_they_end() -> None:
    found = verdict(about("a"), NIGHT, now_ms=MIDNIGHT)
    assert found.decision is Decision.DEFER
    assert found.until_ms == MIDNIGHT + 7 * HOUR_MS
    assert "7 h" in found.reasons[-1].detail
    assert verdict(about("a"), NIGHT, now_ms=found.until_ms).decision is Decision.DELIVER


def test_high_priority_and_some_categories_do_not_wait_for_quiet_hours() -> None:
    assert verdict(about("a", priority=HIGH), NIGHT, now_ms=MIDNIGHT).decision is Decision.DELIVER
    assert verdict(about("a", category="capped"), NIGHT, now_ms=MIDNIGHT).decision is Decision.DELIVER
    assert verdict(about("a", priority=LOW), NIGHT, now_ms=MIDNIGHT).decision is Decision.DEFER


def test_a_type_wanted_in_the_digest_goes_there_unless_it_is_urgent() -> None:
    profile = replace(NIGHT, digest_types=("forum.*",))
    assert verdict(about("forum.like"), profile, now_ms=MIDNIGHT).decision is Decision.DIGEST
    assert verdict(about("forum.like", priority=HIGH), profile).decision is Decision.DELIVER


CHOSEN = Profile(
    muted_types=("a.off", "p.*"), digest_types=("a.digest",), on_types=("a.on", "p.on"), muted_targets=("t",),
    inbox_types=("a.inbox",), categories={"off": OFF, "digest": DIGEST, "on": ON, "inbox": INBOX},
)  # fmt: skip
NEWS = Category(default=OFF)
WEEKLY = Category(default=DIGEST)
BILLING = Category(user_may=1 << ON | 1 << DIGEST)


@pytest.mark.parametrize(
    ("type_", "category", "limits", "decision", "code"),
    [
        ("a", "", Category(), Decision.DELIVER, "allowed"),
        ("a", "off", Category(), Decision.SUPPRESS, "muted_category"),
        ("a.on", "off", Category(), Decision.SUPPRESS, "muted_category"),
        ("a.digest", "off", Category(), Decision.SUPPRESS, "muted_category"),
        ("a.off", "on", Category(), Decision.SUPPRESS, "muted_type"),
        ("p.x", "on", Category(), Decision.SUPPRESS, "muted_type"),
        ("p.on", "on", Category(), Decision.DELIVER, "allowed"),
        ("a", "digest", Category(), Decision.DIGEST, "digest"),
        ("a.on", "digest", Category(), Decision.DELIVER, "allowed"),
        ("a.digest", "on", Category(), Decision.DIGEST, "digest"),
        ("a", "other", NEWS, Decision.SUPPRESS, "not_chosen"),
        ("a", "on", NEWS, Decision.DELIVER, "allowed"),
        ("a", "digest", NEWS, Decision.DIGEST, "digest"),
        ("a.on", "other", NEWS, Decision.DELIVER, "allowed"),
        ("a.digest", "other", NEWS, Decision.DIGEST, "digest"),
        ("a", "other", WEEKLY, Decision.DIGEST, "digest"),
        ("a", "on", WEEKLY, Decision.DELIVER, "allowed"),
        ("a", "off", BILLING, Decision.DELIVER, "allowed"),
        ("a.off", "other", BILLING, Decision.DELIVER, "allowed"),
        ("a", "digest", BILLING, Decision.DIGEST, "digest"),
        ("a", "digest", Category(user_may=1 << ON | 1 << OFF), Decision.DELIVER, "allowed"),
        ("a", "inbox", Category(), Decision.INBOX, "inbox"),
        ("a.inbox", "on", Category(), Decision.INBOX, "inbox"),
        ("a.inbox", "off", Category(), Decision.SUPPRESS, "muted_category"),
        ("a.digest", "inbox", Category(), Decision.DIGEST, "digest"),
        ("a.inbox", "", BILLING, Decision.DELIVER, "allowed"),
        ("a", "inbox", Category(inbox_ms=0), Decision.DELIVER, "allowed"),
        ("a", "other", Category(default=INBOX, inbox_ms=0), Decision.DELIVER, "allowed"),
        ("a", "other", Category(default=INBOX), Decision.INBOX, "inbox"),
        ("a", "inbox", Category(mandatory=True), Decision.DELIVER, "mandatory"),
        ("a", "off", Category(mandatory=True), Decision.DELIVER, "mandatory"),
        ("a.off", "digest", Category(mandatory=True, user_may=1 << ON), Decision.DELIVER, "mandatory"),
    ],
)
def test_users_choose_by_type_and_category_within_what_the_category_leaves_to_them(
    type_: str, category: str, limits: Category, decision: Decision, code: str
) -> None:
    found = verdict(Facts(type=type_, category=category, limits=limits), CHOSEN)
    assert (found.decision, codes(found)) == (decision, [code])


def test_without_a_profile_the_default_of_a_category_holds_also_for_urgent_messages_that_are_off() -> None:
    for limits, decisions in (
        (NEWS, [Decision.SUPPRESS] * 2),
        (WEEKLY, [Decision.DIGEST, Decision.DELIVER]),
        (Category(), [Decision.DELIVER] * 2),
    ):
        found = [
            verdict(Facts(type="a", category="c", limits=limits, priority=priority), NO_PROFILE).decision for priority in (NORMAL, HIGH)
        ]
        assert found == decisions


def test_a_muted_target_is_suppressed_unless_its_category_must_be_told() -> None:
    assert codes(verdict(Facts(type="a", category="on", targets=("t",)), CHOSEN)) == ["muted_target"]
    assert verdict(Facts(type="a", category="c", limits=BILLING, targets=("t",)), CHOSEN).decision is Decision.DELIVER


def test_a_cap_opens_again_when_the_oldest_leaves_the_rolling_day() -> None:
    counters = Counters(sent={"touch": Recent(DAY_MS, [NOW, NOW + 10, NOW + 20])})
    facts = about("new", category="touch")
    found = verdict(facts, counters=counters, now_ms=NOW + DAY_MS - 1)
    assert (found.decision, codes(found)) == (Decision.SUPPRESS, ["cap"])
    assert verdict(facts, counters=counters, now_ms=NOW + DAY_MS).decision is Decision.DELIVER


def test_a_total_counts_all_categories_that_have_it_and_no_others() -> None:
    counters = Counters()
    for at_ms, category in ((NOW, "news"), (NOW + 1, "offers"), (NOW + 2, "touch"), (NOW + 3, "capped"), (NOW + 4, "offers")):
        found = verdict(about(category, category=category), counters=counters, now_ms=at_ms)
        assert found.decision is Decision.DELIVER, found
        record(counters, about(category, category=category), at_ms, 10)
    for category in ("news", "offers"):
        found = verdict(about("new", category=category), counters=counters, now_ms=NOW + DAY_MS - 1)
        assert (found.decision, found.reasons[-1]) == (
            Decision.SUPPRESS,
            Reason("total", "the user got 3 of all categories in 1 d; 3 are allowed"),
        )
        assert verdict(about("new", category=category), counters=counters, now_ms=NOW + DAY_MS).decision is Decision.DELIVER
        assert verdict(about("new", category=category, priority=HIGH), counters=counters, now_ms=NOW + 5).decision is Decision.DELIVER
    assert verdict(about("new", category="touch"), counters=counters, now_ms=NOW + 5).decision is Decision.DELIVER


def test_the_same_type_comes_once_in_three_days() -> None:
    counters = Counters()
    facts = about("cart.abandoned", category="touch")
    record(counters, facts, NOW, 10)
    found = verdict(facts, counters=counters, now_ms=NOW + 3 * DAY_MS - 1)
    assert (found.decision, codes(found)) == (Decision.SUPPRESS, ["same_type"])
    assert verdict(facts, counters=counters, now_ms=NOW + 3 * DAY_MS).decision is Decision.DELIVER
    assert verdict(replace(facts, type="order.sent"), counters=counters, now_ms=NOW + 1).decision is Decision.DELIVER


def test_urgent_and_mandatory_messages_count_against_nobody() -> None:
    counters = Counters()
    for facts in (
        about("a", category="touch", priority=HIGH),
        about("b", category="must"),
        about("c"),
        about("c", category="?"),
    ):
        record(counters, facts, NOW, 10)
    assert counters == Counters()


def test_a_decision_changes_no_state() -> None:
    counters = Counters(sent={"touch": Recent(DAY_MS, [NOW - 5])}, last={"a": (NOW - 5, NOW + DAY_MS)})
    before = msgspec.msgpack.encode(counters)
    for facts in (about("a", category="touch"), about("b", category="touch")):
        verdict(facts, NIGHT, counters)
    assert msgspec.msgpack.encode(counters) == before
    assert decode_counters(before) == counters


# -- Random histories against a model that remembers everything. ---------------------------------------------------------
class Model:
    """Every delivery there ever was."""

    def __init__(self) -> None:
        self.delivered: list[tuple[int, str, str]] = []

    def allows(self, facts: Facts, now_ms: int) -> bool:
        category = CATEGORIES.get(facts.category, Category())
        if facts.priority == HIGH or category.mandatory:
            return True
        recent = [at_ms for at_ms, name, _ in self.delivered if name == facts.category and at_ms > now_ms - category.cap_ms]
        if category.cap and len(recent) >= category.cap:
            return False
        together = [at_ms for at_ms, name, _ in self.delivered if name in ("news", "offers") and at_ms > now_ms - category.total_ms]
        if category.total_cap and len(together) >= category.total_cap:
            return False
        limited = [name for name, limits in CATEGORIES.items() if limits.same_type_ms]
        same = [
            at_ms
            for at_ms, name, type_ in self.delivered
            if name in limited and type_ == facts.type and at_ms > now_ms - category.same_type_ms
        ]
        return not (category.same_type_ms and same)


steps = st.tuples(
    st.one_of(st.integers(0, HOUR_MS), st.integers(0, 4 * DAY_MS)),
    st.sampled_from(["touch", "touch", "capped", "news", "offers", "must", "", "unknown"]),
    st.sampled_from(["a", "b", "c", "d", "e"]),
    st.sampled_from([HIGH, NORMAL, NORMAL, LOW]),
    st.sampled_from(["keep", "keep", "forget", "page"]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=60))
def test_random_histories_are_decided_as_if_everything_were_remembered(history: list[tuple[Any, ...]]) -> None:
    model, counters, now_ms = Model(), Counters(), NOW
    for pause_ms, category, type_, priority, what in history:
        now_ms += pause_ms
        facts = about(type_, category=category, priority=priority)
        found = verdict(facts, counters=counters, now_ms=now_ms)
        assert (found.decision is Decision.DELIVER) is model.allows(facts, now_ms), found
        if found.decision is Decision.DELIVER:
            record(counters, facts, now_ms, counted_max=10)
            if priority != HIGH and category != "must":
                model.delivered.append((now_ms, category, type_))
        if what == "forget":
            forget_old(counters, now_ms)
        elif what == "page":
            counters = decode_counters(msgspec.msgpack.encode(counters))
        assert all(len(recent.times) <= (3 if name == TOTAL else CATEGORIES[name].cap) for name, recent in counters.sent.items())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(-HOUR_MS, HOUR_MS)), max_size=80))
def test_counters_stay_bounded_whatever_the_clock_does(history: list[tuple[int, int]]) -> None:
    counters, now_ms = Counters(), NOW
    for number, step_ms in history:
        now_ms += step_ms
        record(counters, about(f"t{number}", category="touch"), now_ms, counted_max=8)
        assert len(counters.last) <= 8
        assert len(counters.sent["touch"].times) <= 3
        assert counters.sent["touch"].times == sorted(counters.sent["touch"].times)


@pytest.mark.parametrize(
    ("profile", "step", "told"),
    [
        (Profile(), EMAIL, True),
        (Profile(channels={"news/email": OFF}), EMAIL, False),
        (Profile(channels={"news/email": OFF}), ChannelStep("apprise"), True),
        (Profile(channels={"news/apprise": OFF}), ChannelStep("apprise", to="oncall"), True),
        (Profile(channels={"*/email": OFF}), EMAIL, False),
        (Profile(channels={"*/email": OFF, "news/email": ON}), EMAIL, True),
        (Profile(channels={"news/email": DIGEST}, mail_digest=MORNING), EMAIL, False),
        (Profile(channels={"news/email": DIGEST}), EMAIL, True),
        (Profile(channels={"news/email": DIGEST}, mail_digest=MORNING), ChannelStep("push"), True),
        (Profile(categories={"news": DIGEST}), EMAIL, False),
        (Profile(categories={"news": DIGEST}, channels={"news/email": ON}), EMAIL, True),
        (Profile(categories={"news": OFF}, channels={"news/email": ON}), EMAIL, False),
    ],
)
def test_a_step_is_taken_as_its_user_chose_for_category_and_channel(profile: Profile, step: ChannelStep, told: bool) -> None:
    facts = Facts(type="a", category="news")
    assert (unwanted_by(facts, profile, step, inbox=True) == "") is told
    mandatory = Facts(type="a", category="news", limits=Category(mandatory=True))
    assert unwanted_by(mandatory, profile, step, inbox=True) == ""


def test_quiet_hours_of_a_category_replace_those_of_the_user() -> None:
    always, facts = (QuietHours(0, 1439), QuietHours(1439, 0)), Facts(type="a", category="news")
    deferred = {
        name: evaluate(facts, profile, UTC, Counters(), 1000).decision is Decision.DEFER
        for name, profile in {
            "user": Profile(quiet=always),
            "none for it": Profile(quiet=always, quiet_categories={"news": ()}),
            "for it only": Profile(quiet_categories={"news": always}),
            "for another": Profile(quiet_categories={"social": always}),
        }.items()
    }
    assert deferred == {"user": True, "none for it": False, "for it only": True, "for another": False}
