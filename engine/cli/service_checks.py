"""The checks of `engine doctor` that ask the services which the settings name. One that is not named is not mentioned."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final

from redis.exceptions import RedisError

from engine.auth.keyring import Keyring
from engine.cli.finding import Finding
from engine.config import Config
from engine.errors import EngineError
from engine.store.redis_client import connect, display_url, durability_warnings, wait_ready
from engine.store.stores import each_store

_ANSWER_S: Final = 5.0
_CLOCKS_APART_S: Final = 1.0
"""More than the way to a Redis takes; timers fire by one clock and were written by the other."""


async def redis_servers(config: Config) -> AsyncIterator[Finding]:
    """Version, durability, replicas and clock of each store of `redis_url`."""
    if config.address and (not config.redis_url or config.redis_url.startswith("unix:")):
        yield Finding("Redis", "failed", "redis_url: with address every node must reach Redis", "give redis://HOST:6379/0")
        return
    if not config.redis_url:
        return
    for store in each_store(config):
        where = display_url(store.redis_url)
        try:
            async with connect(store) as client:
                version = await wait_ready(client, store, _ANSWER_S)
                warnings = await durability_warnings(client, config)
                seconds, microseconds = await client.time()
        except (EngineError, RedisError, OSError) as error:
            yield Finding("Redis", "failed", str(error) if isinstance(error, EngineError) else f"{where}: {error}")
            continue
        apart_s = abs(time.time() - seconds - microseconds / 1_000_000)
        if apart_s > _CLOCKS_APART_S:
            warnings.append(f"its clock and the one of this machine are {apart_s:.1f} s apart")
        for warning in warnings:
            yield Finding("Redis", "warning", f"{where}: {warning}")
        if not warnings:
            yield Finding("Redis", "ok", f"{version} at {where}, keeps what a 202 promises")


async def ray_cluster(config: Config) -> AsyncIterator[Finding]:
    """Whether a Ray cluster answers at `address`, by its port only: to join it takes seconds."""
    host, _, port = config.address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        async with asyncio.timeout(_ANSWER_S):
            _, writer = await asyncio.open_connection(host, int(port))
    except (OSError, OverflowError, UnicodeError) as error:  # a timeout is one; a port above 65535; a host that no resolver takes
        told = getattr(error, "strerror", None) or "no answer"
        yield Finding("Ray", "failed", f"address: nothing listens at {config.address} ({told})", "`ray status` on its head node")
    else:
        writer.close()
        yield Finding("Ray", "ok", f"something listens at {config.address}")


async def key_list(config: Config) -> AsyncIterator[Finding]:
    """Whether the identity provider lists its keys."""
    if not config.jwt_jwks_url:
        return
    try:
        found = await Keyring(config).fetch()
    except EngineError as error:
        yield Finding("keys", "failed", str(error))
    except Exception as error:  # whatever a foreign server sends
        yield Finding("keys", "failed", f"jwt_jwks_url: {display_url(config.jwt_jwks_url)}: {str(error) or type(error).__name__}")
    else:
        yield Finding("keys", "ok", f"{len(found)} listed by {display_url(config.jwt_jwks_url)}")
