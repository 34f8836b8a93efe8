"""Who gets which content: language tags are looked up by RFC 4647, and the split into variants is stable per user."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.model.placeholders import Scope
from engine.errors import Invalid
from engine.features.rules.core.content import ContentTemplate, LocalisedContent, RuleContent, Variant
from engine.features.rules.core.jinja_content import parse_content
from engine.features.rules.core.shapes import parse_shape


def titled(text: str) -> ContentTemplate:
    return ContentTemplate({"title": text})


def split(**weights: float) -> RuleContent:
    return RuleContent(variants=tuple(Variant(name, weight, LocalisedContent()) for name, weight in weights.items()))


def chosen(content: RuleContent, user: str, rule: str = "r", tenant: str = "t") -> str:
    variant = content.variant_of(rule, tenant, user)
    assert variant is not None
    return variant.name


USERS = [f"user-{number}" for number in range(4000)]


@pytest.mark.parametrize(
    ("locale", "title"),
    [
        ("de", "de"), ("DE", "de"), ("de-AT", "de"), ("de-CH-1996", "de"), ("zh-TW", "zh-tw"), ("zh-TW-x-private", "zh-tw"), ("zh", "own"),
        ("zh-CN", "own"), ("d", "own"), ("den", "own"), ("", "own"),
    ],
)  # fmt: skip
def test_a_language_is_looked_up_from_its_whole_tag_to_its_first_part(locale: str, title: str) -> None:
    content = LocalisedContent(titled("own"), {"de": titled("de"), "zh-tw": titled("zh-tw")})
    assert content.in_locale(locale).members["title"] == title


def test_a_content_takes_what_it_lacks_from_the_one_below() -> None:
    below = ContentTemplate({"title": "a", "body": "b"}, "{count} of a")
    assert ContentTemplate({"title": "c"}).over(below) == ContentTemplate({"title": "c", "body": "b"}, "{count} of a")
    assert ContentTemplate({}, "s").over(below) == ContentTemplate({"title": "a", "body": "b"}, "s")


def test_members_without_a_value_are_left_out_and_a_text_that_cannot_be_rendered_is_invalid() -> None:
    shapes = {
        "a": parse_shape("{x}"),
        "b": parse_shape("{y}"),
        "c": parse_shape({"d": "{y}"}),
        "n": parse_shape("{n}"),
        "e": parse_shape(""),
    }
    scope = Scope({"x": "there", "n": 0}, {})
    content = ContentTemplate({**shapes, "t": parse_content("{{ x }}!"), "u": parse_content("{{ y }}")})
    assert content.render(scope, scope.payload) == {"a": "there", "c": {}, "n": 0, "t": "there!", "u": ""}
    with pytest.raises(Invalid, match="cannot be rendered"):
        ContentTemplate({"t": parse_content("{{ 1 / 0 }}")}).render(scope, {})


def test_without_variants_there_is_none() -> None:
    assert RuleContent().variant_of("r", "t", "u") is None


@given(st.text(max_size=20), st.sampled_from(["r", "s"]))
def test_a_user_has_the_same_variant_each_time(user: str, rule: str) -> None:
    assert chosen(split(a=1, b=2), user, rule) == chosen(split(b=2, a=1), user, rule)


def test_a_variant_has_its_share_of_the_users() -> None:
    found = Counter(chosen(split(a=1, b=3), user) for user in USERS)
    assert abs(found["a"] / len(USERS) - 0.25) < 0.03, found


def test_a_new_variant_and_more_weight_take_users_from_the_others_and_move_nobody_else() -> None:
    before = {user: chosen(split(a=1, b=1), user) for user in USERS}
    for after in (split(a=1, b=1, c=2), split(a=1, b=3)):
        gains = after.variants[-1].name
        moved = {user: name for user in USERS if (name := chosen(after, user)) != before[user]}
        assert moved
        assert set(moved.values()) == {gains}


def test_the_splits_of_two_rules_and_two_tenants_do_not_depend_on_each_other() -> None:
    content = split(a=1, b=1)
    for one, other in ((("r", "t"), ("s", "t")), (("r", "t"), ("r", "v"))):
        same = sum(chosen(content, user, *one) == chosen(content, user, *other) for user in USERS)
        assert abs(same / len(USERS) - 0.5) < 0.04
