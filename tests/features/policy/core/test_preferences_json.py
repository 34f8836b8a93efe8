"""Preferences: what a patch may say, what it does (against the algorithm of RFC 7396), and what the application leaves to users."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from engine.core.model.category import DIGEST, OFF, ON, Category
from engine.core.model.defined_categories import DefinedCategories
from engine.core.model.step import ChannelStep
from engine.core.policy.preferences import PreferencesPatch
from engine.core.policy.profile import NO_PROFILE, MailDigest, Profile
from engine.errors import Invalid
from engine.features.policy.core.changed_profiles import patched
from engine.features.policy.core.preferences_json import NOTHING, parse_patch, patch_decoder, preferences_of
from engine.features.policy.core.profile_json import ProfileLimits
from engine.features.policy.time_zones import zone
from tests.support.merge_patch import DEFAULTS, merge_patch

CATEGORIES = {
    "news": Category(default=OFF),
    "social": Category(),
    "billing": Category(user_may=1 << ON | 1 << DIGEST),
    "law": Category(mandatory=True, user_may=1 << ON),
}
LIMITS = ProfileLimits(4, 40)


def parse(body: Any) -> PreferencesPatch:
    return parse_patch(patch_decoder.decode(json.dumps(body)), CATEGORIES, zone, LIMITS)


def shown(profile: Profile) -> dict[str, Any]:
    """The part that can be written."""
    found = preferences_of(profile, DefinedCategories(categories=CATEGORIES))
    return {name: found[name] for name in DEFAULTS}


def choices(names: list[str], values: list[str]) -> st.SearchStrategy[Any]:
    return st.none() | st.dictionaries(st.sampled_from(names), st.none() | st.sampled_from(values), max_size=4)


QUIET = [{"from": "22:00", "to": "07:00", "days": ["sat", "sun"]}, {"from": "13:00", "to": "14:00", "days": ["mon"]}]
patches = st.fixed_dictionaries(
    {},
    optional={
        "zone": st.none() | st.sampled_from(["UTC", "Europe/Berlin", "Asia/Tokyo"]),
        "locale": st.none() | st.sampled_from(["de", "zh-CN"]),
        "quiet": st.none() | st.lists(st.sampled_from(QUIET), max_size=2),
        "categories": choices(["news", "social"], ["on", "inbox", "digest", "off"]),
        "types": choices(["a.b", "a.*", "c"], ["on", "inbox", "digest", "off"]),
        "targets": choices(["thread:9", "x"], ["off"]),
        "channels": choices(["news/email", "*/email"], ["on", "off", "digest"]),
        "mail_digest": st.none() | st.just({"at": "08:00", "days": ["mon", "sun"]}),
        "quiet_categories": st.none()
        | st.dictionaries(st.sampled_from(["news", "law"]), st.none() | st.lists(st.sampled_from(QUIET), max_size=2)),
    },
)


@given(st.lists(patches, max_size=5))
def test_patches_do_what_rfc_7396_says_and_repeating_one_changes_nothing(bodies: list[dict[str, Any]]) -> None:
    profile, expected = Profile(level="vip"), dict(DEFAULTS)
    for body in bodies:
        patch = parse(body)
        profile = patched(profile, patch)
        expected = {**DEFAULTS, **merge_patch(expected, body)}
        assert shown(profile) == expected
        assert shown(patched(profile, patch)) == expected
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(patch), type=PreferencesPatch) == patch
    assert profile.level == "vip"


@given(patches, patches, patches)
def test_of_patches_to_different_members_the_order_does_not_matter(
    first: dict[str, Any], one: dict[str, Any], other: dict[str, Any]
) -> None:
    other = {name: value for name, value in other.items() if name not in one}
    start = patched(NO_PROFILE, parse(first))
    both = patched(patched(start, parse(one)), parse(other))
    assert shown(both) == shown(patched(patched(start, parse(other)), parse(one)))


@pytest.mark.parametrize(
    ("body", "path", "words"),
    [
        ({"level": "vip"}, "$.level", "only the application"),
        ({"available": {}}, "$.available", "read only"),
        ({"user": "u"}, "$.user", "read only"),
        ({"zone": "Berlin"}, "$.zone", "IANA"),
        ({"locale": "?"}, "$.locale", "BCP 47"),
        ({"quiet": [{"from": "7", "to": "08:00"}]}, "$.quiet[0].from", "time of day"),
        ({"categories": {"law": "off"}}, "$.categories.law", "the category law cannot be off: users may choose on"),
        ({"categories": {"law": "digest"}}, "$.categories.law", "users may choose on"),
        ({"categories": {"billing": "off"}}, "$.categories.billing", "the category billing cannot be off: users may choose on, digest"),
        ({"categories": {"other": "on"}}, "$.categories.other", "defined are billing, law, news, social"),
        ({"categories": {"news": "mute"}}, "$.categories.news", "on, digest, off"),
        ({"types": {"a b": "off"}}, "$.types.a b", "event type"),
        ({"types": {f"t{n}": "off" for n in range(5)}}, "$.types", "at most 4"),
        ({"targets": {"x": "digest"}}, "$.targets.x", "off, or null"),
        ({"targets": {"": "off"}}, "$.targets", "1 to 40"),
        ({"channels": {"news/push": "digest"}}, "$.channels.news/push", "on, off, or null for no choice; email may be digest"),
        ({"channels": {"law/email": "digest"}}, "$.channels.law/email", "cannot be digest"),
        ({"channels": {"news/pigeon": "off"}}, "$.channels.news/pigeon", "channels are push"),
        ({"channels": {"news": "off"}}, "$.channels.news", "CATEGORY/CHANNEL"),
        ({"channels": {"other/email": "off"}}, "$.channels.other/email", "defined are billing"),
        ({"channels": {"law/email": "off"}}, "$.channels.law/email", "cannot be off"),
        ({"mail_digest": {"at": "8"}}, "$.mail_digest.at", "time of day"),
        ({"mail_digest": {"at": "08:00", "days": ["monday"]}}, "$.mail_digest.days[0]", "allowed are mon"),
        ({"quiet_categories": {"other": []}}, "$.quiet_categories.other", "defined are billing"),
        ({"quiet_categories": {"news": [{"from": "7", "to": "08:00"}]}}, "$.quiet_categories.news[0].from", "time of day"),
    ],
)
def test_what_is_wrong_or_not_left_to_users_is_told_with_its_place(body: Any, path: str, words: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse(body)
    assert caught.value.path == path
    assert words in caught.value.detail


def test_a_choice_for_a_category_that_is_gone_can_be_removed() -> None:
    profile = patched(Profile(categories={"gone": OFF, "news": ON}), parse({"categories": {"gone": None}}))
    assert profile.categories == {"news": ON}
    assert parse({}) == NOTHING


def test_what_is_available_shows_what_holds_now() -> None:
    profile = Profile(categories={"news": DIGEST, "billing": OFF, "law": OFF, "gone": ON})
    available = preferences_of(profile, DefinedCategories(categories=CATEGORIES, titles={"news": "Weekly news"}))["available"]
    assert available == {
        "billing": {"may": ["on", "digest"], "default": "on", "choice": "on"},
        "law": {"may": ["on"], "default": "on", "choice": "on"},
        "news": {"title": "Weekly news", "may": ["on", "inbox", "digest", "off"], "default": "off", "choice": "digest"},
        "social": {"may": ["on", "inbox", "digest", "off"], "default": "on", "choice": "on"},
    }


def test_channels_of_a_categorys_steps_are_available_with_what_holds_now() -> None:
    steps = (ChannelStep("email"), ChannelStep("apprise", to="oncall"))
    defined = DefinedCategories(categories=CATEGORIES, steps=dict.fromkeys(CATEGORIES, steps))
    profile = Profile(channels={"*/email": OFF, "social/email": ON, "law/email": OFF}, categories={"social": DIGEST})
    available = preferences_of(profile, defined)["available"]
    assert {name: one["channels"] for name, one in available.items()} == {
        "billing": {"email": "off"}, "law": {"email": "on"}, "news": {"email": "off"}, "social": {"email": "on"},
    }  # fmt: skip


@pytest.mark.parametrize(("mail_digest", "holds"), [(MailDigest(480), "digest"), (None, "on")])
def test_digest_channel_is_immediate_without_a_mail_digest(mail_digest: MailDigest | None, holds: str) -> None:
    defined = DefinedCategories(categories=CATEGORIES, steps={"social": (ChannelStep("email"),)})
    profile = Profile(channels={"social/email": DIGEST}, mail_digest=mail_digest)
    shown = preferences_of(profile, defined)
    assert (shown["channels"], shown["available"]["social"]["channels"]) == ({"social/email": "digest"}, {"email": holds})
