"""The endpoints of rules: events for them, on both ways, and what operators do with their versions. The feature on an edge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.api.access import Access, Status, tenant_named
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.auth import tokens
from engine.core.model.step import ChannelStep
from engine.features.policy.message_links import MessageLinks
from engine.features.policy.unsubscribing import LinkKey, stored_key
from engine.features.rules import description
from engine.features.rules.event_arrivals import EventArrivals
from engine.features.rules.event_frames import EventFrames
from engine.features.rules.events import EventEndpoint
from engine.features.rules.figures import METRICS, RuleCounts
from engine.features.rules.recorded_events import RecordedEvents
from engine.features.rules.rules_endpoint import RulesEndpoint
from engine.features.rules.rules_store import RulesStore, stamps_of_tenants
from engine.features.rules.tenant_rules import TenantRules
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.publish.category_book import CategoryBook
from engine.publish.drafts import Draft
from engine.publish.results import ItemResult


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    store, sample = RulesStore(ports.redis, ports.config), RecordedEvents(ports.redis, ports.config)
    rules = RulesEndpoint(ports.config, ports.gateway, store, sample)
    tenants = TenantRules(ports.config, rules, partial(RulesStore, ports.redis, ports.config), partial(stamps_of_tenants, ports.redis))
    return feature_of(ports, rules, tenants, EventArrivals(ports.redis, ports.config), stored_key(ports))


def feature_of(ports: EdgePorts, rules: RulesEndpoint, tenants: TenantRules, arrivals: EventArrivals, link_key: LinkKey) -> EdgeFeature:
    """The feature, of its parts."""
    gateway, rule_book = ports.gateway, rules.rule_book
    message_links = MessageLinks(link_key, gateway.wall_ms)
    gateway.category_book = CategoryBook(rule_book.in_use, lambda: rule_book.unread, message_links.add)

    async def arm_steps(drafts: Sequence[Draft], results: Sequence[ItemResult], steps: Mapping[str, Sequence[ChannelStep]]) -> None:
        await gateway.arm_steps(drafts, results, steps)  # of a feature that comes after this one

    counts = RuleCounts()
    gateway.metrics.of_features.append(counts.figures)
    events = EventEndpoint(
        ports.config,
        gateway.shard_client,
        gateway.request_queue,
        rule_book,
        arrivals,
        rules.sample,
        gateway.wall_ms,
        counts,
        message_links,
        arm_steps,
    )
    EventFrames(gateway, events)

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(rules.follower.run())
            tasks.create_task(rules.sample.run())
            tasks.create_task(tenants.run())

    async def prepare() -> None:
        await rules.follower.catch_up()
        await tenants.catch_up()

    return EdgeFeature(
        "rules",
        lambda access: table(access, events, rules, tenants, ports.status),
        run,
        prepare=prepare,
        stats=rules.stats,
        metrics=METRICS,
    )


def table(access: Access, events: EventEndpoint, rules: RulesEndpoint, tenants: TenantRules, status: Status) -> EndpointTable:
    """The endpoints."""
    gateway = access.gateway

    async def event(request: Request) -> Response:
        """`POST /v1/events`: an event for the rules."""
        principal = access.authenticate(request, "publish")
        gateway.check_room(principal.tenant)
        body = await access.body(request)
        trace = gateway.trace_of(request.headers.get("traceparent", ""), principal.tenant)
        try:
            taken = await events.take(body, principal, trace)
        except Exception as error:
            if trace is not None:
                trace.failed(error)
            raise
        return json_answer({**taken, **access.durability()}, 202)

    def operators(request: Request) -> tuple[RulesEndpoint, str]:
        return rules, access.authenticate(request, tokens.OPERATOR).user

    def of_tenant(request: Request) -> tuple[RulesEndpoint, str]:
        principal = access.authenticate(request, "")
        return tenants.of(tenant_named(principal, request.query_params)), principal.user

    routes = [
        route("/v1/events", POST=event),
        *_version_routes(access, "/v1/rules", operators, status),
        *_version_routes(access, "/v1/tenant-rules", of_tenant, status),
    ]
    return EndpointTable(routes, description)


Whose = Callable[[Request], tuple[RulesEndpoint, str]]
"""The rules that a request is about, and who asks. Raises Problem: 401 or 403."""


def _tagged(answer: tuple[str, Any]) -> Response:
    """An answer with the entity tag of the state that it shows."""
    tag, state = answer
    response = json_answer(state)
    response.headers["ETag"] = f'"{tag}"'
    return response


def _version_routes(access: Access, path: str, whose: Whose, status: Status) -> list[Route]:
    async def overview(request: Request) -> Response:
        """`GET`."""
        endpoint, _ = whose(request)
        return _tagged(await endpoint.overview((await status())["edges"]))

    def changed(request: Request, answer: tuple[str, dict[str, Any]]) -> Response:
        request.state.details = {name: answer[1][name] for name in ("version", "active", "staged") if name in answer[1]}
        return _tagged(answer)

    async def put(request: Request) -> Response:
        """`PUT ?share=`."""
        endpoint, by = whose(request)
        access.gateway.storage.check_room()
        body = await access.body(request)
        share = request.query_params.get("share", "")
        return changed(request, await endpoint.put(body, share, request.headers.get("if-match"), by))

    async def stage(request: Request) -> Response:
        """`POST /stage`."""
        endpoint, by = whose(request)
        body = await access.body(request)
        return changed(request, await endpoint.stage(body, request.headers.get("if-match"), by))

    async def roll_back(request: Request) -> Response:
        """`POST /rollback`."""
        endpoint, by = whose(request)
        body = await access.body(request)
        return changed(request, await endpoint.rollback(body, request.headers.get("if-match"), by))

    async def dry_run(request: Request) -> Response:
        """`POST /dry-run?version=&tenant=&type=&limit=`."""
        endpoint, _ = whose(request)
        body = await access.body(request)
        return json_answer(await endpoint.dry_run(body, request.query_params))

    async def text(request: Request) -> Response:
        """`GET /versions/{version}`."""
        endpoint, _ = whose(request)
        return Response(await endpoint.text(request.path_params["version"]), 200, {"Cache-Control": "no-store"}, "application/toml")

    return [
        route(path, GET=overview, PUT=access.audited("store_rules", put)),
        route(f"{path}/stage", POST=access.audited("stage_rules", stage)),
        route(f"{path}/rollback", POST=access.audited("roll_rules_back", roll_back)),
        route(f"{path}/dry-run", POST=dry_run),
        route(f"{path}/versions/{{version}}", GET=text),
    ]
