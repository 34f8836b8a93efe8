"""What an edge knows of the Redis behind it: how much of its memory is used, and what it keeps of accepted messages.

A Redis at `maxmemory` rejects every write that could need memory, so acknowledgements, checkpoints and with them the release of memory
would stop too. Therefore edges stop accepting before that: `RESERVE` of the limit is left to what the engine has accepted already. They
resume when `RESUME` of the limit is free. An edge asks once a second, and ten times a second above `NEAR`: meanwhile one shard journals
some megabytes.

A server without a limit, or one that does not show it, never refuses for this reason.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import redis.asyncio as redis
from redis.exceptions import RedisError

from engine.errors import Overloaded
from engine.store.durability import AS_PROMISED, read_durability

log = logging.getLogger(__name__)

RESERVE: Final = 0.1
"""Share of the limit that only the engine's own writes may use."""

RESUME: Final = 0.15
"""Share of the limit that must be free before edges accept again: at one threshold they would flap."""

NEAR: Final = 0.25
"""Share of the limit below which, when only this much is free, the state is read more often."""

_READ_S: Final = 1.0
_READ_NEAR_S: Final = 0.1
_RETRY_MS: Final = 5000  # for refused publishers: memory becomes free as clients acknowledge and messages expire


class StorageState:
    """The state as of the last read. Before the first one nothing is refused.

    Attributes:
        used_bytes: what counts against the limit.
        limit_bytes: the server's `maxmemory`; 0 when it has none, or does not tell.
        durability: a word of `engine.store.durability`.
        full: nothing more is accepted.
    """

    def __init__(self) -> None:
        self.used_bytes = 0
        self.limit_bytes = 0
        self.durability = AS_PROMISED
        self.full = False

    def measured(self, used_bytes: int, limit_bytes: int) -> None:
        """Take a measurement."""
        self.used_bytes, self.limit_bytes = used_bytes, limit_bytes
        needed = RESUME if self.full else RESERVE
        self.full = limit_bytes > 0 and limit_bytes - used_bytes < needed * limit_bytes

    def check_room(self) -> None:
        """Raise Overloaded when nothing more may be stored."""
        if self.full:
            raise Overloaded(
                f"storage holds {self.used_bytes >> 20} MiB of the {self.limit_bytes >> 20} MiB that it may (redis_memory_bytes_max); "
                "nothing is accepted until messages are acknowledged or expire",
                _RETRY_MS,
            )

    async def read(self, client: redis.Redis) -> None:
        """Ask the server. While it does not answer, the last state holds."""
        try:
            info: dict[str, Any] = await client.info("memory")
            self.durability = await read_durability(client)
        except (RedisError, OSError) as error:
            log.info("the state of storage is not known: %s", error)
            return
        # Redis does not count the buffers of replicas and of the append-only file either when it compares with `maxmemory`.
        used = int(info.get("used_memory", 0)) - int(info.get("mem_not_counted_for_evict", 0))
        self.measured(used, int(info.get("maxmemory", 0)))

    async def follow(self, client: redis.Redis) -> None:
        """Read it for ever."""
        while True:
            await self.read(client)
            near = self.limit_bytes > 0 and self.limit_bytes - self.used_bytes < NEAR * self.limit_bytes
            await asyncio.sleep(_READ_NEAR_S if near else _READ_S)
