"""Reading and changing a user's subscriptions, over HTTP and on a WebSocket.

A token without the claim `topics` may subscribe to any topic of its tenant. With the claim, to the topics it names, and to those
that begin with what stands before a `*` at the end of an entry (`team.*`). An entry without `*` also makes the bearer's connections
members of that topic for as long as they last, without a subscription (`engine.core.commit.broadcast_step`).

What a user is subscribed to is kept by the shard; a later token does not end it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access
from engine.auth.tokens import Principal
from engine.auth.topic_permissions import check_topics, memberships, permits
from engine.core.model.routing import mailbox_key, split_key
from engine.core.wire.records import OK, OVERLOADED, Rejected, Subscribe, Subscribed
from engine.errors import Invalid, Overloaded, Unavailable
from engine.gateway.gateway import Gateway
from engine.gateway.shard_client import ShardClient
from engine.http.description import subscription_paths
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.http.problems import Problem, bad_request, forbidden


async def change(shard_client: ShardClient, key: str, add: Sequence[str] = (), remove: Sequence[str] = ()) -> list[str]:
    """Change a user's subscriptions; with neither `add` nor `remove`, read them. Returns them, sorted.

    Raises:
        Overloaded: there would be too many.
        Unavailable: the shard or its storage did not answer.
    """
    answer = await shard_client.subscribe(key, add, remove)
    if answer.status == OK:
        return answer.topics
    if answer.status == OVERLOADED:
        raise Overloaded("the user is subscribed to as many topics as are allowed")
    raise Unavailable("durable storage did not answer")


def begin_change(
    gateway: Gateway, key: str, add: Sequence[str], remove: Sequence[str], on_result: Callable[[list[str] | str], None]
) -> None:
    """Like `Gateway.check_room`, `check_quota` and `change`, for a frame of a client; without a task of its own, unless the tenant is full.

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


async def check_quota(gateway: Gateway, tenant: str, add: Sequence[str]) -> None:
    """Check that the tenant may have these topics. Raises Problem, 429 or 503."""
    if gateway.tenant_quotas.is_full("topics", tenant):
        await gateway.tenant_quotas.check_topics(tenant, add)


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


def table(access: Access) -> EndpointTable:
    """The endpoints."""

    async def list_subscriptions(request: Request) -> Response:
        """`GET /v1/subscriptions?user=`."""
        principal, key, _ = access.subscriber(request)
        return json_answer(_subscriptions(await change(access.gateway.shard_client, key), principal, key))

    async def subscribe(request: Request) -> Response:
        """`PUT /v1/subscriptions/{topic}?user=`."""
        principal, key, others = access.subscriber(request)
        access.gateway.check_room(principal.tenant)
        topic = named_topic(request)
        if not others and not permits(principal, topic):
            raise forbidden(f"the token does not allow the topic {topic}")
        await check_quota(access.gateway, principal.tenant, [topic])
        return json_answer(_subscriptions(await change(access.gateway.shard_client, key, add=[topic]), principal, key))

    async def unsubscribe(request: Request) -> Response:
        """`DELETE /v1/subscriptions/{topic}?user=`."""
        principal, key, _ = access.subscriber(request)
        topics = await change(access.gateway.shard_client, key, remove=[named_topic(request)])
        return json_answer(_subscriptions(topics, principal, key))

    def named_topic(request: Request) -> str:
        topic: str = request.path_params["topic"]
        try:
            check_topics([topic], access.config.id_chars_max, 1)
        except Invalid as error:
            raise bad_request(f"the topic: {error.detail}") from None
        return topic

    routes = [
        route("/v1/subscriptions", GET=list_subscriptions),
        route("/v1/subscriptions/{topic:rest}", PUT=subscribe, DELETE=unsubscribe),
    ]
    return EndpointTable(routes, subscription_paths)


def _subscriptions(topics: Sequence[str], principal: Principal, key: str) -> dict[str, Any]:
    """A user's topics, and those that the bearer is a member of by its token."""
    own = key == mailbox_key(principal.tenant, principal.user)
    by_token = {"by_token": memberships(principal)} if own and principal.topics is not None else {}
    return {"user": split_key(key)[1], "topics": topics, **by_token}
