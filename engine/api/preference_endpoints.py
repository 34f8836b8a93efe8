"""Profiles, preferences and unsubscribe links over HTTP."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from engine.api import profiles
from engine.api.access import Access
from engine.api.profiles import Preferences
from engine.api.unsubscribing import FORM_BYTES_MAX, PATH, Unsubscribing
from engine.core.model.routing import split_key
from engine.http.description import preference_paths
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.http.request_body import read_body


def table(access: Access, preferences: Preferences, unsubscribing: Unsubscribing) -> EndpointTable:
    """The endpoints."""

    async def get_profile(request: Request) -> Response:
        """`GET /v1/users/{user}/profile?tenant=`."""
        return json_answer(profiles.as_json(await profiles.get(access.gateway.shard_client, access.user_of(request, own=True))))

    async def set_profile(request: Request) -> Response:
        """`PUT /v1/users/{user}/profile`."""
        key = access.user_of(request, own=False)
        access.gateway.check_room(split_key(key)[0])
        body = await access.body(request)
        profile = profiles.read(body, access.config)
        keep = not profiles.names_categories(body)
        return json_answer(profiles.as_json(await profiles.put(access.gateway.shard_client, key, profile, keep_categories=keep)))

    async def forget_profile(request: Request) -> Response:
        """`DELETE /v1/users/{user}/profile`."""
        await profiles.put(access.gateway.shard_client, access.user_of(request, own=False), None)
        return Response(status_code=204)

    async def get_preferences(request: Request) -> Response:
        """`GET /v1/preferences?user=`."""
        _, key, _ = access.subscriber(request)
        return json_answer(await preferences.get(key))

    async def change_preferences(request: Request) -> Response:
        """`PATCH /v1/preferences?user=`."""
        principal, key, _ = access.subscriber(request)
        access.gateway.check_room(principal.tenant)
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
        body = await read_body(request.scope, request.receive, access.config, FORM_BYTES_MAX)
        headers = request.headers
        return await unsubscribing.answer(
            request.query_params.get("token", ""), headers.get("content-type", ""), body, headers.get("accept-language", "")
        )

    routes = [
        route("/v1/users/{user:segment}/profile", GET=get_profile, PUT=set_profile, DELETE=forget_profile),
        route("/v1/preferences", GET=get_preferences, PATCH=change_preferences),
        route("/v1/unsubscribe-links", POST=unsubscribe_links),
        route(PATH, GET=ask_unsubscribe, POST=unsubscribe_by_link),
    ]
    return EndpointTable(routes, preference_paths)
