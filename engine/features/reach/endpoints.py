"""`/v1/users/{user}/channels`: the addresses of a user. The feature on an edge: it arms steps, and carries out those that are due."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.api.json_bodies import decode_body
from engine.core.model.action import ChannelTarget, Target
from engine.core.model.routing import mailbox_key, split_key
from engine.errors import ActionFailed, Invalid, StorageUnavailable
from engine.features.actions.store import QueuedAction
from engine.features.reach import description
from engine.features.reach.arming import StepArming
from engine.features.reach.core.addresses import NO_ADDRESSES, Addresses, check_addresses, decoder, encode_addresses
from engine.features.reach.email_channel import EmailChannel
from engine.features.reach.store import AddressStore
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.http.problems import RETRY_AFTER_S, unavailable
from engine.publish import media_types


class Addressing(Protocol):
    """Where the addresses are, see `engine.features.reach.store`. Every method raises StorageUnavailable."""

    async def read(self, key: str) -> Addresses: ...

    async def write(self, key: str, addresses: Addresses) -> None: ...

    async def erase(self, key: str) -> None: ...


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    return feature_of(ports, AddressStore(ports.redis, ports.config))


def feature_of(ports: EdgePorts, addresses: Addressing) -> EdgeFeature:
    """The feature, with this storage."""
    gateway, config = ports.gateway, ports.config
    email = EmailChannel(config)

    async def call(target: Target, action: QueuedAction) -> None:
        """Carry out a step: send it to the user's address of its channel. Raises ActionFailed."""
        assert isinstance(target, ChannelTarget), "it is registered for channels"
        try:
            found = await addresses.read(mailbox_key(action.tenant, action.user))
        except StorageUnavailable as error:
            raise ActionFailed(str(error)) from None
        if target.channel != "email":
            raise ActionFailed(f"there is no channel {target.channel}", final=True)
        if found.email:
            await email.send(action, found.email)

    async def rows(key: str) -> AsyncIterator[bytes]:
        found = await addresses.read(key)
        if found != NO_ADDRESSES:
            yield encode_addresses(found)

    gateway.target_callers[ChannelTarget] = call
    gateway.arm_steps = StepArming(gateway.shard_client, gateway.wall_ms).arm
    gateway.kept_of_user["channels"] = rows
    gateway.erase_of_user["channels"] = addresses.erase
    return EdgeFeature("reach", lambda access: table(access, addresses))


def table(access: Access, addresses: Addressing) -> EndpointTable:
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
        given = parse(await access.body(request))
        try:
            await addresses.write(key, given)
        except StorageUnavailable as error:
            raise unavailable(str(error), RETRY_AFTER_S) from None
        return json_answer(Raw(encode_addresses(given)))

    return EndpointTable([route("/v1/users/{user:segment}/channels", GET=read, PUT=write)], description)


def parse(body: bytes) -> Addresses:
    """The addresses in the body of a request. Raises Problem: 400 or 422."""
    given = decode_body(decoder, body, Addresses)
    try:
        check_addresses(given)
    except Invalid as error:
        raise media_types.unacceptable(error) from None
    return given
