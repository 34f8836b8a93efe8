"""How long messages of a type stay in the inbox, whatever their category says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.auth.tokens import Principal
from engine.config import Config
from engine.core.model.category import Category, PolicyTerms
from engine.publish.drafts import Draft, parse_drafts
from engine.publish.media_types import Content
from engine.publish.type_retention import keep_by_type

APP = Principal("t", "app", frozenset(("publish",)), 4_000_000_000)
KEPT = {"post.*": 1000, "post.pinned": 5000, "post.bulk.*": 0}
CATEGORIES = {"news": Category(cap=3, inbox_ms=7)}


def drafts(*items: dict[str, Any]) -> list[Draft]:
    made = parse_drafts(json.dumps(items).encode(), Content("application/json"), APP, Config(), 1000, lambda: "made", CATEGORIES)
    keep_by_type(made, KEPT)
    return made


@pytest.mark.parametrize(
    ("type_", "kept_ms"), [("post.liked", 1000), ("post.pinned", 5000), ("post.bulk.mail", 0), ("post", None), ("posted.x", None)]
)
def test_the_most_specific_entry_holds(type_: str, kept_ms: int | None) -> None:
    (draft,) = drafts({"user": "u", "type": type_})
    assert draft.envelope.policy_terms == (None if kept_ms is None else PolicyTerms(limits=Category(inbox_ms=kept_ms)))


def test_it_takes_precedence_over_the_category_and_leaves_its_other_limits() -> None:
    (draft,) = drafts({"user": "u", "type": "post.liked", "category": "news"})
    assert draft.envelope.policy_terms == PolicyTerms("news", Category(cap=3, inbox_ms=1000))


def test_it_is_for_messages_to_users_which_share_their_envelope_still_and_is_no_part_of_the_payload() -> None:
    first, second, everyone = drafts({"users": ["a", "b"], "type": "post.liked"}, {"broadcast": True, "type": "post.liked"})
    assert first.envelope is second.envelope
    assert everyone.envelope.policy_terms is None
    plain = parse_drafts(b'{"user": "a", "type": "post.liked"}', Content("application/json"), APP, Config(), 1000, lambda: "made")
    assert plain[0].envelope.digest == first.envelope.digest
