"""Profiles, preferences, unsubscribe links and explanations over HTTP. The feature on an edge."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.core.model.routing import split_key
from engine.features.policy import description, explanations, profiles
from engine.features.policy.link_page import FORM_BYTES_MAX
from engine.features.policy.profiles import Preferences
from engine.features.policy.unsubscribing import PATH, LinkKey, Unsubscribing, stored_key
from engine.http.endpoint_table import EndpointTable, json_answer, route


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    return feature_of(stored_key(ports))


def feature_of(link_key: LinkKey) -> EdgeFeature:
    """The feature, whose links are signed with this key."""
    return EdgeFeature("policy", lambda access: table(access, link_key))


def table(access: Access, link_key: LinkKey) -> EndpointTable:
    """The endpoints."""
    config, gateway = access.config, access.gateway
    shard_client, category_book = gateway.shard_client, gateway.category_book
    preferences = Preferences(config, shard_client, category_book, gateway.times_changed)
    gateway.kept_of_user["preferences"] = preferences.kept_rows
    unsubscribing = Unsubscribing(config, shard_client, preferences, category_book, link_key, gateway.wall_ms)

    async def get_profile(request: Request) -> Response:
        """`GET /v1/users/{user}/profile?tenant=`."""
        return json_answer(profiles.as_json(await profiles.get(gateway.shard_client, access.user_of(request, own=True))))

    async def set_profile(request: Request) -> Response:
        """`PUT /v1/users/{user}/profile`."""
        key = access.user_of(request, own=False)
        gateway.check_room(split_key(key)[0])
        profile, categories = profiles.read(await access.body(request), access.config)
        return json_answer(profiles.as_json(await profiles.put(gateway.shard_client, key, profile, keep_categories=not categories)))

    async def forget_profile(request: Request) -> Response:
        """`DELETE /v1/users/{user}/profile`."""
        await profiles.put(gateway.shard_client, access.user_of(request, own=False), None)
        return Response(status_code=204)

    async def get_preferences(request: Request) -> Response:
        """`GET /v1/preferences?user=`."""
        _, key, _ = access.subscriber(request)
        return json_answer(await preferences.get(key))

    async def change_preferences(request: Request) -> Response:
        """`PATCH /v1/preferences?user=`."""
        principal, key, _ = access.subscriber(request)
        gateway.check_room(principal.tenant)
        return json_answer(await preferences.change(key, await access.body(request)))

    async def unsubscribe_links(request: Request) -> Response:
        """`POST /v1/unsubscribe-links`."""
        principal = access.authenticate(request, "publish")
        return json_answer(await unsubscribing.make(principal.tenant, await access.body(request)))

    async def ask_unsubscribe(request: Request) -> Response:
        """`GET /v1/unsubscribe?token=`; the link is all that it needs."""
        return await unsubscribing.ask(request.query_params.get("token", ""), request.headers.get("accept-language", ""))

    async def unsubscribe_by_link(request: Request) -> Response:
        """`POST /v1/unsubscribe?token=`; likewise."""
        body = await access.bodies.read(request.scope, request.receive, FORM_BYTES_MAX)
        headers = request.headers
        return await unsubscribing.answer(
            request.query_params.get("token", ""), headers.get("content-type", ""), body, headers.get("accept-language", "")
        )

    routes = [
        route("/v1/explain", POST=explanations.endpoint(access)),
        route("/v1/users/{user:segment}/profile", GET=get_profile, PUT=set_profile, DELETE=forget_profile),
        route("/v1/preferences", GET=get_preferences, PATCH=change_preferences),
        route("/v1/unsubscribe-links", POST=unsubscribe_links),
        route(PATH, GET=ask_unsubscribe, POST=unsubscribe_by_link),
    ]
    return EndpointTable(routes, description, (PATH,))
