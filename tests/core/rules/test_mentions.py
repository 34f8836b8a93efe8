"""Mentions as GitHub finds them."""

from __future__ import annotations

import time

import pytest

from engine.core.rules.mentions import TEXT_CHARS_MAX, mentions


@pytest.mark.parametrize(
    ("text", "logins"),
    [
        ("", []),
        ("@ann and @bob-c, (@d1)!", ["ann", "bob-c", "d1"]),
        ("@Ann @ann @ANN @bob", ["Ann", "bob"]),
        ("mail ann@example.org, @org/team, @dependabot[bot], a/@b, @@c", []),
        ("@-ann @ann- @a--b", []),
        ("@" + "a" * 39 + " @" + "b" * 40, ["a" * 39]),
        ("`@ann` @bob ``@carl ` @dora`` @eve", ["bob", "eve"]),
        ("a ` alone @ann", ["ann"]),
        ("`a\n\nb` @ann", ["ann"]),
        ("```\n@ann\n```\n@bob", ["bob"]),
        ("~~~~ text\n@ann\n~~~\n@bob\n~~~~\n@carl", ["carl"]),
        ("```\n@ann", []),
        ("<!-- @ann -->@bob<!-- @carl", ["bob"]),
    ],
)
def test_mentions_are_found_where_github_finds_them(text: str, logins: list[str]) -> None:
    assert mentions(text) == logins


def test_only_the_first_part_of_a_huge_text_is_searched() -> None:
    assert mentions(" " * (TEXT_CHARS_MAX - 4) + "@ann @bob") == ["ann"]


@pytest.mark.parametrize("piece", ["@", "`", "<!--", "``a`", "```\n", "@a-"])
def test_the_time_is_linear_in_the_length(piece: str) -> None:
    began = time.process_time()
    mentions(piece * (TEXT_CHARS_MAX // len(piece)))
    assert time.process_time() - began < 5
