"""Which engine uses this Redis: two on one database would take users, timers and epochs from each other in turns.

States of the lease, a key that expires
    free       `claim_redis` takes it
    held       by an engine whose controller renews it in every round; it is given back when that engine stops in order
    left       by an engine that was killed: nobody renews it, and it becomes free when it expires

An engine that starts again is the same engine: its name says on which machine and data directory, or in which Ray cluster, it runs. One
that finds another's lease watches it: a lease that grows is held, and the start is refused; one that does not is free after the lease time.

The lease is no fence. A controller that was paused for longer finds the fencing epoch of its successor (`engine.store.epoch`).
"""

from __future__ import annotations

import asyncio
from typing import Final

import redis.asyncio as redis

from engine.errors import ConfigError
from engine.store.keys import LEASE_KEY

_LOOK_S: Final = 0.25


async def claim_redis(client: redis.Redis, engine: str, lease_ms: int) -> None:
    """Take the lease for this engine. Waits while an engine that was killed may still have it.

    Raises:
        ConfigError: another engine holds it.
        RedisError, OSError: no reply.
    """
    left_ms = -1
    while not await client.set(LEASE_KEY, engine, nx=True, px=lease_ms):
        holder = bytes(await client.get(LEASE_KEY) or b"").decode()  # type: ignore[arg-type]  # replies are bytes
        if holder == engine:
            break
        before_ms, left_ms = left_ms, await client.pttl(LEASE_KEY)
        if holder and 0 <= before_ms < left_ms:
            raise ConfigError(
                f"redis_url: the engine {holder} uses this database of Redis; two engines need a database each (redis://HOST:PORT/1), "
                "or a Redis each"
            )
        await asyncio.sleep(_LOOK_S)
    await renew_lease(client, engine, lease_ms)


async def renew_lease(client: redis.Redis, engine: str, lease_ms: int) -> None:
    """Keep the lease; only the controller in control may. Raises RedisError or OSError."""
    await client.set(LEASE_KEY, engine, px=lease_ms)


async def end_lease(client: redis.Redis, engine: str) -> None:
    """Give the lease back, so that another engine can start at once. Raises RedisError or OSError."""
    if await client.get(LEASE_KEY) == engine.encode():
        await client.delete(LEASE_KEY)
