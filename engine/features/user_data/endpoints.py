"""`/v1/users/{user}`: the report of a user, the export of everything that is kept of it, and its erasure."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from engine.api.access import Access, check_own_tenant
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.core.model.names import is_user
from engine.core.model.routing import mailbox_key, split_key
from engine.features.user_data import description
from engine.features.user_data.erasure import erase_user
from engine.features.user_data.user_export import FindEntries, UserExport
from engine.features.user_data.user_reports import report
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.http.problems import not_found
from engine.store.pending_bodies import PendingBodies
from engine.store.user_entries import find_user_entries


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    return feature_of(ports, PendingBodies(*ports.stores), partial(find_user_entries, ports.redis))


def feature_of(ports: EdgePorts, bodies: PendingBodies, find_entries: FindEntries) -> EdgeFeature:
    """The feature, with this storage."""
    user_export = UserExport(ports.gateway, bodies, find_entries)
    return EdgeFeature("user_data", lambda access: table(access, bodies, user_export))


def table(access: Access, bodies: PendingBodies, user_export: UserExport) -> EndpointTable:
    """The endpoints."""

    async def user_report(request: Request) -> Response:
        """`GET /v1/users/{user}?tenant=`: where a user is, what waits for it, and what was decided about it."""
        return json_answer(await report(access.gateway.shard_client, bodies, key_of(request)))

    def key_of(request: Request) -> str:
        """The mailbox key of a user whom the bearer may look at."""
        return key_in(access.tenant_of(request), request)

    def key_in(tenant: str, request: Request) -> str:
        user: str = request.path_params["user"]
        if not is_user(user, access.config.id_chars_max):
            raise not_found("no user has this name")
        return mailbox_key(tenant, user)

    async def export(request: Request) -> Response:
        """`GET /v1/users/{user}/export?tenant=`. The first piece is read before the answer begins, so it may still be an error."""
        key = key_of(request)
        request.state.details = {"tenant": split_key(key)[0]}
        pieces = user_export.pieces(key)
        first = await anext(pieces)

        async def content() -> AsyncIterator[bytes]:
            yield first
            async for piece in pieces:
                yield piece

        return StreamingResponse(content(), 200, {"Cache-Control": "no-store"}, "application/json")

    async def erase(request: Request) -> Response:
        """`DELETE /v1/users/{user}`."""
        principal = access.authenticate(request, "admin")
        check_own_tenant(principal, request.query_params)
        key = key_in(principal.tenant, request)
        await erase_user(access.gateway, key, access.config.publish_timeout_ms)
        return Response(status_code=204)

    routes = [
        route("/v1/users/{user:segment}", GET=user_report, DELETE=access.audited("erase_user", erase)),
        route("/v1/users/{user:segment}/export", GET=access.audited("export_user", export)),
    ]
    return EndpointTable(routes, description)
