"""The addresses of users, in Redis: a hash per tenant on the first server. Each value names its owner in its checksum."""

from __future__ import annotations

from typing import Any

import msgspec
import redis.asyncio as redis
from redis.exceptions import RedisError

from engine.config import Config
from engine.core.model.routing import split_key
from engine.core.model.sealed import sealed, unsealed
from engine.errors import StorageUnavailable
from engine.features.reach.core.addresses import NO_ADDRESSES, Addresses, decoder, encode_addresses
from engine.store.keys import channels_key
from engine.store.lua import Replicas


class AddressStore:
    """The addresses of all users. `client`: of the first server. Every method raises StorageUnavailable."""

    def __init__(self, client: redis.Redis, config: Config) -> None:
        self._client = client
        self._replicas = Replicas.wanted(config)

    async def read(self, key: str) -> Addresses:
        """Those of the user with this mailbox key. A damaged value is none: nothing is sent to an address that may be another's."""
        tenant, user = split_key(key)
        try:
            stored: Any = await self._client.hget(channels_key(tenant), user)
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"addresses: {error}") from error
        return NO_ADDRESSES if stored is None else read_addresses(stored, key)

    async def write(self, key: str, addresses: Addresses) -> None:
        """Keep these, in place of those that were kept; durable on return. None leaves nothing."""
        tenant, user = split_key(key)
        pipeline = self._client.pipeline(transaction=False)
        if addresses == NO_ADDRESSES:
            pipeline.hdel(channels_key(tenant), user)
        else:
            pipeline.hset(channels_key(tenant), user, sealed(encode_addresses(addresses), key.encode()))
        self._replicas.ask(pipeline)
        try:
            replies: list[Any] = await pipeline.execute()
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"addresses: {error}") from error
        self._replicas.check(replies, "addresses")

    async def erase(self, key: str) -> None:
        """Forget those of a user; idempotent."""
        await self.write(key, NO_ADDRESSES)


def read_addresses(stored: bytes, key: str) -> Addresses:
    """The addresses in a stored value of this owner; none where it is damaged."""
    try:
        return decoder.decode(unsealed(stored, key.encode()))
    except msgspec.DecodeError:
        return NO_ADDRESSES
