"""Every endpoint of PROTOCOL.md: the list of tables, and the list of features that bring some.

    uvicorn --> CrossOrigin --> Starlette routing --> an endpoint of a table --> Gateway
       +--- plain WebSockets and publish requests: `engine.transports.websocket_handshake`, `engine.api.publish_endpoint` --^

An endpoint authenticates by `Access`, parses, calls the gateway, encodes. Errors are raised as `Problem` (or `Overloaded` or
`Unavailable` by the gateway, `StorageUnavailable` by a store) and become `application/problem+json` in one place; before a WebSocket's
upgrade too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from engine.api import (
    monitoring,
    operating,
    publish_endpoint,
    scheduled,
)
from engine.api.access import Access, check_own_tenant
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.api.operating import EngineControls
from engine.api.publish_endpoint import PublishEndpoint, PublishHead
from engine.auth.tokens import Authenticator
from engine.config import Config
from engine.features.actions import edge_part as actions
from engine.features.audit import endpoints as audit
from engine.features.dead_letters import endpoints as dead_letters
from engine.features.digest import endpoints as digest
from engine.features.event_groups import endpoints as event_groups
from engine.features.growing import endpoints as growing
from engine.features.history import endpoints as history
from engine.features.inbox import endpoints as inbox
from engine.features.inspection import endpoints as inspection
from engine.features.policy import endpoints as policy
from engine.features.questions import endpoints as questions
from engine.features.ray_events import endpoints as ray_events
from engine.features.reach import endpoints as reach
from engine.features.rules import endpoints as rules
from engine.features.signals import endpoints as signals
from engine.features.snooze import endpoints as snooze
from engine.features.sources import edge_part as sources
from engine.features.subscriptions import endpoints as subscriptions
from engine.features.token_revocation import endpoints as token_revocation
from engine.features.traces import edge_part as traces
from engine.features.user_data import endpoints as user_data
from engine.features.windows import edge_part as windows
from engine.gateway.gateway import Gateway
from engine.http import static_files
from engine.http.cors import CrossOrigin
from engine.http.description import publish_paths
from engine.http.description.document import document
from engine.http.endpoint_table import EndpointTable, route
from engine.http.error_responses import handlers
from engine.http.request_body import BodyReader
from engine.transports import receiving
from engine.transports.http_protocol import FastPaths
from engine.transports.kept_heads import KeptHeads
from engine.transports.unread_refusals import UnreadRefusals
from engine.transports.websocket_handshake import PATH, Sockets

FEATURES: Final[Sequence[Callable[[EdgePorts], EdgeFeature]]] = (
    traces.on_edge,
    audit.on_edge,
    token_revocation.on_edge,
    policy.on_edge,
    windows.on_edge,
    rules.on_edge,
    actions.on_edge,
    reach.on_edge,
    signals.on_edge,
    digest.on_edge,
    history.on_edge,
    dead_letters.on_edge,
    event_groups.on_edge,
    inbox.on_edge,
    snooze.on_edge,
    questions.on_edge,
    growing.on_edge,
    subscriptions.on_edge,
    user_data.on_edge,
    inspection.on_edge,
    ray_events.on_edge,
    sources.on_edge,
)
"""The features of an edge, in the order in which they may use each other: a later one may import earlier ones."""


_STATIC: Final = static_files.routes()
"""Made when the module is loaded: forks have them without reading sixty files."""


class EdgeServices(Struct, frozen=True):
    """What the endpoints of one edge call."""

    gateway: Gateway
    authenticator: Authenticator
    config: Config
    controls: EngineControls
    features: Sequence[EdgeFeature]


def app(services: EdgeServices) -> Starlette:
    """The application of one edge. Its `state.fast_paths` are for `engine.transports.http_server.build`."""
    gateway, config = services.gateway, services.config
    access = Access(gateway, services.authenticator, config)
    publisher = PublishEndpoint(gateway, services.authenticator, config)
    sockets = Sockets(gateway, services.authenticator, config)
    tables = [
        _publishing(access, publisher),
        scheduled.table(access),
        receiving.table(access, sockets),
        operating.table(access, services.controls),
        monitoring.table(access, services.controls, services.features),
        *(feature.table(access) for feature in services.features if feature.table is not None),
    ]
    routes = [found for table in tables for found in table.routes]
    routes.sort(key=lambda found: "{" in found.path)  # a path comes before those with a parameter in its place
    application = Starlette(
        routes=[*routes, _described(access, tables), *_STATIC],
        middleware=[Middleware(CrossOrigin, config=config, mail_links={path for table in tables for path in table.mail_links})],
        exception_handlers=handlers(gateway.metrics.refused),
    )
    application.router.redirect_slashes = False
    application.state.fast_paths = FastPaths(
        sockets.open,
        publisher,
        KeptHeads(config.publish_heads_max),
        UnreadRefusals(PATH, gateway.refuse_unread, gateway.metrics.refused),
        gateway.metrics.refused,
    )
    return application


def _publishing(access: Access, publisher: PublishEndpoint) -> EndpointTable:
    return EndpointTable([Route(publish_endpoint.PATH, _Publish(publisher, access.bodies), methods=["POST"])], publish_paths)


def _described(access: Access, tables: Sequence[EndpointTable]) -> Route:
    """`GET /openapi.json`: built once for each set of categories, whose names only the bearer of a token learns."""
    made: dict[tuple[str, ...], bytes] = {}

    async def openapi(request: Request) -> Response:
        names = tuple(sorted(access.gateway.category_book.in_use("").categories)) if access.is_known(request) else ()
        if names not in made:
            for old in made.keys() - {()}:
                del made[old]
            made[names] = msgspec.json.encode(document(access.config, names, [table.description for table in tables]))
        return Response(made[names], 200, {"Vary": "authorization, cookie"}, "application/json")

    return route("/openapi.json", GET=openapi)


class _Publish:
    """`POST /v1/notifications`, as a plain ASGI application."""

    def __init__(self, publisher: PublishEndpoint, bodies: BodyReader) -> None:
        self._publisher = publisher
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Authenticate, read, publish, answer."""
        head = PublishHead.of(scope["headers"], scope["query_string"])
        principal = self._publisher.admit(head)
        check_own_tenant(principal, QueryParams(scope["query_string"]))
        self._publisher.check_unread(head)
        body = await self._bodies.read(scope, receive)
        answer = await self._publisher.publish(body, head.content, principal)
        headers = publish_endpoint.headers(answer)
        await send({"type": "http.response.start", "status": 202, "headers": headers})
        await send({"type": "http.response.body", "body": answer, "more_body": False})
