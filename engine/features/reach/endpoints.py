"""`/v1/users/{user}/channels` and `/v1/channels`: the addresses of a user, for the application and for the user itself.

The feature on an edge: it arms steps, and carries out those that are due.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from functools import partial

import msgspec
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.api.access import Access
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.api.json_bodies import decode_body
from engine.config import CATCH_MAILS, Config
from engine.core.model.routing import mailbox_key, split_key
from engine.core.model.step import CHANNELS
from engine.errors import Invalid
from engine.features.actions.store import append_actions
from engine.features.policy.link_page import FORM_BYTES_MAX
from engine.features.policy.unsubscribing import LinkKey, RememberedKey, stored_key
from engine.features.reach import description
from engine.features.reach.apprise_channel import check_url
from engine.features.reach.arming import StepArming
from engine.features.reach.caught_mails import CaughtMails, encode_mail
from engine.features.reach.core.addresses import NO_ADDRESSES, Addresses, check_addresses, decoder, encode_addresses
from engine.features.reach.deliveries import AppendActions, StepDeliveries
from engine.features.reach.email_channel import EmailChannel
from engine.features.reach.keys import PUSH_KEY_KEY
from engine.features.reach.own_browsers import browser_routes
from engine.features.reach.own_channels import PATH, OwnChannels
from engine.features.reach.push_channel import SECRET_BYTES, PushChannel, StoredSecret, check_push
from engine.features.reach.store import AddressStore
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.http.problems import not_found
from engine.publish import media_types
from engine.store.stored_secret import claim_secret


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    store = AddressStore(ports.redis, ports.config)
    secret = RememberedKey(partial(claim_secret, ports.redis, PUSH_KEY_KEY, SECRET_BYTES, "push key"), ports.gateway.clock)
    return feature_of(ports, store, partial(append_actions, ports.redis, ports.config), stored_key(ports), secret)


def feature_of(
    ports: EdgePorts, addresses: AddressStore, append: AppendActions, link_key: LinkKey, push_secret: StoredSecret
) -> EdgeFeature:
    """The feature, with this storage."""
    gateway = ports.gateway

    async def rows(key: str) -> AsyncIterator[bytes]:
        found = await addresses.read(key)
        if found != NO_ADDRESSES:
            yield encode_addresses(found)

    async def caught_rows(key: str) -> AsyncIterator[bytes]:
        for mail in await caught.read():
            if mail.key == key:
                yield encode_mail(mail)

    caught = CaughtMails(ports.redis)
    email, push = EmailChannel(ports.config, caught), PushChannel(ports.config, push_secret, gateway.wall_ms)
    deliveries = StepDeliveries(ports.config, addresses, append, push, email, gateway.wall_ms)
    gateway.channel_callers.update(dict.fromkeys(CHANNELS, deliveries.call))
    gateway.arm_steps = StepArming(gateway.shard_client, gateway.wall_ms).arm
    gateway.kept_of_user["channels"] = rows
    gateway.erase_of_user["channels"] = addresses.erase
    if ports.config.smtp_url == CATCH_MAILS:
        gateway.kept_of_user["caught_mails"] = caught_rows
        gateway.erase_of_user["caught_mails"] = caught.erase
    own = OwnChannels(ports.config, addresses, link_key, gateway.wall_ms, email)
    return EdgeFeature("reach", lambda access: table(access, addresses, own, push_secret, caught), drain=email.close)


def table(access: Access, addresses: AddressStore, own: OwnChannels, push_secret: StoredSecret, caught: CaughtMails) -> EndpointTable:
    """The endpoints."""

    async def read(request: Request) -> Response:
        """`GET /v1/users/{user}/channels?tenant=`."""
        key = access.user_of(request, own=True)
        return await _answer(addresses.read(key))

    async def write(request: Request) -> Response:
        """`PUT /v1/users/{user}/channels`."""
        key = access.user_of(request, own=False)
        access.gateway.check_room(split_key(key)[0])
        body = await access.body(request)
        given = await parse(body, access.config)
        if "push" in msgspec.json.decode(body):
            return await _answer(addresses.change(key, lambda _: given))
        return await _answer(addresses.change(key, lambda found: msgspec.structs.replace(given, push=found.push)))

    def bearer(request: Request) -> str:
        principal = access.authenticate(request, "connect")
        return mailbox_key(principal.tenant, principal.user)

    async def read_own(request: Request) -> Response:
        """`GET /v1/channels`."""
        return await _answer(addresses.read(bearer(request)))

    async def ask_email(request: Request) -> Response:
        """`PUT /v1/channels/email`: a mail asks its mailbox."""
        key = bearer(request)
        access.gateway.check_room(split_key(key)[0])
        answer = await own.ask(key, await access.body(request), request.headers.get("accept-language", ""))
        return json_answer(answer, 202 if "confirm_until" in answer else 200)

    async def remove_email(request: Request) -> Response:
        """`DELETE /v1/channels/email`."""
        return await _answer(addresses.change(bearer(request), lambda found: msgspec.structs.replace(found, email="")))

    async def show_link(request: Request) -> Response:
        """`GET /v1/channels/confirm?token=`; the link is all that it needs."""
        return await own.show(request.query_params.get("token", ""), request.headers.get("accept-language", ""))

    async def confirm(request: Request) -> Response:
        """`POST /v1/channels/confirm?token=`; likewise."""
        await access.bodies.read(request.scope, request.receive, FORM_BYTES_MAX)
        return await own.confirm(request.query_params.get("token", ""), request.headers.get("accept-language", ""))

    routes = [
        route("/v1/users/{user:segment}/channels", GET=read, PUT=write),
        route("/v1/channels", GET=read_own),
        route("/v1/channels/email", PUT=ask_email, DELETE=remove_email),
        *browser_routes(access, addresses, push_secret, bearer),
        route(PATH, GET=show_link, POST=confirm),
        _caught_route(access, caught),
    ]
    return EndpointTable(routes, description, (PATH,))


def _caught_route(access: Access, caught: CaughtMails) -> Route:
    async def show_caught(request: Request) -> Response:
        """`GET /v1/caught-mails`: what would have been sent."""
        access.authenticate(request, "operator")
        if access.config.smtp_url != CATCH_MAILS:
            raise not_found("this engine catches no mails: the setting smtp_url is not catch://")
        mails = await caught.read()
        return json_answer({"mails": [{"at": mail.at, "to": mail.to, "subject": mail.subject, "text": mail.text} for mail in mails]})

    return route("/v1/caught-mails", GET=show_caught)


async def _answer(addresses: Awaitable[Addresses]) -> Response:
    """These addresses, as they are kept."""
    return json_answer(Raw(encode_addresses(await addresses)))


async def parse(body: bytes, config: Config) -> Addresses:
    """The addresses in the body of a request. Raises Problem: 400 or 422."""
    given = decode_body(decoder, body, Addresses)
    try:
        check_addresses(given)
        for index, url in enumerate(given.apprise):
            try:
                await asyncio.to_thread(check_url, url, config.apprise_urls)
            except Invalid as error:
                raise Invalid(error.detail, f"$.apprise[{index}]") from None
        for index, browser in enumerate(given.push):
            try:
                check_push(browser, config)
            except Invalid as error:
                raise Invalid(error.detail, f"$.push[{index}].{error.path}") from None
    except Invalid as error:
        raise media_types.unacceptable(error) from None
    return given
