"""What an operator looks at beside the status: the load of the last hour, tenants, quarantined records, slow clients.

Read-only, and bounded: each answer has at most `operator_rows_max` rows. Edges ask storage, and for the slow clients the controller, which
asks the shards.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.api.access import Access
from engine.api.edge_feature import EdgeFeature, EdgePorts, SlowClients
from engine.auth import tokens
from engine.config import Config
from engine.core.model.routing import split_key
from engine.core.shard.slow_connections import SlowConnection
from engine.features.inspection import description
from engine.features.inspection.core import POINT_MS, POINTS_MAX
from engine.features.inspection.load_history import LoadHistory
from engine.features.inspection.store import Quarantine
from engine.features.user_data.user_reports import connection_json
from engine.gateway.tenant_quotas import quotas_of
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.store.tenant_usage import TenantUsage


class Inspection:
    """The figures, on one edge. Every method raises Problem, 503, when what it asks does not answer."""

    def __init__(
        self,
        config: Config,
        points: LoadHistory,
        tenants: TenantUsage,
        quarantine: Quarantine,
        slow_clients: SlowClients,
    ) -> None:
        self._config = config
        self._points = points
        self._tenants = tenants
        self._quarantine = quarantine
        self._slow_clients = slow_clients

    async def load(self) -> dict[str, Any]:
        """`GET /v1/load`: a point every few seconds, of an hour, the oldest first."""
        points = await self._points.read()
        return {"every_ms": POINT_MS, "points": [Raw(point) for point in points]}

    async def tenants(self) -> dict[str, Any]:
        """`GET /v1/tenants`: what the largest have in storage, and the quotas."""
        found = await self._tenants.largest(self._config.operator_rows_max)
        rows = [{"tenant": tenant, **figures} for tenant, figures in found.items()]
        return {"tenants": rows, "quotas": quotas_of(self._config)}

    async def quarantine(self) -> dict[str, Any]:
        """`GET /v1/quarantine`: stored records that could not be read, the newest first."""
        records, total = await self._quarantine.newest(self._config.operator_rows_max)
        return {"total": total, "records": [msgspec.structs.asdict(record) for record in records]}

    async def slow_clients(self) -> dict[str, Any]:
        """`GET /v1/slow-clients`: connections whose clients do not acknowledge, the worst first. Raises Unavailable."""
        found = await self._slow_clients(self._config.operator_rows_max)
        return {"slow_ms": self._config.slow_client_ms, "clients": [_slow_client(one) for one in found]}


def _slow_client(found: SlowConnection) -> dict[str, Any]:
    tenant, user = split_key(found.key)
    return {"tenant": tenant, "user": user, "behind": found.behind, **connection_json(found.state)}


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    points = LoadHistory(ports.redis, POINTS_MAX)
    usage, quarantine = TenantUsage(*ports.stores), Quarantine(*ports.stores)
    inspection = Inspection(ports.config, points, usage, quarantine, ports.slow_clients)
    return EdgeFeature("inspection", lambda access: table(access, inspection))


def table(access: Access, inspection: Inspection) -> EndpointTable:
    """The endpoints."""

    def listing(path: str, find: Callable[[], Awaitable[dict[str, Any]]]) -> Route:
        async def answer(request: Request) -> Response:
            access.authenticate(request, tokens.OPERATOR)
            return json_answer(await find())

        return route(path, GET=answer)

    routes = [
        listing("/v1/load", inspection.load),
        listing("/v1/tenants", inspection.tenants),
        listing("/v1/quarantine", inspection.quarantine),
        listing("/v1/slow-clients", inspection.slow_clients),
    ]
    return EndpointTable(routes, description)
