"""`/v1/users/{user}/channels`: the addresses of a user. The feature on an edge: it arms steps, and carries out those that are due."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.api.json_bodies import decode_body
from engine.config import Config
from engine.core.model.action import ChannelTarget
from engine.core.model.routing import split_key
from engine.errors import Invalid, StorageUnavailable
from engine.features.actions.store import append_actions
from engine.features.reach import description
from engine.features.reach.apprise_channel import check_url
from engine.features.reach.arming import StepArming
from engine.features.reach.core.addresses import NO_ADDRESSES, Addresses, check_addresses, decoder, encode_addresses
from engine.features.reach.deliveries import AddressBook, AppendActions, StepDeliveries
from engine.features.reach.store import AddressStore
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.http.problems import RETRY_AFTER_S, unavailable
from engine.publish import media_types


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    return feature_of(ports, AddressStore(ports.redis, ports.config), partial(append_actions, ports.redis, ports.config))


def feature_of(ports: EdgePorts, addresses: AddressBook, append: AppendActions) -> EdgeFeature:
    """The feature, with this storage."""
    gateway = ports.gateway

    async def rows(key: str) -> AsyncIterator[bytes]:
        found = await addresses.read(key)
        if found != NO_ADDRESSES:
            yield encode_addresses(found)

    gateway.target_callers[ChannelTarget] = StepDeliveries(ports.config, addresses, append).call
    gateway.arm_steps = StepArming(gateway.shard_client, gateway.wall_ms).arm
    gateway.kept_of_user["channels"] = rows
    gateway.erase_of_user["channels"] = addresses.erase
    return EdgeFeature("reach", lambda access: table(access, addresses))


def table(access: Access, addresses: AddressBook) -> EndpointTable:
    """The endpoints."""

    async def read(request: Request) -> Response:
        """`GET /v1/users/{user}/channels?tenant=`."""
        key = access.user_of(request, own=True)
        try:
            return json_answer(Raw(encode_addresses(await addresses.read(key))))
        except StorageUnavailable as error:
            raise unavailable(str(error), RETRY_AFTER_S) from None

    async def write(request: Request) -> Response:
        """`PUT /v1/users/{user}/channels`."""
        key = access.user_of(request, own=False)
        access.gateway.check_room(split_key(key)[0])
        given = await parse(await access.body(request), access.config)
        try:
            await addresses.write(key, given)
        except StorageUnavailable as error:
            raise unavailable(str(error), RETRY_AFTER_S) from None
        return json_answer(Raw(encode_addresses(given)))

    return EndpointTable([route("/v1/users/{user:segment}/channels", GET=read, PUT=write)], description)


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
    except Invalid as error:
        raise media_types.unacceptable(error) from None
    return given
