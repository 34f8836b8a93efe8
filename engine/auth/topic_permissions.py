"""Which topics a bearer may subscribe to, and on whose behalf."""

from __future__ import annotations

from collections.abc import Sequence

from engine.auth.tokens import Principal
from engine.core.model.names import is_topic
from engine.core.model.routing import mailbox_key
from engine.errors import Invalid
from engine.http.problems import forbidden

OTHERS_SCOPES = frozenset(("publish", "admin"))
"""With one of these a token may look after other users' subscriptions, without regard to its `topics`."""


def memberships(principal: Principal) -> tuple[str, ...]:
    """The topics that the bearer's connections are members of."""
    return tuple(sorted(topic for topic in principal.topics or () if not topic.endswith("*")))


def permits(principal: Principal, topic: str) -> bool:
    """May the bearer subscribe to this topic?"""
    topics = principal.topics
    if topics is None or topic in topics:
        return True
    return any(entry.endswith("*") and topic.startswith(entry[:-1]) for entry in topics)


def check_topics(topics: Sequence[str], chars_max: int, count_max: int) -> None:
    """Are these names of topics, and not too many? Raises Invalid."""
    if not 0 < len(topics) <= count_max:
        raise Invalid(f"1 to {count_max} topics are needed", "$.topics")
    for index, topic in enumerate(topics):
        if not is_topic(topic, chars_max):
            raise Invalid(f"printable text of 1 to {chars_max} characters without spaces and *", f"$.topics[{index}]")


def whose(principal: Principal, user: str | None) -> tuple[str, bool]:
    """The mailbox key that a request of the bearer is about, and whether it is another's than its own.

    Args:
        user: who it names, if it does.

    Raises:
        Problem: 403, when the bearer may not look after others.
    """
    if user is None:
        return mailbox_key(principal.tenant, principal.user), False
    if not principal.scopes & OTHERS_SCOPES:
        raise forbidden("only with the scope `publish` or `admin` may `user` be given", scope="publish")
    return mailbox_key(principal.tenant, user), True
