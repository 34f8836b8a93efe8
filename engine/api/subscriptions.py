"""Changing a user's subscriptions by a frame of a client.

A token without the claim `topics` may subscribe to any topic of its tenant. With the claim, to the topics it names, and to those
that begin with what stands before a `*` at the end of an entry (`team.*`). An entry without `*` also makes the bearer's connections
members of that topic for as long as they last, without a subscription (`engine.core.commit.broadcast_step`).

What a user is subscribed to is kept by the shard; a later token does not end it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.core.model.routing import split_key
from engine.core.wire.records import OK, OVERLOADED, Rejected, Subscribe, Subscribed
from engine.errors import Overloaded, Unavailable
from engine.gateway.gateway import Gateway
from engine.gateway.shard_client import ShardClient
from engine.http.problems import Problem


def begin_change(
    gateway: Gateway, key: str, add: Sequence[str], remove: Sequence[str], on_result: Callable[[list[str] | str], None]
) -> None:
    """Check room and quota and change, for a frame of a client; without a task of its own, unless the tenant is full.

    Args:
        on_result: called once, with the subscriptions or with an error code.
    """
    tenant, quotas = split_key(key)[0], gateway.tenant_quotas
    try:
        if add:
            gateway.check_room(tenant)
    except Overloaded:
        on_result("overloaded")
        return
    except Problem:
        on_result("over_quota")
        return
    if not add or not quotas.is_full("topics", tenant):
        _begin_change(gateway.shard_client, key, add, remove, on_result)
        return

    def checked(code: str) -> None:
        if code:
            on_result(code)
        else:
            _begin_change(gateway.shard_client, key, add, remove, on_result)

    quotas.begin_check(tenant, add, checked)


def _begin_change(
    shard_client: ShardClient, key: str, add: Sequence[str], remove: Sequence[str], on_result: Callable[[list[str] | str], None]
) -> None:

    def answered(answer: Subscribed | Rejected | None) -> None:
        overloaded = answer is not None and answer.status == OVERLOADED
        if isinstance(answer, Subscribed) and answer.status == OK:
            on_result(answer.topics)
        elif isinstance(answer, Subscribed) and overloaded:
            on_result("too_many_topics")
        else:
            on_result("overloaded" if overloaded else "unavailable")

    try:
        shard_client.send_request(lambda ref: Subscribe(ref, key, list(add), list(remove)), answered)
    except Overloaded:
        on_result("overloaded")
    except Unavailable:
        on_result("unavailable")
