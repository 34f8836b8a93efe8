"""Paths into an event, and templates with placeholders."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.model.placeholders import Scope, parse_path, parse_template
from engine.errors import Invalid


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("", ""),
        ("{a.b}", 7),
        ("n={a.b}", "n=7"),
        ("{missing}", None),
        ("<{missing}>", "<>"),
        ("{missing|name}", "Ann"),
        ("{empty|name}", "Ann"),
        ("{empty}", ""),
        ('{missing|"nobody"}', "nobody"),
        ("{name:2}", "A…"),
        ("{name:3}", "Ann"),
        ("{list[].x}", [1, 2]),
        ("{list[].x} of {flag}", "1, 2 of true"),
        ("{{{name}}}", "{Ann}"),
        ("{a}!", '{"b":7}!'),
        ("{$event}", "e"),
    ],
)
def test_templates_render(text: str, expected: object) -> None:
    scope = Scope({"a": {"b": 7}, "name": "Ann", "empty": "", "list": [{"x": 1}, {"x": 2}, {}], "flag": True}, {"$event": "e"})
    assert parse_template(text).render(scope) == expected


@pytest.mark.parametrize("text", ["{", "}", "{}", "{a b}", "{a.}", "{a|}", "a {b", "{a[0]}", "{a:x}"])
def test_malformed_templates_are_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_template(text)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    )
)
def test_no_payload_makes_a_path_fail(payload: Any) -> None:
    for text in ("a.b", "a[].b", "a.b[].c", "a[]"):
        assert None not in parse_path(text).values(Scope({"a": payload}, {}))


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a.b", [1]),
        ("list[].x", [1, 2]),
        ("deep[].in[].y", [3, 4, 5]),
        ("a[]", []),
        ("a.b.c", []),
        ("list.x", []),
        ("none", []),
        ("$rule", ["r"]),
        ("$a", []),
        ("rule", []),
    ],
)
def test_a_path_finds_every_value_it_leads_to(path: str, found: list[Any]) -> None:
    payload = {
        "a": {"b": 1},
        "list": [{"x": 1}, {"x": None}, {"x": 2}],
        "deep": [{"in": [{"y": 3}, {"y": 4}]}, {"in": [{"y": 5}]}, {"in": 6}],
        "none": None,
    }
    assert parse_path(path).values(Scope(payload, {"$rule": "r"})) == found


@pytest.mark.parametrize("text", ["", ".", "a.", "a..b", "a[0]", "a b", "[]", "a[]b", "a$b", "$", "$$a"])
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="a path looks like"):
        parse_path(text)


@given(st.text())
def test_a_text_with_doubled_braces_renders_as_it_was(text: str) -> None:
    assert parse_template(text.replace("{", "{{").replace("}", "}}")).render(Scope({}, {})) == text


@given(st.text(max_size=20), st.integers(1, 99))
def test_a_cut_text_is_never_longer_than_its_limit_and_begins_as_the_whole_one(text: str, chars_max: int) -> None:
    cut = parse_template(f"{{text:{chars_max}}}").render(Scope({"text": text}, {}))
    assert len(cut) == min(len(text), chars_max)
    assert cut == text or (cut.endswith("…") and text.startswith(cut[:-1]))


@given(st.none() | st.booleans() | st.integers() | st.lists(st.integers()) | st.dictionaries(st.text(max_size=2), st.integers()))
def test_a_lone_placeholder_keeps_the_type_of_its_value(value: Any) -> None:
    rendered = parse_template("{value}").render(Scope({"value": value}, {}))
    assert rendered == value
    assert type(rendered) is type(value)
