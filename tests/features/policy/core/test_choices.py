"""Profiles: which choice decides about a type, and the names by which a target can be muted."""

from __future__ import annotations

from typing import Any

import pytest

from engine.core.model.category import DIGEST, OFF, ON
from engine.core.policy.profile import UNCHOSEN, Profile
from engine.features.policy.core.choices import target_names, type_choice


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
