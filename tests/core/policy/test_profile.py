"""Profiles: read from JSON with a reason for every fault, kept, and told again as they were."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from engine.api.time_zones import zone
from engine.core.model.category import DIGEST, OFF, ON
from engine.core.policy.profile import (
    NO_PROFILE,
    UNCHOSEN,
    Profile,
    ProfileLimits,
    decode,
    encode,
    parse_profile,
    shown,
    target_names,
    type_choice,
)
from engine.core.policy.quiet_hours import QuietHours
from engine.errors import Invalid
from tests.support.hostile_input import json_tokens, mutated

LIMITS = ProfileLimits(entries_max=5, chars_max=20)


def parse(value: Any) -> Profile:
    return parse_profile(json.dumps(value).encode(), zone, LIMITS)


def test_a_profile_is_read_kept_and_told_again() -> None:
    written = {
        "zone": "Europe/Berlin",
        "locale": "zh-Hans-CN",
        "level": "vip",
        "quiet": [{"from": "22:00", "to": "07:30", "days": ["mon", "sun"]}],
        "mute": {"types": ["post.liked", "promo.*"], "targets": ["thread:9"]},
        "digest": {"types": ["forum.*"]},
    }
    profile = parse(written)
    assert profile.quiet == (QuietHours(22 * 60, 7 * 60 + 30, 0b100_0001),)
    assert decode(encode(profile)) == profile
    assert shown(profile) == written


def test_what_is_left_out_is_the_default() -> None:
    assert parse({}) == NO_PROFILE
    assert parse({"quiet": [{"from": "22:00", "to": "06:00"}]}).quiet[0].days == 0b111_1111


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ({"zone": "Mars"}, "$.zone"),
        ({"zone": 1}, "$.zone"),
        ({"locale": "english"}, "$.locale"),
        ({"locale": "en_US"}, "$.locale"),
        ({"level": "V I P"}, "$.level"),
        ({"level": "x" * 33}, "$.level"),
        ({"quiet": [{"from": "22:00", "to": "24:00"}]}, "$.quiet[0].to"),
        ({"quiet": [{"from": "9:00", "to": "10:00"}]}, "$.quiet[0].from"),
        ({"quiet": [{"from": "09:00", "to": "09:00"}]}, "$.quiet[0].to"),
        ({"quiet": [{"from": "09:00", "to": "10:00", "days": ["mon", "mo"]}]}, "$.quiet[0].days[1]"),
        ({"quiet": [{"to": "10:00"}]}, "$.quiet[0]"),
        ({"quiet": [{"from": "09:00", "to": "10:00"}] * 15}, "$.quiet"),
        ({"mute": {"types": ["a b"]}}, "$.mute.types[0]"),
        ({"mute": {"types": ["*"]}}, "$.mute.types[0]"),
        ({"mute": {"types": ["a.*.b"]}}, "$.mute.types[0]"),
        ({"mute": {"types": ["a" * 21]}}, "$.mute.types[0]"),
        ({"mute": {"targets": [""]}}, "$.mute.targets[0]"),
        ({"mute": {"targets": list("abcdef")}}, "$.mute.targets"),
        ({"digest": {"types": [1]}}, "$.digest.types[0]"),
        ({"mutes": {}}, "$"),
        ([], "$"),
    ],
)
def test_what_is_wrong_is_told_with_its_path(written: Any, path: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(written)
    assert refused.value.path == path
    assert refused.value.detail


@settings(max_examples=300, deadline=None)
@given(
    mutated(
        st.one_of(
            json_tokens,
            st.just(b'{"quiet":[{"from":"22:00","to":"06:00"}],"mute":{"types":["a.*"]},"on":{"types":["b"]},"categories":{"c":"off"}}'),
        )
    )
)
def test_any_text_is_a_profile_or_a_reason(text: bytes) -> None:
    try:
        profile = parse_profile(text, zone, LIMITS)
    except Invalid:
        return
    again = parse_profile(msgspec.json.encode(shown(profile)), zone, LIMITS)
    assert again == profile
    assert decode(encode(profile)) == profile


@pytest.mark.parametrize(
    ("patterns", "type_", "found"),
    [
        (["post.liked"], "post.liked", "post.liked"),
        (["post.*"], "post.liked", "post.*"),
        (["post.*"], "posted.liked", ""),
        (["post.*"], "post", ""),
        (["post"], "post.liked", ""),
        ([], "post", ""),
    ],
)
def test_a_pattern_means_a_type_or_what_begins_with_it(patterns: list[str], type_: str, found: str) -> None:
    assert type_choice(Profile(muted_types=tuple(patterns)), type_) == (OFF if found else UNCHOSEN, found)


@pytest.mark.parametrize(
    ("type_", "choice", "entry"),
    [
        ("a.b.c", ON, "a.b.c"),
        ("a.b.d", DIGEST, "a.b.*"),
        ("a.x", OFF, "a.*"),
        ("a.b", OFF, "a.*"),
        ("twice", OFF, "twice"),
        ("b", UNCHOSEN, ""),
    ],
)
def test_the_most_specific_choice_decides_about_a_type(type_: str, choice: int, entry: str) -> None:
    profile = Profile(muted_types=("a.*", "twice"), digest_types=("a.b.*", "twice"), on_types=("a.b.c", "twice"))
    assert type_choice(profile, type_) == (choice, entry)


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("thread:9", ("thread:9",)),
        ({"kind": "thread", "id": 9}, ("9", "thread:9")),
        ({"id": "x"}, ("x",)),
        ({"kind": "thread"}, ()),
        (None, ()),
        (["x"], ()),
        ({"id": None}, ()),
    ],
)
def test_a_target_can_be_muted_by_its_names(target: Any, names: tuple[str, ...]) -> None:
    assert target_names(target) == names
