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
import time
from typing import Any, Final

import redis.asyncio as redis
from redis.exceptions import RedisError

from engine.core.model.period import until_next
from engine.errors import Overloaded
from engine.store.cluster import node_of
from engine.store.durability import AS_PROMISED, REASONS, read_durability

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
        stores_away: the stores that do not answer, while others do.
        away: the same in words, with their nodes; "" when all answer.
    """

    def __init__(self) -> None:
        self.used_bytes = 0
        self.limit_bytes = 0
        self.durability = AS_PROMISED
        self.full = False
        self.stores_away: list[int] = []
        self.away = ""

    def measured(self, used_bytes: int, limit_bytes: int) -> None:
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

    async def read(self, *clients: redis.Redis) -> None:
        """Ask the stores: the fullest and the weakest of them counts. While none answers, the last state holds."""
        answers = await asyncio.gather(*map(_read, clients))
        found = [answer for answer in answers if answer is not None]
        if not found:
            return
        self.stores_away = [store for store, answer in enumerate(answers) if answer is None]
        self.away = "; ".join(
            f"store {store} does not answer (last at {node_of(clients[store]) or 'no node'})" for store in self.stores_away
        )
        self.durability = max((word for *_, word in found), key=(AS_PROMISED, *REASONS).index)
        used, limit, _ = max(found, key=lambda answer: answer[0] / answer[1] if answer[1] else 0.0)
        self.measured(used, limit)

    async def follow(self, *clients: redis.Redis) -> None:
        """Read it for ever."""
        while True:
            await self.read(*clients)
            near = self.limit_bytes > 0 and self.limit_bytes - self.used_bytes < NEAR * self.limit_bytes
            await asyncio.sleep(until_next(time.monotonic(), _READ_NEAR_S if near else _READ_S))


async def _read(client: redis.Redis) -> tuple[int, int, str] | None:
    """What a server uses, its limit, and a word of `engine.store.durability`; None when it does not answer."""
    try:
        info: dict[str, Any] = await client.info("memory")
        durability = await read_durability(client)
    except (RedisError, OSError) as error:
        log.info("the state of storage is not known: %s", error)
        return None
    # Redis does not count the buffers of replicas and of the append-only file either when it compares with `maxmemory`.
    return int(info.get("used_memory", 0)) - int(info.get("mem_not_counted_for_evict", 0)), int(info.get("maxmemory", 0)), durability
