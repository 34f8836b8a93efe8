"""`/v1/subscriptions`: read and change a user's subscriptions. `/v1/topics`: the topics of a tenant.

Frames of clients change them too; both go by `engine.api.subscriptions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.api.subscriptions import change
from engine.auth.tokens import Principal
from engine.auth.topic_permissions import check_topics, memberships, permits
from engine.core.model.routing import mailbox_key, split_key
from engine.errors import Invalid
from engine.features.subscriptions import description
from engine.features.subscriptions.topic_subscribers import TopicSubscribers
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.http.problems import bad_request, forbidden


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    return EdgeFeature("subscriptions", lambda access: table(access, TopicSubscribers(*ports.stores)))


async def topic_page(store: TopicSubscribers, tenant: str, query: QueryParams, rows_max: int) -> dict[str, Any]:
    """Topics with their numbers of subscribers, most first within the page. Raises Problem: 400, or 503."""
    if "after" in query and not query["after"]:
        raise bad_request("`after`: what the page before answered as `after`")
    try:
        counts, after, total = await store.page(tenant, query.get("after", ""), rows_max)
    except Invalid as error:
        raise bad_request(f"`{error.path}`: {error.detail}") from None
    rows = [{"topic": topic, "subscribers": users} for topic, users in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    return {"tenant": tenant, "total": total, "topics": rows, **({"after": after} if after else {})}


def table(access: Access, topics_of_tenants: TopicSubscribers) -> EndpointTable:
    """The endpoints."""

    async def list_subscriptions(request: Request) -> Response:
        """`GET /v1/subscriptions?user=`."""
        principal, key, _ = access.subscriber(request)
        return json_answer(_subscriptions(await change(access.gateway, key), principal, key))

    async def subscribe(request: Request) -> Response:
        """`PUT /v1/subscriptions/{topic}?user=`."""
        principal, key, others = access.subscriber(request)
        topic = named_topic(request)
        if not others and not permits(principal, topic):
            raise forbidden(f"the token does not allow the topic {topic}")
        return json_answer(_subscriptions(await change(access.gateway, key, add=[topic]), principal, key))

    async def unsubscribe(request: Request) -> Response:
        """`DELETE /v1/subscriptions/{topic}?user=`."""
        principal, key, _ = access.subscriber(request)
        topics = await change(access.gateway, key, remove=[named_topic(request)])
        return json_answer(_subscriptions(topics, principal, key))

    async def topics(request: Request) -> Response:
        """`GET /v1/topics?tenant=&after=`."""
        tenant, rows_max = access.tenant_of(request), access.config.operator_rows_max
        return json_answer(await topic_page(topics_of_tenants, tenant, request.query_params, rows_max))

    def named_topic(request: Request) -> str:
        topic: str = request.path_params["topic"]
        try:
            check_topics([topic], access.config.id_chars_max, 1)
        except Invalid as error:
            raise bad_request(f"the topic: {error.detail}") from None
        return topic

    routes = [
        route("/v1/topics", GET=topics),
        route("/v1/subscriptions", GET=list_subscriptions),
        route("/v1/subscriptions/{topic:rest}", PUT=subscribe, DELETE=unsubscribe),
    ]
    return EndpointTable(routes, description)


def _subscriptions(topics: Sequence[str], principal: Principal, key: str) -> dict[str, Any]:
    """A user's topics, and those that the bearer is a member of by its token."""
    own = key == mailbox_key(principal.tenant, principal.user)
    by_token = {"by_token": memberships(principal)} if own and principal.topics is not None else {}
    return {"user": split_key(key)[1], "topics": topics, **by_token}
