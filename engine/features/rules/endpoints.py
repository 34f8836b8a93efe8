"""The endpoints of rules: events for them, on both ways, and what operators do with their versions. The feature on an edge."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access, Status
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.auth import tokens
from engine.core.model.step import ChannelStep
from engine.features.policy.message_links import MessageLinks
from engine.features.policy.unsubscribing import LinkKey, stored_key
from engine.features.rules import description
from engine.features.rules.event_arrivals import EventArrivals
from engine.features.rules.event_frames import EventFrames
from engine.features.rules.events import Arrivals, EventEndpoint
from engine.features.rules.recorded_events import RecordedEvents
from engine.features.rules.rules_endpoint import RulesEndpoint
from engine.features.rules.rules_store import RulesStore
from engine.http.endpoint_table import EndpointTable, json_answer, route, tagged_answer
from engine.publish.category_book import CategoryBook
from engine.publish.drafts import Draft
from engine.publish.request_trace import RequestTrace
from engine.publish.results import ItemResult


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    store, sample = RulesStore(ports.redis, ports.config), RecordedEvents(ports.redis, ports.config)
    rules = RulesEndpoint(ports.config, ports.gateway, store, sample)
    return feature_of(ports, rules, EventArrivals(ports.redis, ports.config), stored_key(ports))


def feature_of(ports: EdgePorts, rules: RulesEndpoint, arrivals: Arrivals, link_key: LinkKey) -> EdgeFeature:
    """The feature, of its parts."""
    gateway, rule_book = ports.gateway, rules.rule_book
    message_links = MessageLinks(ports.config, link_key, gateway.wall_ms)
    gateway.category_book = CategoryBook(rule_book.in_use, lambda: rule_book.unread, message_links.add)

    async def arm_steps(drafts: Sequence[Draft], results: Sequence[ItemResult], steps: Mapping[str, Sequence[ChannelStep]]) -> None:
        await gateway.arm_steps(drafts, results, steps)  # of a feature that comes after this one

    events = EventEndpoint(
        ports.config,
        gateway.shard_client,
        gateway.request_queue,
        rule_book,
        arrivals,
        rules.sample,
        gateway.wall_ms,
        gateway.metrics,
        message_links,
        arm_steps,
    )
    EventFrames(gateway, events)

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(rules.follower.run())
            tasks.create_task(rules.sample.run())

    return EdgeFeature(
        "rules",
        lambda access: table(access, events, rules, ports.status),
        run,
        prepare=rules.follower.catch_up,
        stats=rules.stats,
    )


def table(access: Access, events: EventEndpoint, endpoint: RulesEndpoint, status: Status) -> EndpointTable:
    """The endpoints."""
    gateway = access.gateway

    async def event(request: Request) -> Response:
        """`POST /v1/events`: an event for the rules."""
        principal = access.authenticate(request, "publish")
        gateway.check_room(principal.tenant)
        body = await access.body(request)
        spans, trace = gateway.spans, None
        if spans is not None or "traceparent" in request.headers:
            trace = RequestTrace(request.headers.get("traceparent", ""), None if spans is None else spans.spans, principal.tenant)
        try:
            taken = await events.take(body, principal, trace)
        except Exception as error:
            if trace is not None:
                trace.failed(error)
            raise
        return json_answer({**taken, **access.durability()}, 202)

    async def rules(request: Request) -> Response:
        """`GET /v1/rules`."""
        access.authenticate(request, tokens.OPERATOR)
        return tagged_answer(await endpoint.overview((await status())["edges"]))

    def changed(request: Request, answer: tuple[str, dict[str, Any]]) -> Response:
        request.state.details = {name: answer[1][name] for name in ("version", "active", "staged") if name in answer[1]}
        return tagged_answer(answer)

    async def put_rules(request: Request) -> Response:
        """`PUT /v1/rules?share=`."""
        principal = access.authenticate(request, tokens.OPERATOR)
        access.gateway.storage.check_room()
        body = await access.body(request)
        share = request.query_params.get("share", "")
        return changed(request, await endpoint.put(body, share, request.headers.get("if-match"), principal.user))

    async def stage_rules(request: Request) -> Response:
        """`POST /v1/rules/stage`."""
        principal = access.authenticate(request, tokens.OPERATOR)
        body = await access.body(request)
        return changed(request, await endpoint.stage(body, request.headers.get("if-match"), principal.user))

    async def roll_rules_back(request: Request) -> Response:
        """`POST /v1/rules/rollback`."""
        principal = access.authenticate(request, tokens.OPERATOR)
        body = await access.body(request)
        return changed(request, await endpoint.rollback(body, request.headers.get("if-match"), principal.user))

    async def try_rules(request: Request) -> Response:
        """`POST /v1/rules/dry-run?version=&tenant=&type=&limit=`."""
        access.authenticate(request, tokens.OPERATOR)
        body = await access.body(request)
        return json_answer(await endpoint.dry_run(body, request.query_params))

    async def rules_text(request: Request) -> Response:
        """`GET /v1/rules/versions/{version}`."""
        access.authenticate(request, tokens.OPERATOR)
        return Response(await endpoint.text(request.path_params["version"]), 200, {"Cache-Control": "no-store"}, "application/toml")

    routes = [
        route("/v1/events", POST=event),
        route("/v1/rules", GET=rules, PUT=access.audited("store_rules", put_rules)),
        route("/v1/rules/stage", POST=access.audited("stage_rules", stage_rules)),
        route("/v1/rules/rollback", POST=access.audited("roll_rules_back", roll_rules_back)),
        route("/v1/rules/dry-run", POST=try_rules),
        route("/v1/rules/versions/{version}", GET=rules_text),
    ]
    return EndpointTable(routes, description)
