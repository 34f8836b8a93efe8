"""Entries of a stream of Redis, for one consumer of a group, which is made where it is missing."""

from __future__ import annotations

from typing import Any

import redis.asyncio as redis
from redis.exceptions import ResponseError


async def read_group(
    client: redis.Redis, stream: str, group: str, consumer: str, count: int, *, again: bool = False, make_stream: bool = True
) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Up to `count` entries: new ones, or `again` those that are pending for the consumer. A deleted one has no fields.

    Args:
        make_stream: with the group; otherwise a stream that does not exist has no entries.

    Raises RedisError, OSError.
    """
    try:
        found: Any = await client.xreadgroup(group, consumer, {stream: "0" if again else ">"}, count)
    except ResponseError as error:
        if not str(error).startswith("NOGROUP"):
            raise
        if not make_stream and not await client.exists(stream):
            return []
        try:
            await client.xgroup_create(stream, group, "0", mkstream=make_stream)
        except ResponseError as refused:
            if not str(refused).startswith("BUSYGROUP"):  # another consumer was faster
                raise
        return await read_group(client, stream, group, consumer, count, again=again, make_stream=make_stream)
    entries = found[0][1] if isinstance(found, list) and found else next(iter(found.values()))[0] if found else []
    return [(entry, fields or {}) for entry, fields in entries]
