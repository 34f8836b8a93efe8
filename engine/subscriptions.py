"""Subscriptions at the edge: who may, and how they are asked for over HTTP and on a WebSocket.

A token without the claim `topics` may subscribe to any topic of its tenant. With the claim, to the topics it names, and to those
that begin with what stands before a `*` at the end of an entry (`team.*`). An entry without `*` also makes the bearer's connections
members of that topic for as long as they last, without a subscription (`engine.core.adoption`).

What a user is subscribed to is kept by the shard; a later token does not end it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.auth import Principal
from engine.core.asking import Subscribe, Subscribed
from engine.core.batch import OK, OVERLOADED
from engine.core.identity import is_topic
from engine.core.slots import mailbox_key
from engine.errors import Invalid, Overloaded, Unavailable
from engine.problems import forbidden
from engine.requests import Requests

OTHERS_SCOPES = frozenset(("publish", "admin"))
"""With one of these a token may look after other users' subscriptions, without regard to its `topics`."""


def permits(principal: Principal, topic: str) -> bool:
    """May the bearer subscribe to this topic?"""
    topics = principal.topics
    if topics is None or topic in topics:
        return True
    return any(entry.endswith("*") and topic.startswith(entry[:-1]) for entry in topics)


def memberships(principal: Principal) -> tuple[str, ...]:
    """The topics that the bearer's connections are members of."""
    return tuple(sorted(topic for topic in principal.topics or () if not topic.endswith("*")))


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


async def change(requests: Requests, key: str, add: Sequence[str] = (), remove: Sequence[str] = ()) -> list[str]:
    """Change a user's subscriptions; with neither, look at them. Returns them, sorted.

    Raises:
        Overloaded: there would be too many.
        Unavailable: the shard or its storage did not answer.
    """
    answer = await requests.subscribe(key, add, remove)
    if answer.status == OK:
        return answer.topics
    if answer.status == OVERLOADED:
        raise Overloaded("the user is subscribed to as many topics as are allowed")
    raise Unavailable("durable storage did not answer")


def ask(requests: Requests, key: str, add: Sequence[str], remove: Sequence[str], told: Callable[[list[str] | str], None]) -> None:
    """The same without a task of its own, for a frame of a client.

    Args:
        told: is called once, with the subscriptions or with the code of an error.
    """

    def answered(answer: Subscribed | None) -> None:
        if answer is not None and answer.status == OK:
            told(answer.topics)
        else:
            told("too_many_topics" if answer is not None and answer.status == OVERLOADED else "unavailable")

    try:
        requests.ask_soon(lambda ref: Subscribe(ref, key, list(add), list(remove)), answered)
    except Overloaded:
        told("overloaded")
