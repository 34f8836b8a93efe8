"""Every endpoint of PROTOCOL.md, one short function each.

    uvicorn --> CrossOrigin --> Starlette routing --> an endpoint here --> Gateway
       +--- plain WebSockets and publish requests: `engine.transports.websocket_handshake`, `engine.api.publish_endpoint` --^

An endpoint authenticates, parses, calls the gateway, encodes. Errors are raised as `Problem` (or `Overloaded` or
`Unavailable` by the gateway) and becomes `application/problem+json` in one place; before a WebSocket's upgrade too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from engine.api import (
    ack_and_patch,
    erasure,
    explanations,
    inboxes,
    profiles,
    publish_endpoint,
    scaling,
    scheduled,
    subscriptions,
    unsubscribing,
    user_reports,
)
from engine.api.access import Access, tenant_named
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.api.event_frames import EventFrames
from engine.api.events import Arrivals, EventEndpoint
from engine.api.exposition import metrics_page
from engine.api.inspection import Inspection
from engine.api.message_links import MessageLinks
from engine.api.profiles import Preferences
from engine.api.publish_endpoint import PublishEndpoint, PublishHead
from engine.api.rules_endpoint import RulesEndpoint
from engine.api.token_revocation import TokenRevocations
from engine.api.unsubscribing import LinkKey, RememberedKey, Unsubscribing
from engine.api.user_reports import BodyStore
from engine.auth import tokens
from engine.auth.tokens import Authenticator, Principal
from engine.auth.topic_permissions import check_topics, memberships, permits
from engine.config import Config
from engine.core.model.constants import SEQ_MAX
from engine.core.model.names import is_id, is_user
from engine.core.model.routing import mailbox_key, split_key
from engine.core.shard.presence import OFFLINE
from engine.errors import Invalid, StorageUnavailable, Unavailable
from engine.features.actions import edge_part as actions
from engine.features.dead_letters import endpoints as dead_letters
from engine.features.digest import endpoints as digest
from engine.features.event_groups import endpoints as event_groups
from engine.features.history import endpoints as history
from engine.features.signals import endpoints as signals
from engine.gateway.connection import parse_cursor, wants_counts
from engine.gateway.gateway import Gateway
from engine.gateway.tenant_quotas import UsageStore, quotas_of
from engine.http import static_files
from engine.http.cors import CrossOrigin
from engine.http.description.document import document
from engine.http.endpoint_table import EndpointTable, json_answer, route, tagged_answer, without_head
from engine.http.error_responses import handlers
from engine.http.problems import RETRY_AFTER_S, Problem, bad_request, conflict, forbidden, not_found, unavailable
from engine.http.request_body import read_body
from engine.publish.media_types import Content
from engine.publish.request_trace import RequestTrace
from engine.transports.http_protocol import FastPaths
from engine.transports.kept_heads import KeptHeads
from engine.transports.long_poll import Poll
from engine.transports.sse import EventStream
from engine.transports.unread_refusals import UnreadRefusals
from engine.transports.websocket_handshake import PATH, PATHS, SUBPROTOCOL, Sockets, wants_digest
from engine.transports.websocket_transport import EXTENSION

_READY_PATIENCE_S: Final = 0.25
"""Probes of orchestrators give up after a second."""


Status = Callable[[], Awaitable[Mapping[str, Any]]]
ConnectionsOf = Callable[[str], Awaitable[int]]
Ready = Callable[[], Awaitable[Mapping[str, bool]]]
DrainEdge = Callable[[int], Awaitable[tuple[str, int]]]
Scale = Callable[[Mapping[str, int], str, bool], Awaitable[Mapping[str, Any]]]
Rebalance = Callable[[str], Awaitable[Mapping[str, Any]]]


_encode: Final = msgspec.json.Encoder().encode


FEATURES: Final[Sequence[Callable[[EdgePorts], EdgeFeature]]] = (
    actions.on_edge,
    signals.on_edge,
    digest.on_edge,
    history.on_edge,
    dead_letters.on_edge,
    event_groups.on_edge,
)
"""The features of an edge, in the order in which they may use each other: a later one may import earlier ones."""


class EdgeServices(Struct, frozen=True):
    """What the endpoints of one edge call.

    Attributes:
        gateway: its state.
        authenticator: checks tokens.
        config: the engine's settings.
        status: what `GET /v1/status` answers to an operator.
        connections_of: open connections of a tenant, at all edges.
        ready: does each part this edge depends on answer? `{"storage": True, "shard-0": False, ...}`.
        revocations: of tokens.
        usage: how much each tenant has in storage.
        drain_edge: lets the edge of this index leave its clients to the others; why it is refused, "" when not, and its connections.
        scale: lets the engine have these numbers of actors, by `shards`, `schedulers`, `edges`, for this operator, and by
            force also more than the nodes carry; `scaling` of the status, or `refused` and `fits`.
        rebalance: lets it move slots by load, for this operator; likewise.
        upgrade: lets it replace every process, for this operator; likewise.
        arrivals: of events without an id.
        bodies: of pending messages in storage.
        inspection: what operators look at beside the status.
        rules: those in force, and their versions.
        link_key: signs unsubscribe links.
        features: those of this edge.
    """

    gateway: Gateway
    authenticator: Authenticator
    config: Config
    status: Status
    connections_of: ConnectionsOf
    ready: Ready
    revocations: TokenRevocations
    usage: UsageStore
    drain_edge: DrainEdge
    scale: Scale
    rebalance: Rebalance
    upgrade: Rebalance
    arrivals: Arrivals
    bodies: BodyStore
    inspection: Inspection
    rules: RulesEndpoint
    link_key: LinkKey
    features: Sequence[EdgeFeature]


def app(services: EdgeServices) -> Starlette:
    """The application of one edge. Its `state.fast_paths` are for `engine.transports.http_server.build`."""
    access = Access(services.gateway, services.authenticator, services.config)
    tables = [feature.table(access) for feature in services.features if feature.table is not None]
    api = _Api(services, access, tables)
    gateway, config = services.gateway, services.config
    routes: list[BaseRoute] = [
        Route(publish_endpoint.PATH, _Publish(api.publisher, config), methods=["POST"]),
        Route(publish_endpoint.PATH, _upgrade_required, methods=["GET"]),
        route("/v1/scheduled", GET=api.list_scheduled, DELETE=api.cancel_all),
        route("/v1/scheduled/{sid}", GET=api.inspect, PATCH=api.reschedule, DELETE=api.cancel),
        route("/v1/events", POST=api.event),
        route("/v1/subscriptions", GET=api.list_subscriptions),
        route("/v1/subscriptions/{topic:rest}", PUT=api.subscribe, DELETE=api.unsubscribe),
        route("/v1/users/{user:segment}/profile", GET=api.get_profile, PUT=api.set_profile, DELETE=api.forget_profile),
        route("/v1/preferences", GET=api.preferences, PATCH=api.change_preferences),
        route("/v1/unsubscribe-links", POST=api.unsubscribe_links),
        route(unsubscribing.PATH, GET=api.ask_unsubscribe, POST=api.unsubscribe_by_link),
        route("/v1/users/{user:segment}", GET=api.user_report, DELETE=api.erase),
        route("/v1/explain", POST=api.explain),
        route("/v1/ack", POST=api.acknowledge),
        route("/v1/nack", POST=api.refuse),
        route("/v1/inbox", GET=api.inbox),
        route("/v1/inbox/{mark}", POST=api.mark_inbox),
        route("/v1/heartbeat", GET=api.heartbeat),
        *(WebSocketRoute(path, api.websocket) for path in sorted(PATHS)),
        without_head(Route(PATH, _upgrade_required, methods=["GET"])),
        without_head(Route("/v1/sse", _Sse(access), methods=["GET"])),
        without_head(route("/v1/poll", GET=api.poll)),
        route("/v1/tokens/revoke", POST=api.revoke),
        route("/v1/status", GET=api.status),
        route("/v1/load", GET=api.load),
        route("/v1/tenants", GET=api.tenants),
        route("/v1/topics", GET=api.topics),
        route("/v1/quarantine", GET=api.quarantine),
        route("/v1/slow-clients", GET=api.slow_clients),
        route("/v1/edges/{edge}/drain", POST=api.drain),
        route("/v1/scale", POST=api.scale),
        route("/v1/rebalance", POST=api.rebalance),
        route("/v1/upgrade", POST=api.upgrade),
        route("/v1/rules", GET=api.rules, PUT=api.put_rules),
        route("/v1/rules/stage", POST=api.stage_rules),
        route("/v1/rules/rollback", POST=api.roll_rules_back),
        route("/v1/rules/dry-run", POST=api.try_rules),
        route("/v1/rules/versions/{version}", GET=api.rules_text),
        route("/healthz", GET=api.healthz),
        route("/readyz", GET=api.readyz),
        route("/metrics", GET=api.metrics),
        route("/openapi.json", GET=api.openapi),
        *(found for table in tables for found in table.routes),
        *static_files.routes(),
    ]
    application = Starlette(
        routes=routes,
        middleware=[Middleware(CrossOrigin, config=config)],
        exception_handlers=handlers(gateway.metrics.refused),
    )
    application.router.redirect_slashes = False
    application.state.fast_paths = FastPaths(
        api.sockets.open,
        api.publisher,
        KeptHeads(config.publish_heads_max),
        UnreadRefusals(PATH, gateway.refuse_unread, gateway.metrics.refused),
        gateway.metrics.refused,
    )
    return application


class _Api:
    """The endpoints and what they share."""

    def __init__(self, services: EdgeServices, access: Access, tables: Sequence[EndpointTable]) -> None:
        self.access = access
        self._tables = tables
        self.gateway = gateway = services.gateway
        self.config = config = services.config
        self._services = services
        self._rules = rules = services.rules
        link_key = RememberedKey(services.link_key, gateway.clock)
        message_links = MessageLinks(config, link_key, gateway.wall_ms)
        self.publisher = PublishEndpoint(gateway, services.authenticator, config, rules.rule_book, message_links)
        self.sockets = Sockets(gateway, services.authenticator, config, self.publisher)
        self._described: dict[tuple[str, ...], bytes] = {}  # the OpenAPI document, by the names of categories in it
        self._events = EventEndpoint(
            config,
            gateway.shard_client,
            gateway.request_queue,
            rules.rule_book,
            services.arrivals,
            rules.sample,
            gateway.wall_ms,
            gateway.metrics,
            message_links,
        )
        self._event_frames = EventFrames(gateway, self._events)
        self._preferences = Preferences(config, gateway.shard_client, rules.rule_book)
        self._unsubscribing = Unsubscribing(config, gateway.shard_client, self._preferences, rules.rule_book, link_key, gateway.wall_ms)

    # -- Scheduled notifications. ------------------------------------------------------------------------------------------
    async def list_scheduled(self, request: Request) -> Response:
        """`GET /v1/scheduled?user=&collapse=`."""
        answer = scheduled.raise_unless_ok(await self.gateway.shard_client.list_timers(*self._timers_of(request)))
        return json_answer({"scheduled": [scheduled.as_json(timer) for timer in answer.timers]})

    async def cancel_all(self, request: Request) -> Response:
        """`DELETE /v1/scheduled?user=&collapse=`."""
        answer = scheduled.raise_unless_ok(await self.gateway.shard_client.cancel_all(*self._timers_of(request)))
        return json_answer({"cancelled": answer.count})

    def _timers_of(self, request: Request) -> tuple[str, str]:
        """The mailbox key and the collapse key ("" for all) that the query names."""
        principal = self.access.authenticate(request, "publish")
        user = request.query_params.get("user", "")
        collapse = request.query_params.get("collapse")
        if not is_user(user, self.config.id_chars_max):
            raise bad_request("the query parameter `user` is needed")
        if collapse is not None and not is_id(collapse, self.config.id_chars_max):
            raise bad_request("`collapse`: a collapse key is needed; leave it out for all timers of the user")
        return mailbox_key(principal.tenant, user), collapse or ""

    async def inspect(self, request: Request) -> Response:
        """`GET /v1/scheduled/{sid}`."""
        principal = self.access.authenticate(request, "publish")
        answer = scheduled.raise_unless_ok(await self.gateway.shard_client.inspect(principal.tenant, request.path_params["sid"]))
        return json_answer(scheduled.as_json(answer.timers[0]))

    async def reschedule(self, request: Request) -> Response:
        """`PATCH /v1/scheduled/{sid}`."""
        principal = self.access.authenticate(request, "publish")
        body = await self.access.body(request)
        due_ms = ack_and_patch.parse_patch(body, self.config, self.gateway.wall_ms())
        answer = scheduled.raise_unless_ok(await self.gateway.shard_client.reschedule(principal.tenant, request.path_params["sid"], due_ms))
        return json_answer(scheduled.as_json(answer.timers[0]))

    async def cancel(self, request: Request) -> Response:
        """`DELETE /v1/scheduled/{sid}`."""
        principal = self.access.authenticate(request, "publish")
        sid = request.path_params["sid"]
        scheduled.raise_unless_ok(await self.gateway.shard_client.cancel(principal.tenant, sid))
        return json_answer({"scheduled_id": sid, "status": "cancelled"})

    async def event(self, request: Request) -> Response:
        """`POST /v1/events`: an event for the rules."""
        principal = self.access.authenticate(request, "publish")
        self.gateway.check_room(principal.tenant)
        body = await self.access.body(request)
        spans, trace = self.gateway.spans, None
        if spans is not None or "traceparent" in request.headers:
            trace = RequestTrace(request.headers.get("traceparent", ""), None if spans is None else spans.spans, principal.tenant)
        try:
            taken = await self._events.take(body, principal, trace)
        except Exception as error:
            if trace is not None:
                trace.failed(error)
            raise
        return json_answer({**taken, **self._durability()}, 202)

    def _durability(self) -> dict[str, str]:
        """The member of an answer that says that storage keeps less than promised."""
        word = self.gateway.storage.durability
        return {"durability": word} if word else {}

    # -- Subscriptions. ----------------------------------------------------------------------------------------------------
    async def list_subscriptions(self, request: Request) -> Response:
        """`GET /v1/subscriptions?user=`."""
        principal, key, _ = self.access.subscriber(request)
        return json_answer(_subscriptions(await subscriptions.change(self.gateway.shard_client, key), principal, key))

    async def subscribe(self, request: Request) -> Response:
        """`PUT /v1/subscriptions/{topic}?user=`."""
        principal, key, others = self.access.subscriber(request)
        self.gateway.check_room(principal.tenant)
        topic = self._topic(request)
        if not others and not permits(principal, topic):
            raise forbidden(f"the token does not allow the topic {topic}")
        await subscriptions.check_quota(self.gateway, principal.tenant, [topic])
        return json_answer(_subscriptions(await subscriptions.change(self.gateway.shard_client, key, add=[topic]), principal, key))

    async def unsubscribe(self, request: Request) -> Response:
        """`DELETE /v1/subscriptions/{topic}?user=`."""
        principal, key, _ = self.access.subscriber(request)
        topics = await subscriptions.change(self.gateway.shard_client, key, remove=[self._topic(request)])
        return json_answer(_subscriptions(topics, principal, key))

    def _topic(self, request: Request) -> str:
        topic: str = request.path_params["topic"]
        try:
            check_topics([topic], self.config.id_chars_max, 1)
        except Invalid as error:
            raise bad_request(f"the topic: {error.detail}") from None
        return topic

    # -- Profiles. ---------------------------------------------------------------------------------------------------------
    async def get_profile(self, request: Request) -> Response:
        """`GET /v1/users/{user}/profile?tenant=`."""
        return json_answer(profiles.as_json(await profiles.get(self.gateway.shard_client, self.access.user_of(request, own=True))))

    async def set_profile(self, request: Request) -> Response:
        """`PUT /v1/users/{user}/profile`."""
        key = self.access.user_of(request, own=False)
        self.gateway.check_room(split_key(key)[0])
        body = await self.access.body(request)
        profile = profiles.read(body, self.config)
        keep = not profiles.names_categories(body)
        return json_answer(profiles.as_json(await profiles.put(self.gateway.shard_client, key, profile, keep_categories=keep)))

    async def forget_profile(self, request: Request) -> Response:
        """`DELETE /v1/users/{user}/profile`."""
        await profiles.put(self.gateway.shard_client, self.access.user_of(request, own=False), None)
        return Response(status_code=204)

    async def user_report(self, request: Request) -> Response:
        """`GET /v1/users/{user}?tenant=`: where a user is, what waits for it, and what was decided about it."""
        tenant, user = self.access.tenant_of(request), request.path_params["user"]
        if not is_user(user, self.config.id_chars_max):
            raise not_found("no user has this name")
        shard_client, bodies = self.gateway.shard_client, self._services.bodies
        return json_answer(await user_reports.report(shard_client, bodies, mailbox_key(tenant, user), self.config))

    async def preferences(self, request: Request) -> Response:
        """`GET /v1/preferences?user=`."""
        _, key, _ = self.access.subscriber(request)
        return json_answer(await self._preferences.get(key))

    async def change_preferences(self, request: Request) -> Response:
        """`PATCH /v1/preferences?user=`."""
        principal, key, _ = self.access.subscriber(request)
        self.gateway.check_room(principal.tenant)
        return json_answer(await self._preferences.change(key, await self.access.body(request)))

    async def unsubscribe_links(self, request: Request) -> Response:
        """`POST /v1/unsubscribe-links`."""
        principal = self.access.authenticate(request, "publish")
        return json_answer(await self._unsubscribing.make(principal.tenant, await self.access.body(request)))

    async def ask_unsubscribe(self, request: Request) -> Response:
        """`GET /v1/unsubscribe?token=`; the link is all that it needs."""
        return await self._unsubscribing.ask(request.query_params.get("token", ""), request.headers.get("accept-language", ""))

    async def unsubscribe_by_link(self, request: Request) -> Response:
        """`POST /v1/unsubscribe?token=`; likewise."""
        body = await read_body(request.scope, request.receive, self.config, unsubscribing.FORM_BYTES_MAX)
        headers = request.headers
        return await self._unsubscribing.answer(
            request.query_params.get("token", ""), headers.get("content-type", ""), body, headers.get("accept-language", "")
        )

    async def erase(self, request: Request) -> Response:
        """`DELETE /v1/users/{user}`."""
        principal = self.access.authenticate(request, "admin")
        user: str = request.path_params["user"]
        if not is_user(user, self.config.id_chars_max):
            raise not_found("no user has this name")
        key = mailbox_key(principal.tenant, user)
        await erasure.erase_user(self.gateway.shard_client, key, self.config.publish_timeout_ms, self.gateway.clock)
        return Response(status_code=204)

    async def explain(self, request: Request) -> Response:
        """`POST /v1/explain?tenant=`: what would become of notifications, and why."""
        principal = self.access.authenticate(request, "")
        if "tenant" in request.query_params:
            principal = msgspec.structs.replace(principal, tenant=tenant_named(principal, request.query_params))
        elif tokens.OPERATOR not in principal.scopes:
            tokens.require(principal, "publish")
        body = await self.access.body(request)
        return json_answer(
            await explanations.explain(
                self.gateway.shard_client,
                self.publisher.parse(body, Content.of(request.scope["headers"]), principal, self._rules.rule_book.in_use()),
            )
        )

    # -- Receiving. --------------------------------------------------------------------------------------------------------
    async def acknowledge(self, request: Request) -> Response:
        """`POST /v1/ack`."""
        principal = self.access.authenticate(request, "connect")
        body = await self.access.body(request)
        seq, ids, client_ms = ack_and_patch.parse_ack(body, self.config)
        error = await self.gateway.shard_client.settle(mailbox_key(principal.tenant, principal.user), seq, ids, client_ms)
        if error:
            raise Problem(409, error)
        return json_answer({"acknowledged": True})

    async def refuse(self, request: Request) -> Response:
        """`POST /v1/nack`."""
        principal = self.access.authenticate(request, "connect")
        body = await self.access.body(request)
        ids, reason = ack_and_patch.parse_nack(body, self.config)
        await self.gateway.refuse(mailbox_key(principal.tenant, principal.user), ids, reason)
        return json_answer({"nacked": True})

    async def inbox(self, request: Request) -> Response:
        """`GET /v1/inbox?before=&limit=&unread=&archived=&type=&q=&user=`."""
        _, key, _ = self.access.subscriber(request)
        query = inboxes.parse_query(request.query_params, self.config)
        body = await inboxes.read(self.gateway.shard_client, key, query, self.config)
        return Response(body, 200, {"Cache-Control": "no-store"}, "application/json")

    async def mark_inbox(self, request: Request) -> Response:
        """`POST /v1/inbox/{mark}?user=`."""
        _, key, _ = self.access.subscriber(request)
        body = await self.access.body(request)
        return json_answer(await inboxes.mark(self.gateway.shard_client, key, request.path_params["mark"], body, self.config))

    async def heartbeat(self, request: Request) -> Response:
        """`GET /v1/heartbeat`: the user's presence; a suspect user's client is expected for longer."""
        principal = self.access.authenticate(request, "connect")
        client = request.headers.get("x-client-id", "")[: self.config.id_chars_max]
        last = request.headers.get("x-last-seq", "0")
        if not (last.isascii() and last.isdigit() and len(last) <= 18 and int(last) <= SEQ_MAX):
            raise bad_request(f"X-Last-Seq: a sequence number is needed, 0 to {SEQ_MAX}")
        probed = await self.gateway.shard_client.probe(mailbox_key(principal.tenant, principal.user), client, int(last))
        return json_answer({"online": probed.state != OFFLINE, "state": probed.state, "seq": probed.seq})

    async def websocket(self, websocket: WebSocket) -> None:
        """A WebSocket that the fast path did not take. The accepted connection outlives this call."""
        scope = websocket.scope
        connection = self.sockets.open(scope["path"], scope["headers"], scope["query_string"], scope["subprotocols"])
        subprotocol = SUBPROTOCOL if SUBPROTOCOL in scope["subprotocols"] else None
        await websocket.accept(subprotocol)
        scope["extensions"][EXTENSION]["protocol"].take_over(connection)

    async def poll(self, request: Request) -> Response:
        """`GET /v1/poll`."""
        principal = self.access.authenticate(request, "connect")
        self.gateway.require_capacity()
        cursor = parse_cursor(_cursor_text(request))
        wait_s = self.access.wait_s(request)
        poll = Poll(self.gateway, principal, cursor, self.access.device(request))
        return Response(await poll.run(request.receive, wait_s), 200, {"Cache-Control": "no-store"}, "application/json")

    # -- Identity. ---------------------------------------------------------------------------------------------------------
    async def revoke(self, request: Request) -> Response:
        """`POST /v1/tokens/revoke`."""
        principal = self.access.authenticate(request, "admin")
        return json_answer(await self._services.revocations.revoke(await self.access.body(request), principal))

    # -- Operating. --------------------------------------------------------------------------------------------------------
    async def status(self, request: Request) -> Response:
        """`GET /v1/status`: of the engine for an operator, of its tenant for an admin."""
        principal = self.access.authenticate(request, "")
        if tokens.OPERATOR in principal.scopes:
            return json_answer(metrics_page.without_figures(await self._services.status()))
        tokens.require(principal, "admin")
        services, tenant = self._services, principal.tenant
        try:
            used = await services.usage.of(tenant)
        except StorageUnavailable as error:
            raise unavailable(str(error), RETRY_AFTER_S) from None
        return json_answer(
            {"tenant": tenant, "connections": await services.connections_of(tenant), **used, "quotas": quotas_of(self.config)}
        )

    async def load(self, request: Request) -> Response:
        """`GET /v1/load`: of the last hour."""
        self.access.authenticate(request, tokens.OPERATOR)
        return json_answer(await self._services.inspection.load())

    async def tenants(self, request: Request) -> Response:
        """`GET /v1/tenants`."""
        self.access.authenticate(request, tokens.OPERATOR)
        return json_answer(await self._services.inspection.tenants())

    async def topics(self, request: Request) -> Response:
        """`GET /v1/topics?tenant=&after=`."""
        return json_answer(await self._services.inspection.topics(self.access.tenant_of(request), request.query_params))

    async def quarantine(self, request: Request) -> Response:
        """`GET /v1/quarantine`."""
        self.access.authenticate(request, tokens.OPERATOR)
        return json_answer(await self._services.inspection.quarantine())

    async def slow_clients(self, request: Request) -> Response:
        """`GET /v1/slow-clients`."""
        self.access.authenticate(request, tokens.OPERATOR)
        return json_answer(await self._services.inspection.slow_clients())

    async def rules(self, request: Request) -> Response:
        """`GET /v1/rules`."""
        self.access.authenticate(request, tokens.OPERATOR)
        return tagged_answer(await self._rules.overview((await self._services.status())["edges"]))

    async def put_rules(self, request: Request) -> Response:
        """`PUT /v1/rules?share=`."""
        principal = self.access.authenticate(request, tokens.OPERATOR)
        self.gateway.storage.check_room()
        body = await self.access.body(request)
        share = request.query_params.get("share", "")
        return tagged_answer(await self._rules.put(body, share, request.headers.get("if-match"), principal.user))

    async def stage_rules(self, request: Request) -> Response:
        """`POST /v1/rules/stage`."""
        principal = self.access.authenticate(request, tokens.OPERATOR)
        body = await self.access.body(request)
        return tagged_answer(await self._rules.stage(body, request.headers.get("if-match"), principal.user))

    async def roll_rules_back(self, request: Request) -> Response:
        """`POST /v1/rules/rollback`."""
        principal = self.access.authenticate(request, tokens.OPERATOR)
        body = await self.access.body(request)
        return tagged_answer(await self._rules.rollback(body, request.headers.get("if-match"), principal.user))

    async def try_rules(self, request: Request) -> Response:
        """`POST /v1/rules/dry-run?version=&tenant=&type=&limit=`."""
        self.access.authenticate(request, tokens.OPERATOR)
        body = await self.access.body(request)
        return json_answer(await self._rules.dry_run(body, request.query_params))

    async def rules_text(self, request: Request) -> Response:
        """`GET /v1/rules/versions/{version}`."""
        self.access.authenticate(request, tokens.OPERATOR)
        return Response(await self._rules.text(request.path_params["version"]), 200, {"Cache-Control": "no-store"}, "application/toml")

    async def drain(self, request: Request) -> Response:
        """`POST /v1/edges/{edge}/drain`."""
        self.access.authenticate(request, tokens.OPERATOR)
        name = request.path_params["edge"]
        edges = {f"edge-{row['index']}": row["index"] for row in (await self._services.status())["edges"]}
        if name not in edges:
            raise not_found(f"there is no such edge; there are {', '.join(edges)}")
        refused, connections = await self._services.drain_edge(edges[name])
        if refused:
            raise conflict(refused, type="about:blank")
        return json_answer({"edge": name, "connections": connections}, 202)

    async def scale(self, request: Request) -> Response:
        """`POST /v1/scale`."""
        principal = self.access.authenticate(request, tokens.OPERATOR)
        numbers, force = scaling.numbers_of(await self.access.body(request), self.config)
        found = await self._services.scale(numbers, principal.user, force)
        if "refused" in found:
            raise conflict(found["refused"], type="about:blank", fits=found["fits"])
        return json_answer(found, 202)

    async def rebalance(self, request: Request) -> Response:
        """`POST /v1/rebalance`."""
        principal = self.access.authenticate(request, tokens.OPERATOR)
        return json_answer(await self._services.rebalance(principal.user), 202)

    async def upgrade(self, request: Request) -> Response:
        """`POST /v1/upgrade`."""
        principal = self.access.authenticate(request, tokens.OPERATOR)
        return json_answer(await self._services.upgrade(principal.user), 202)

    async def healthz(self, _request: Request) -> Response:
        """`GET /healthz`: this process is up."""
        return json_answer({"status": "ok"})

    async def readyz(self, _request: Request) -> Response:
        """`GET /readyz`: everything this edge needs answers."""
        failing = sorted(name for name, fine in (await self._services.ready()).items() if not fine)
        if self.gateway.draining:
            failing.append("edge")
        if failing:
            problem = unavailable(f"not answering: {', '.join(failing)}", RETRY_AFTER_S)
            problem.members["failing"] = failing
            raise problem
        status, degraded = await self._status_at_once(), set(self.gateway.metrics.reasons())
        if status is not None and any(not row["ready"] or row["database"] != "ok" for row in status.get("archivists", ())):
            degraded.add("history")
        # None: not known, as without a status. Readiness does not depend on it.
        quarantined = None if status is None else int(status.get("totals", {}).get("quarantined", 0))
        return json_answer({"status": "ready", "quarantined": quarantined, "degraded": sorted(degraded), **self._durability()})

    async def _status_at_once(self) -> Mapping[str, Any] | None:
        """The status; None when the controller does not answer at once."""
        try:
            async with asyncio.timeout(_READY_PATIENCE_S):
                return await self._services.status()
        except (Unavailable, TimeoutError):
            return None

    async def metrics(self, request: Request) -> Response:
        """`GET /metrics`: of the whole engine."""
        metrics_page.allow(self.access.authenticate(request, ""))
        text, content_type = await metrics_page.page(self.gateway.metrics, self._services.status, request.headers.get("accept", ""))
        return Response(text, 200, {"Content-Type": content_type, "Vary": "accept"})

    async def openapi(self, request: Request) -> Response:
        """`GET /openapi.json`: built once for each set of categories, whose names only the bearer of a token learns."""
        names = tuple(sorted(self._rules.rule_book.in_use().categories)) if self.access.is_known(request) else ()
        if names not in self._described:
            self._described = {
                (): self._described.get(()) or _encode(document(self.config, (), self._tables)),
                names: _encode(document(self.config, names, self._tables)),
            }
        return Response(self._described[names], 200, {"Vary": "authorization, cookie"}, "application/json")


class _Publish:
    """`POST /v1/notifications`, as a plain ASGI application."""

    def __init__(self, publisher: PublishEndpoint, config: Config) -> None:
        self._publisher = publisher
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Authenticate, read, publish, answer."""
        head = PublishHead.of(scope["headers"], scope["query_string"])
        principal = self._publisher.admit(head)
        self._publisher.check_unread(head)
        body = await read_body(scope, receive, self._config)
        answer = await self._publisher.publish(body, head.content, principal)
        headers = publish_endpoint.headers(answer)
        await send({"type": "http.response.start", "status": 202, "headers": headers})
        await send({"type": "http.response.body", "body": answer, "more_body": False})


class _Sse:
    """`GET /v1/sse`."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Authenticate, admit, stream."""
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


async def _upgrade_required(_request: Request) -> Response:
    raise Problem(426, "this is a WebSocket endpoint", headers={"Upgrade": "websocket", "Connection": "Upgrade"})


def _cursor_text(request: Request) -> str:
    # EventSource repeats its URL on every reconnect, with the header beside it: the header is the newer one.
    return request.headers.get("last-event-id") or request.query_params.get("last_event_id", "")


def _subscriptions(topics: Sequence[str], principal: Principal, key: str) -> dict[str, Any]:
    """A user's topics, and those that the bearer is a member of by its token."""
    own = key == mailbox_key(principal.tenant, principal.user)
    by_token = {"by_token": memberships(principal)} if own and principal.topics is not None else {}
    return {"user": split_key(key)[1], "topics": topics, **by_token}
