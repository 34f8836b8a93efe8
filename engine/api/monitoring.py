"""Health and figures of an engine over HTTP, for orchestrators and collectors."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access
from engine.api.edge_feature import EdgeFeature
from engine.api.exposition import metrics_page
from engine.api.operating import EngineControls
from engine.errors import Unavailable
from engine.http.description import health_paths
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.http.problems import RETRY_AFTER_S, unavailable

_READY_PATIENCE_S: Final = 0.25
"""Probes of orchestrators give up after a second."""


def table(access: Access, controls: EngineControls, features: Sequence[EdgeFeature]) -> EndpointTable:
    """The endpoints."""
    of_features = [feature.metrics for feature in features if feature.metrics is not None]

    async def healthz(_request: Request) -> Response:
        """`GET /healthz`: this process is up."""
        return json_answer({"status": "ok"})

    async def readyz(_request: Request) -> Response:
        """`GET /readyz`: everything this edge needs answers."""
        failing = sorted(name for name, fine in (await controls.ready()).items() if not fine)
        if access.gateway.draining:
            failing.append("edge")
        if failing:
            problem = unavailable(f"not answering: {', '.join(failing)}", RETRY_AFTER_S)
            problem.members["failing"] = failing
            raise problem
        status, degraded = await status_at_once(), set(access.gateway.metrics.reasons())
        if status is not None:
            degraded |= {feature.name for feature in features if feature.is_degraded is not None and feature.is_degraded(status)}
        # None: not known, as without a status. Readiness does not depend on it.
        quarantined = None if status is None else int(status.get("totals", {}).get("quarantined", 0))
        away = access.gateway.storage.stores_away
        answer = {"status": "ready", "quarantined": quarantined, "degraded": sorted(degraded), **access.durability()}
        return json_answer(answer | {"stores_away": away} if away else answer)

    async def status_at_once() -> Mapping[str, Any] | None:
        """The status; None when the controller does not answer at once."""
        try:
            async with asyncio.timeout(_READY_PATIENCE_S):
                return await controls.status()
        except (Unavailable, TimeoutError):
            return None

    async def metrics(request: Request) -> Response:
        """`GET /metrics`: of the whole engine."""
        metrics_page.allow(access.authenticate(request, ""))
        accept = request.headers.get("accept", "")
        text, content_type = await metrics_page.page(access.gateway.metrics, controls.status, accept, of_features)
        return Response(text, 200, {"Content-Type": content_type, "Vary": "accept"})

    routes = [route("/healthz", GET=healthz), route("/readyz", GET=readyz), route("/metrics", GET=metrics)]
    return EndpointTable(routes, health_paths)
