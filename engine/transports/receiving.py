"""Receiving over HTTP: the three transports, acknowledgements and presence."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from engine.api.access import Access
from engine.api.ack_and_patch import parse_ack, parse_nack
from engine.core.model.constants import SEQ_MAX
from engine.core.model.routing import mailbox_key
from engine.core.shard.presence import OFFLINE
from engine.gateway.connection import parse_cursor, wants_counts
from engine.http.description import receive_paths
from engine.http.endpoint_table import EndpointTable, json_answer, route, without_head
from engine.http.problems import Problem, bad_request
from engine.transports.long_poll import Poll
from engine.transports.sse import EventStream
from engine.transports.websocket_handshake import PATH, SUBPROTOCOL, Sockets, wants_digest
from engine.transports.websocket_transport import EXTENSION


def table(access: Access, sockets: Sockets) -> EndpointTable:
    """The endpoints."""

    async def acknowledge(request: Request) -> Response:
        """`POST /v1/ack`."""
        principal = access.authenticate(request, "connect")
        body = await access.body(request)
        seq, ids, client_ms, epoch = parse_ack(body, access.config)
        error = await access.gateway.shard_client.settle(mailbox_key(principal.tenant, principal.user), seq, ids, client_ms, epoch)
        if error:
            raise Problem(409, error)
        return json_answer({"acknowledged": True})

    async def refuse(request: Request) -> Response:
        """`POST /v1/nack`."""
        principal = access.authenticate(request, "connect")
        body = await access.body(request)
        ids, reason = parse_nack(body, access.config)
        await access.gateway.refuse(mailbox_key(principal.tenant, principal.user), ids, reason)
        return json_answer({"nacked": True})

    async def heartbeat(request: Request) -> Response:
        """`GET /v1/heartbeat`: the user's presence; a suspect user's client is expected for longer."""
        principal = access.authenticate(request, "connect")
        client = request.headers.get("x-client-id", "")[: access.config.id_chars_max]
        last = request.headers.get("x-last-seq", "0")
        if not (last.isascii() and last.isdigit() and len(last) <= 18 and int(last) <= SEQ_MAX):
            raise bad_request(f"X-Last-Seq: a sequence number is needed, 0 to {SEQ_MAX}")
        probed = await access.gateway.shard_client.probe(mailbox_key(principal.tenant, principal.user), client, int(last))
        return json_answer({"online": probed.state != OFFLINE, "state": probed.state, "seq": probed.seq})

    async def open_websocket(websocket: WebSocket) -> None:
        """A WebSocket that the fast path did not take. The accepted connection outlives this call."""
        scope = websocket.scope
        connection = sockets.open(scope["headers"], scope["query_string"], scope["subprotocols"])
        subprotocol = SUBPROTOCOL if SUBPROTOCOL in scope["subprotocols"] else None
        await websocket.accept(subprotocol)
        scope["extensions"][EXTENSION]["protocol"].take_over(connection)

    async def poll(request: Request) -> Response:
        """`GET /v1/poll`."""
        principal = access.authenticate(request, "connect")
        access.gateway.require_capacity()
        cursor = parse_cursor(_cursor_text(request))
        wait_s = access.wait_s(request)
        poll = Poll(access.gateway, principal, cursor, access.device(request))
        return Response(await poll.run(request.receive, wait_s), 200, {"Cache-Control": "no-store"}, "application/json")

    routes: list[Route | WebSocketRoute] = [
        route("/v1/ack", POST=acknowledge),
        route("/v1/nack", POST=refuse),
        route("/v1/heartbeat", GET=heartbeat),
        WebSocketRoute(PATH, open_websocket),
        without_head(Route(PATH, upgrade_required, methods=["GET"])),
        without_head(Route("/v1/sse", _Sse(access), methods=["GET"])),
        without_head(route("/v1/poll", GET=poll)),
    ]
    return EndpointTable(routes, receive_paths)


class _Sse:
    """`GET /v1/sse`."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        access = self._access
        request = Request(scope)
        principal = access.authenticate(request, "connect")
        access.gateway.admit(mailbox_key(principal.tenant, principal.user))
        cursor = parse_cursor(_cursor_text(request))
        explicit = request.query_params.get("ack") == "explicit"
        stream = EventStream(access.gateway, principal, cursor, access.device(request), explicit=explicit)
        stream.wants_digest = wants_digest(scope["query_string"])
        stream.wants_counts = wants_counts(scope["query_string"])
        await stream.run(scope, receive, send)


async def upgrade_required(_request: Request) -> Response:
    """The answer to a plain GET of a WebSocket's path."""
    raise Problem(426, "this is a WebSocket endpoint", headers={"Upgrade": "websocket", "Connection": "Upgrade"})


def _cursor_text(request: Request) -> str:
    # EventSource repeats its URL on every reconnect, with the header beside it: the header is the newer one.
    return request.headers.get("last-event-id") or request.query_params.get("last_event_id", "")
