"""Which topics a bearer may subscribe to, and for which users."""

from __future__ import annotations

from collections.abc import Sequence

from engine.auth.tokens import Principal
from engine.core.model.names import is_topic
from engine.core.model.routing import mailbox_key
from engine.errors import Invalid
from engine.http.problems import forbidden

OTHERS_SCOPES = frozenset(("publish", "admin"))
"""With one of these scopes a token may manage the subscriptions of other users, whatever its `topics`."""


def memberships(principal: Principal) -> tuple[str, ...]:
    """The topics whose members the bearer's connections are by the token: those in it without `*`."""
    return tuple(sorted(topic for topic in principal.topics or () if not topic.endswith("*")))


def permits(principal: Principal, topic: str) -> bool:
    """May the bearer subscribe to this topic?"""
    topics = principal.topics
    if topics is None or topic in topics:
        return True
    return any(entry.endswith("*") and topic.startswith(entry[:-1]) for entry in topics)


def check_topics(topics: Sequence[str], chars_max: int, count_max: int) -> None:
    """Check names of topics.

    Raises:
        Invalid: there is none, there are more than `count_max`, or one is not a name of at most `chars_max` characters.
    """
    if not 0 < len(topics) <= count_max:
        raise Invalid(f"1 to {count_max} topics are needed", "$.topics")
    for index, topic in enumerate(topics):
        if not is_topic(topic, chars_max):
            raise Invalid(f"printable text of 1 to {chars_max} characters without spaces and *", f"$.topics[{index}]")


def mailbox_of(principal: Principal, user: str | None) -> tuple[str, bool]:
    """The mailbox key that a request concerns, and whether it is given explicitly, which may be another user's.

    Args:
        user: the user that the request names, if any.

    Raises:
        Problem: 403, the bearer may not act for other users.
    """
    if user is None:
        return mailbox_key(principal.tenant, principal.user), False
    if not principal.scopes & OTHERS_SCOPES:
        raise forbidden("only with the scope `publish` or `admin` may `user` be given", scope="publish")
    return mailbox_key(principal.tenant, user), True
