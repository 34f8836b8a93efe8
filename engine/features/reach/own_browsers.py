"""`/v1/channels/push`: the browsers of the bearer itself, which subscribe with the engine's key and unsubscribe."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.api.access import Access
from engine.api.json_bodies import decode_body
from engine.config import Config
from engine.core.model.routing import mailbox_key, split_key
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


class OwnBrowsers:
    """The browsers of users. `secret`: of the engine's key. Every method raises StorageUnavailable."""

    def __init__(self, config: Config, addresses: AddressStore, secret: StoredSecret) -> None:
        self._config = config
        self._addresses = addresses
        self._secret = secret

    async def key(self) -> dict[str, Any]:
        """What a browser subscribes with. Raises Problem: 404 where this edge cannot push."""
        if not push_channel.available():
            raise not_found("pushes need the extra `push` where the edges run")
        return {"key": push_channel.public_key_of(await self._secret())}

    async def add(self, key: str, body: bytes) -> None:
        """Keep a browser of the user with this mailbox key. Raises Problem: 400 or 422 too."""
        browser = decode_body(_browser, body, PushSubscription)
        try:
            push_channel.check_push(browser, self._config)
        except Invalid as error:
            raise media_types.unacceptable(Invalid(error.detail, f"$.{error.path}")) from None
        await self._addresses.change(key, lambda found: found.with_browser(browser))

    async def remove(self, key: str, id: str) -> None:
        """Forget a browser of the user; idempotent. Raises Problem: 404, no browser has such an id."""
        if _ID.fullmatch(id) is None:
            raise not_found("the id of a browser has 32 hexadecimal digits")
        await self._addresses.change(key, lambda found: found.without_browser(id))


def browser_routes(access: Access, browsers: OwnBrowsers) -> list[Route]:
    """The endpoints."""

    def bearer(request: Request) -> str:
        principal = access.authenticate(request, "connect")
        return mailbox_key(principal.tenant, principal.user)

    async def read_key(request: Request) -> Response:
        """`GET /v1/channels/push`."""
        bearer(request)
        return json_answer(await browsers.key())

    async def add(request: Request) -> Response:
        """`PUT /v1/channels/push`."""
        key = bearer(request)
        access.gateway.check_room(split_key(key)[0])
        await browsers.add(key, await access.body(request))
        return Response(status_code=204)

    async def remove(request: Request) -> Response:
        """`DELETE /v1/channels/push/{id}`."""
        await browsers.remove(bearer(request), request.path_params["id"])
        return Response(status_code=204)

    return [route(PATH, GET=read_key, PUT=add), route(f"{PATH}/{{id:segment}}", DELETE=remove)]
