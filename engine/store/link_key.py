"""The engine's link key, with which actors of different nodes prove to each other that they belong to the same engine.

It is in Redis, which every actor needs to start in any case: an actor, a controller or a head node that starts again finds the key of
those that live. It is in nothing that Ray keeps or hands out: no argument, no result, no configuration. Whoever can read it in Redis can
read and write all messages anyway, so it needs no better protection than Redis has: its password, which Ray has encrypted, with a key that
is derived from this one (`engine.store.sealed_config`).

The first actor that asks makes it. When Redis has lost it, or an operator deleted it (`DEL engine:link-key`, which is how it is rotated),
the next to ask makes another; running links are not concerned, and an actor whose proof is rejected reads it again.
"""

from __future__ import annotations

import redis.asyncio as redis

from engine.core.wire.link_handshake import KEY_BYTES
from engine.store.keys import LINK_KEY_KEY
from engine.store.stored_secret import claim_secret


async def claim_link_key(client: redis.Redis) -> bytes:
    """The link key; made when there is none.

    Raises:
        StorageUnavailable: no reply, or what is stored is no key.
    """
    return await claim_secret(client, LINK_KEY_KEY, KEY_BYTES, "link key")
