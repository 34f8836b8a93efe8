"""`/v1/channels/push`: the browsers of the bearer itself, which subscribe with the engine's key and unsubscribe."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.api.access import Access
from engine.api.json_bodies import decode_body
from engine.core.model.routing import split_key
from engine.errors import Invalid
from engine.features.reach import push_channel
from engine.features.reach.core.addresses import PushSubscription
from engine.features.reach.push_channel import StoredSecret
from engine.features.reach.store import AddressStore
from engine.http.endpoint_table import json_answer, route
from engine.http.problems import not_found
from engine.publish import media_types

PATH: Final = "/v1/channels/push"

_ID: Final = re.compile("[0-9a-f]{32}")
_browser: Final = msgspec.json.Decoder(PushSubscription)


def browser_routes(access: Access, addresses: AddressStore, secret: StoredSecret, bearer: Callable[[Request], str]) -> list[Route]:
    """The endpoints.

    Args:
        secret: of the engine's key.
        bearer: the mailbox key of who asks.
    """

    async def read_key(request: Request) -> Response:
        """`GET /v1/channels/push`: what a browser subscribes with; 404 where this edge cannot push."""
        bearer(request)
        if not push_channel.available():
            raise not_found("pushes need the extra `push` where the edges run")
        return json_answer({"key": push_channel.public_key_of(await secret())})

    async def add(request: Request) -> Response:
        """`PUT /v1/channels/push`."""
        key = bearer(request)
        access.gateway.check_room(split_key(key)[0])
        browser = decode_body(_browser, await access.body(request), PushSubscription)
        try:
            push_channel.check_push(browser, access.config)
        except Invalid as error:
            raise media_types.unacceptable(Invalid(error.detail, f"$.{error.path}")) from None
        await addresses.change(key, lambda found: found.with_browser(browser))
        return Response(status_code=204)

    async def remove(request: Request) -> Response:
        """`DELETE /v1/channels/push/{id}`; idempotent."""
        key, id = bearer(request), request.path_params["id"]
        if _ID.fullmatch(id) is None:
            raise not_found("the id of a browser has 32 hexadecimal digits")
        await addresses.change(key, lambda found: found.without_browser(id))
        return Response(status_code=204)

    return [route(PATH, GET=read_key, PUT=add), route(f"{PATH}/{{id:segment}}", DELETE=remove)]
