"""Operating an engine over HTTP: its state for operators, and what they change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access, Status
from engine.api.exposition import metrics_page
from engine.api.scaling import COUNT_MAX, numbers_of
from engine.auth import tokens
from engine.gateway.tenant_quotas import quotas_of
from engine.http.description import operate_paths
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.http.problems import conflict, not_found
from engine.store.tenant_usage import TenantUsage

ConnectionsOf = Callable[[str], Awaitable[int]]
Ready = Callable[[], Awaitable[Mapping[str, bool]]]
AskController = Callable[..., Awaitable[Any]]
"""(method of `engine.actors.controller.Controller`, its arguments but the proof) -> the answer. Raises Unavailable."""


class EngineControls(Struct, frozen=True):
    """State and controls of the engine, as one edge reaches them.

    Attributes:
        status: what `GET /v1/status` answers to an operator.
        connections_of: open connections of a tenant, at all edges.
        ready: does each part this edge depends on answer? `{"storage": True, "shard-0": False, ...}`.
        usage: how much each tenant has in storage.
        ask: the controller, to change something.
    """

    status: Status
    connections_of: ConnectionsOf
    ready: Ready
    usage: TenantUsage
    ask: AskController


def table(access: Access, controls: EngineControls) -> EndpointTable:
    """The endpoints."""

    async def status(request: Request) -> Response:
        """`GET /v1/status`: of the engine for an operator, of its tenant for an admin."""
        principal = access.authenticate(request, "")
        if tokens.OPERATOR in principal.scopes:
            return json_answer(metrics_page.without_figures(await controls.status()))
        tokens.require(principal, "admin")
        tenant = principal.tenant
        used = await controls.usage.of(tenant)
        return json_answer(
            {"tenant": tenant, "connections": await controls.connections_of(tenant), **used, "quotas": quotas_of(access.config)}
        )

    async def drain(request: Request) -> Response:
        """`POST /v1/edges/{edge}/drain`."""
        access.authenticate(request, tokens.OPERATOR)
        name = request.path_params["edge"]
        edges = {f"edge-{row['index']}": row["index"] for row in (await controls.status())["edges"]}
        if name not in edges:
            raise not_found(f"there is no such edge; there are {', '.join(edges)}")
        refused, connections = await controls.ask("drain_edge", edges[name])
        if refused:
            raise conflict(refused, type="about:blank")
        return json_answer({"edge": name, "connections": connections}, 202)

    async def scale(request: Request) -> Response:
        """`POST /v1/scale`."""
        principal = access.authenticate(request, tokens.OPERATOR)
        numbers, force = numbers_of(await access.body(request), access.config)
        found = await controls.ask("scale", *map(numbers.get, COUNT_MAX), principal.user, force)
        if "refused" in found:
            raise conflict(found["refused"], type="about:blank", fits=found["fits"])
        request.state.details = {**numbers, "force": force}
        return json_answer(found, 202)

    async def rebalance(request: Request) -> Response:
        """`POST /v1/rebalance`."""
        principal = access.authenticate(request, tokens.OPERATOR)
        return json_answer(await controls.ask("rebalance", principal.user), 202)

    async def upgrade(request: Request) -> Response:
        """`POST /v1/upgrade`."""
        principal = access.authenticate(request, tokens.OPERATOR)
        return json_answer(await controls.ask("upgrade", principal.user), 202)

    routes = [
        route("/v1/status", GET=status),
        route("/v1/edges/{edge}/drain", POST=access.audited("drain_edge", drain)),
        route("/v1/scale", POST=access.audited("scale", scale)),
        route("/v1/rebalance", POST=access.audited("rebalance", rebalance)),
        route("/v1/upgrade", POST=access.audited("upgrade", upgrade)),
    ]
    return EndpointTable(routes, operate_paths)
