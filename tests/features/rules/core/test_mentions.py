"""Mentions as GitHub finds them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.features.rules.core.mentions import TEXT_CHARS_MAX, mentions


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@octocat hi", ["octocat"]),
        ("(@a), @b. @c: @d! @e's", ["a", "b", "c", "d", "e"]),
        ("@Octocat and @octocat", ["Octocat"]),
        ("@Bob @ann @bob @ANN", ["Bob", "ann"]),
        ("mail me@example.com or x@y", []),
        ("@org/team", []),
        ("@dependabot[bot]", []),
        ("@under_score @-dash @dash- @dou--ble", []),
        ("@a-b-c", ["a-b-c"]),
        ("@" + "x" * 39, ["x" * 39]),
        ("@" + "x" * 40, []),
        ("code `@a` and ``@b ` @c`` then @d", ["d"]),
        ("a lone ` @a", ["a"]),
        ("`open\n\n@a` closed", ["a"]),
        ("```\n@a\n```\n@b", ["b"]),
        ("~~~py\n@a\n```\n@b\n~~~\n@c", ["c"]),
        ("````\n@a\n```\n@b\n````\n@c", ["c"]),
        ("```\n@never closed", []),
        ("``` not `a fence @a", ["a"]),
        ("<!-- @a -->@b<!-- @c", ["b"]),
        ("> @quoted", ["quoted"]),
        ("@a\r\n@b", ["a", "b"]),
        ("", []),
    ],
)
def test_mentions_are_what_github_takes_for_one(text: str, expected: list[str]) -> None:
    assert mentions(text) == expected


@pytest.mark.parametrize("text", ["`" * 100_000, "` `` " * 40_000, "@a" * 100_000, "<!--" * 60_000, "```\n" * 60_000, "@" + "a-" * 100_000])
def test_no_text_takes_long(text: str) -> None:
    assert len(mentions(text)) <= 1


@given(st.text(alphabet="@ab-`~\n <!>/[]. ", max_size=60))
def test_whatever_is_found_is_a_login(text: str) -> None:
    for login in mentions(text):
        assert 1 <= len(login) <= 39
        assert login.replace("-", "").isalnum()
        assert f"@{login}" in text


def test_only_the_first_part_of_a_huge_text_is_searched() -> None:
    assert mentions(" " * (TEXT_CHARS_MAX - 4) + "@ann @bob") == ["ann"]
