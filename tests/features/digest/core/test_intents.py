"""Which intent a message has by rules."""

from __future__ import annotations

import pytest

from engine.features.digest.core.intents import intent_of, template_of
from engine.features.digest.core.missed import Missed


def missed(type: str, **members: object) -> Missed:
    return Missed(id="m", type=type, at_ms=0, **members)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("type", "members", "verb", "thing", "subject"),
    [
        ("post.liked", {"target": "post:1"}, "liked", "", "post:1"),
        ("forum.post.upvoted", {"target": "post:1"}, "liked", "", "post:1"),
        ("user.followed", {}, "followed", "", ""),
        ("github.issue_comment.created", {"target": "issue:1"}, "commented", "", "issue:1"),
        ("github.pull_request_review_comment.created", {"target": "pr:1"}, "reviewed", "", "pr:1"),
        ("github.fork", {"target": "repository:a"}, "forked", "", "repository:a"),
        ("github.star.deleted", {"target": "repository:a"}, "unstarred", "", "repository:a"),
        ("order.shipped", {"target": "order:17"}, "changed", "order", "order:17"),
        ("build.failed", {"target": "build:1", "scope": "main", "place": "a"}, "failed", "build", "a@main"),
        ("github.check_run.completed", {"target": "run:1", "scope": "main", "place": "a", "state": "failure"}, "failed", "build", "a@main"),
        (
            "github.check_run.completed",
            {"target": "run:1", "scope": "main", "place": "a", "state": "success"},
            "changed",
            "build",
            "a@main",
        ),
        ("message.received", {"actors": ("ana",)}, "wrote", "message", "ana"),
    ],
)
def test_what_the_publisher_says_decides(type: str, members: dict[str, object], verb: str, thing: str, subject: str) -> None:
    intent = intent_of(missed(type, **members))
    assert intent is not None
    assert (intent.verb, intent.thing, intent.subject) == (verb, thing, subject)


@pytest.mark.parametrize("type", ["notice", "post.liked", "alert.raised", "backup.failed"])
def test_without_a_target_the_rules_leave_a_message_to_the_model(type: str) -> None:
    assert intent_of(missed(type, text="The lift is broken")) is None


def test_texts_of_one_template_differ_in_numbers_and_quoted_names_only() -> None:
    first = template_of(missed("notice", text="Order 17 of “Roses” is on its way"))
    assert first == template_of(missed("notice", text="Order 204 of “Night train” is on its way"))
    assert first != template_of(missed("notice", text="Order 17 of “Roses” was cancelled"))
    assert template_of(missed("notice", text="17")) == ""
    assert template_of(missed("notice", text="Nothing varies here")) == ""
