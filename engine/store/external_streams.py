"""The stream for other systems: connects, disconnects and presence of all users.

It is bounded, and the oldest entries go; how far they went is noted, for `engine.features.event_groups.store`.

With the presence goes the set of users who are online, for the successor of a shard: a user whose event is lost because storage was away
for long is told offline by a later successor, or is not told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import redis.asyncio as redis
from redis.exceptions import RedisError

from engine.core.model.routing import slot_of, split_key
from engine.core.shard.output import SessionEvent
from engine.core.wire.records import TRANSPORTS
from engine.errors import StorageUnavailable
from engine.store.keys import online_key, session_stream_key, trimmed_mark_key
from engine.store.lua import Script

_TRIM = Script("external_trim")


async def trim_external(
    client: redis.Redis, stream: str, entries_max: int, added: int, bytes_max: int = 0, entry_bytes_max: int = 1
) -> None:
    """Trim a stream that other systems read to about so many entries and bytes (0: no limit). `added`: as many were just appended.

    Raises StorageUnavailable.
    """
    count_min = bytes_max // entry_bytes_max
    await _TRIM.run(client, [stream, trimmed_mark_key(stream)], [entries_max, bytes_max, count_min, added])


async def trim_session_events(client: redis.Redis, length_max: int, added: int) -> None:
    """Trim `session:stream` to about so many entries. `added`: as many were just appended. Raises StorageUnavailable."""
    await trim_external(client, session_stream_key(), length_max, added)


async def write_session_events(client: redis.Redis, events: Sequence[SessionEvent], *, own: redis.Redis | None = None) -> None:
    """Append events to `session:stream`: event, tenant, user, session, device, node, transport, at, code. Update who is online.

    Whoever is online by these events is added before they are written, and whoever is not is removed after it. So a user of whom the stream
    says that they are online is in the set, whatever ends in between, and a successor tells their end.

    Args:
        own: of the server that has the users, which has the set; `client` when left out.

    Raises StorageUnavailable; some may have been written.
    """
    own = own or client
    online = {event.key: event.online for event in events if event.online is not None}
    try:
        pipeline = own.pipeline(transaction=False)
        for key in (key for key, is_online in online.items() if is_online):
            pipeline.sadd(online_key(slot_of(key)), key)
        if own is not client:
            await pipeline.execute()
            pipeline = client.pipeline(transaction=False)
        for event in events:
            pipeline.xadd(session_stream_key(), _fields(event))  # type: ignore[arg-type]
        if own is not client:
            await pipeline.execute()
            pipeline = own.pipeline(transaction=False)
        for key in (key for key, is_online in online.items() if not is_online):
            pipeline.srem(online_key(slot_of(key)), key)
        await pipeline.execute()
    except (RedisError, OSError) as error:
        raise StorageUnavailable(f"session stream: {error}") from error


def _fields(event: SessionEvent) -> dict[str | bytes, str | bytes | int]:
    tenant, user = split_key(event.key)
    return {
        "event": event.event,
        "tenant": tenant,
        "user": user,
        "session": event.session,
        "device": event.device,
        "node": event.edge,
        "transport": TRANSPORTS[event.transport],
        "at": event.at_ms,
        "code": event.code,
    }


async def read_online(client: redis.Redis, slots: Iterable[int]) -> list[str]:
    """Return the mailbox keys of the users of these slots who were online as of the last event. Raises StorageUnavailable."""
    try:
        pipeline = client.pipeline(transaction=False)
        for slot in slots:
            pipeline.smembers(online_key(slot))
        sets: list[Any] = await pipeline.execute()
    except (RedisError, OSError) as error:
        raise StorageUnavailable(f"users online: {error}") from error
    return [key.decode() for keys in sets for key in keys]
