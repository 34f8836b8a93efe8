"""The endpoints of the inbox. The feature on an edge."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.config import Config
from engine.features.inbox import description
from engine.features.inbox.inboxes import kept_rows, mark, parse_query, read
from engine.gateway.gateway import Gateway
from engine.http.endpoint_table import EndpointTable, json_answer, route


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    return feature_of(ports.config, ports.gateway)


def feature_of(config: Config, gateway: Gateway) -> EdgeFeature:
    """The feature of this gateway."""
    gateway.kept_of_user["inbox"] = partial(kept_rows, gateway.shard_client, config)
    return EdgeFeature("inbox", table)


def table(access: Access) -> EndpointTable:
    """The endpoints."""

    async def inbox(request: Request) -> Response:
        """`GET /v1/inbox?before=&limit=&unread=&archived=&type=&q=&user=`."""
        _, key, _ = access.subscriber(request)
        query = parse_query(request.query_params, access.config)
        body = await read(access.gateway.shard_client, key, query, access.config)
        return Response(body, 200, {"Cache-Control": "no-store"}, "application/json")

    async def mark_inbox(request: Request) -> Response:
        """`POST /v1/inbox/{mark}?user=`."""
        _, key, _ = access.subscriber(request)
        body = await access.body(request)
        return json_answer(await mark(access.gateway.shard_client, key, request.path_params["mark"], body, access.config))

    routes = [
        route("/v1/inbox", GET=inbox),
        route("/v1/inbox/{mark}", POST=mark_inbox),
    ]
    return EndpointTable(routes, description)
