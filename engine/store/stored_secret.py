"""A secret that all processes of an engine share: random bytes in Redis, made by the first that asks.

Every process needs Redis to start in any case, and whoever can read it there can read and write all messages anyway, so it needs no better
protection than Redis has. It is as durable as what the engine accepts, and part of a snapshot. An actor, a controller or a head node that
starts again finds the secrets of those that live.
"""

from __future__ import annotations

import secrets
from typing import Any

import redis.asyncio as redis

from engine.core.wire.link_handshake import KEY_BYTES
from engine.errors import StorageUnavailable
from engine.store.keys import LINK_KEY_KEY
from engine.store.storage_calls import StorageCalls


async def claim_secret(client: redis.Redis, key: str, size_bytes: int, what: str) -> bytes:
    """The secret under this key; made when there is none.

    Args:
        what: its name in errors.

    Raises:
        StorageUnavailable: no reply, or what is stored has another size.
    """
    with StorageCalls(what):
        stored: Any = await client.get(key)
        if stored is None:  # only then: a Redis that is full has one
            await client.set(key, secrets.token_bytes(size_bytes), nx=True)
            stored = await client.get(key)
    if stored is None or len(stored) != size_bytes:
        raise StorageUnavailable(f"{what}: {key} in Redis has not {size_bytes} bytes; delete it, and another one is made")
    return bytes(stored)


async def claim_link_key(client: redis.Redis) -> bytes:
    """The link key, with which actors of different nodes prove to each other that they belong to the same engine.

    It is in nothing that Ray keeps or hands out: no argument, no result, no configuration. Ray has the password of Redis encrypted, with a
    key that is derived from this one (`engine.store.sealed_config`). When Redis has lost it, or an operator deleted it (`DEL
    engine:link-key`, which is how it is rotated), the next to ask makes another. Running links are not concerned, and an actor whose proof
    is rejected reads it again.

    Raises:
        StorageUnavailable: no reply, or what is stored is no key.
    """
    return await claim_secret(client, LINK_KEY_KEY, KEY_BYTES, "link key")
