"""Profiles: read from JSON with a reason for every fault, and told again as they were."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from engine.core.policy.profile import NO_PROFILE, Profile, QuietHours, shown
from engine.errors import Invalid
from engine.features.policy.core.profile_json import ProfileLimits, parse_profile, profile_decoder
from engine.features.policy.time_zones import zone
from tests.support.hostile_input import json_tokens, mutated

LIMITS = ProfileLimits(entries_max=5, chars_max=20)


def parse(value: Any) -> Profile:
    return parse_profile(profile_decoder.decode(json.dumps(value)), zone, LIMITS)


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
    assert shown(profile) == written


def test_what_is_left_out_is_the_default() -> None:
    assert parse({}) == NO_PROFILE
    assert parse({"quiet": [{"from": "22:00", "to": "06:00"}]}).quiet[0].days == 0b111_1111


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ({"zone": "Mars"}, "$.zone"),
        ({"locale": "english"}, "$.locale"),
        ({"locale": "en_US"}, "$.locale"),
        ({"level": "V I P"}, "$.level"),
        ({"level": "x" * 33}, "$.level"),
        ({"quiet": [{"from": "22:00", "to": "24:00"}]}, "$.quiet[0].to"),
        ({"quiet": [{"from": "9:00", "to": "10:00"}]}, "$.quiet[0].from"),
        ({"quiet": [{"from": "09:00", "to": "09:00"}]}, "$.quiet[0].to"),
        ({"quiet": [{"from": "09:00", "to": "10:00", "days": ["mon", "mo"]}]}, "$.quiet[0].days[1]"),
        ({"quiet": [{"from": "09:00", "to": "10:00"}] * 15}, "$.quiet"),
        ({"quiet": [{"from": "09:00", "to": "21:00"}, {"from": "20:00", "to": "09:00"}]}, "$.quiet"),
        ({"mute": {"types": ["a b"]}}, "$.mute.types[0]"),
        ({"mute": {"types": ["*"]}}, "$.mute.types[0]"),
        ({"mute": {"types": ["a.*.b"]}}, "$.mute.types[0]"),
        ({"mute": {"types": ["a" * 21]}}, "$.mute.types[0]"),
        ({"mute": {"types": ["a", "a", "a b"]}}, "$.mute.types[2]"),
        ({"mute": {"targets": ["a", "a", ""]}}, "$.mute.targets[2]"),
        ({"mute": {"targets": list("abcdef")}}, "$.mute.targets"),
        ({"categories": {"news": "on", "": "off"}}, "$.categories"),
        ({"categories": {"news": "on", "social": "mute"}}, "$.categories.social"),
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
        profile = parse_profile(profile_decoder.decode(text), zone, LIMITS)
    except (Invalid, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    again = parse_profile(profile_decoder.decode(msgspec.json.encode(shown(profile))), zone, LIMITS)
    assert again == profile
