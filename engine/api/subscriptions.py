"""Changes a user's subscriptions: for requests, and for frames of clients.

A token without the claim `topics` may subscribe to any topic of its tenant. With the claim, to the topics it names, and to those
that begin with what stands before a `*` at the end of an entry (`team.*`). An entry without `*` also makes the bearer's connections
members of that topic for as long as they last, without a subscription (`engine.core.commit.broadcast_step`).

What a user is subscribed to is kept by the shard; a later token does not end it.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.model.routing import split_key
from engine.core.wire import client_frames
from engine.core.wire.records import OK, OVERLOADED
from engine.errors import Overloaded, StorageUnavailable, Unavailable
from engine.gateway.gateway import Gateway
from engine.http.problems import Problem


class TooManyTopics(Overloaded):
    """The user would be subscribed to more topics than are allowed."""


async def change(gateway: Gateway, key: str, add: Sequence[str] = (), remove: Sequence[str] = ()) -> list[str]:
    """Change a user's subscriptions; with neither `add` nor `remove`, read them. Returns them, sorted.

    Raises:
        Overloaded: there would be too many (TooManyTopics), or storage or a shard has no room.
        Unavailable, StorageUnavailable: the shard or its storage did not answer.
        Problem: 429, a quota of the tenant is used up.
    """
    if add:
        tenant = split_key(key)[0]
        gateway.check_room(tenant)
        if gateway.tenant_quotas.is_full("topics", tenant):
            await gateway.tenant_quotas.check_topics(tenant, add)
    answer = await gateway.shard_client.subscribe(key, add, remove)
    if answer.status == OK:
        return answer.topics
    if answer.status == OVERLOADED:
        raise TooManyTopics("the user is subscribed to as many topics as are allowed")
    raise Unavailable("durable storage did not answer")


async def answer_frame(gateway: Gateway, key: str, add: Sequence[str], remove: Sequence[str]) -> bytes:
    """Change them for a frame of a client; the frame that answers it."""
    try:
        return client_frames.subscribed(await change(gateway, key, add, remove))
    except TooManyTopics:
        code = "too_many_topics"
    except Overloaded:
        code = "overloaded"
    except (Unavailable, StorageUnavailable):
        code = "unavailable"
    except Problem as problem:
        code = "over_quota" if problem.status == 429 else "unavailable"
    return client_frames.error(code, "the subscriptions are unchanged")
