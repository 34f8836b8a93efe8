"""`/v1/users/{user}`: the report of a user, and the user's erasure."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.core.model.names import is_user
from engine.core.model.routing import mailbox_key
from engine.features.user_data import description
from engine.features.user_data.erasure import erase_user
from engine.features.user_data.user_reports import report
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.http.problems import not_found
from engine.store.pending_bodies import BodyStore, PendingBodies


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    return EdgeFeature("user_data", lambda access: table(access, PendingBodies(*ports.servers)))


def table(access: Access, bodies: BodyStore) -> EndpointTable:
    """The endpoints."""

    async def user_report(request: Request) -> Response:
        """`GET /v1/users/{user}?tenant=`: where a user is, what waits for it, and what was decided about it."""
        tenant, user = access.tenant_of(request), request.path_params["user"]
        if not is_user(user, access.config.id_chars_max):
            raise not_found("no user has this name")
        return json_answer(await report(access.gateway.shard_client, bodies, mailbox_key(tenant, user), access.config))

    async def erase(request: Request) -> Response:
        """`DELETE /v1/users/{user}`."""
        principal = access.authenticate(request, "admin")
        user: str = request.path_params["user"]
        if not is_user(user, access.config.id_chars_max):
            raise not_found("no user has this name")
        key = mailbox_key(principal.tenant, user)
        await erase_user(access.gateway.shard_client, key, access.config.publish_timeout_ms, access.gateway.clock)
        return Response(status_code=204)

    return EndpointTable([route("/v1/users/{user:segment}", GET=user_report, DELETE=erase)], description)
