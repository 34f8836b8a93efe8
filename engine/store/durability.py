"""What a Redis keeps of an accepted message: read from its configuration, compared with what a `202` promises.

Promised is "fsynced before the 202": `appendonly yes`, `appendfsync always`, `maxmemory-policy noeviction`. Redis's own defaults keep
less. With `redis_durability = "required"` every connection asks the server for its configuration before it is used, and is closed when
the server keeps less. So a weaker server is refused at the start, and after a fail-over it counts as one that does not answer: publishers
get 503. With "reported" it is used, and the edges say so on `/readyz` and in every 202 (`engine.store.storage_state` asks again each
second, so that a fail-over and CONFIG SET are noticed).

Managed services often forbid CONFIG. Then nothing is known: `UNKNOWN`, which is reported and not refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import redis.asyncio as redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError, RedisError, ResponseError

AS_PROMISED: Final = ""
EVERYSEC: Final = "everysec"
OS: Final = "os"
MEMORY: Final = "memory"
EVICTABLE: Final = "evictable"
UNKNOWN: Final = "unknown"

REASONS: Final[Mapping[str, str]] = {
    UNKNOWN: "it does not show its configuration (CONFIG GET), so what it keeps of accepted messages is unknown",
    EVERYSEC: "appendfsync everysec: a power cut loses the last second or two of what was accepted",
    OS: "appendfsync no: a power cut loses what the operating system has not written, half a minute or more",
    MEMORY: "appendonly no: what was accepted does not survive a restart of Redis",
    EVICTABLE: "maxmemory-policy is not noeviction: Redis may evict what was accepted",
}
"""Each word that says that less is kept than promised, and what it means; the least is last."""

_PATTERNS: Final = ("append*", "maxmemory-policy")  # before 7.0 CONFIG GET takes one pattern


class WeakDurability(ConnectionError):
    """This server keeps less than promised, and `redis_durability` requires what is promised."""

    def __init__(self, word: str) -> None:
        super().__init__(
            f"keeps less than a 202 promises ({REASONS[word]}); set appendonly yes, appendfsync always and maxmemory-policy noeviction "
            'there, or accept it with redis_durability = "reported"'
        )


def durability(settings: Mapping[str, str]) -> str:
    """The word for what a server with these settings keeps, the worst that holds; `AS_PROMISED` when nothing is missing."""
    if "appendonly" not in settings:
        return UNKNOWN
    if settings.get("maxmemory-policy", "noeviction") != "noeviction":
        return EVICTABLE
    if settings["appendonly"] != "yes":
        return MEMORY
    return {"always": AS_PROMISED, "everysec": EVERYSEC}.get(settings.get("appendfsync", ""), OS)


def _settings(replies: Sequence[Any]) -> dict[str, str]:
    """The settings in replies to CONFIG GET: lists in RESP2, maps in RESP3; an error reply is left out."""
    found: dict[str, str] = {}
    for reply in replies:
        if isinstance(reply, Exception):
            continue
        pairs = reply.items() if isinstance(reply, Mapping) else zip(reply[::2], reply[1::2], strict=True)
        found |= {_text(name): _text(value) for name, value in pairs}
    return found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


async def read_durability(client: redis.Redis) -> str:
    """The word for what the server that answers now keeps. Raises RedisError or OSError when none answers."""
    pipeline = client.pipeline(transaction=False)
    for pattern in _PATTERNS:
        pipeline.config_get(pattern)
    replies = await pipeline.execute(raise_on_error=False)
    for reply in replies:
        if isinstance(reply, RedisError) and not isinstance(reply, ResponseError):
            raise reply
    return durability(_settings(replies))


class VerifiedConnection(AbstractConnection):
    """Mixin for connection classes: a new connection is closed unless its server keeps what is promised."""

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        """After authentication, and before any other command. Raises WeakDurability."""
        await super().on_connect_check_health(check_health)
        replies: list[Any] = []
        for pattern in _PATTERNS:
            await self.send_command("CONFIG", "GET", pattern, check_health=False)
            try:
                replies.append(await self.read_response())
            except ResponseError as error:
                replies.append(error)
        word = durability(_settings(replies))
        if word not in (AS_PROMISED, UNKNOWN):
            raise WeakDurability(word)
