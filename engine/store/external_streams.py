"""The stream for other systems: connects, disconnects and presence of all users.

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
from engine.store.keys import online_key, session_stream_key


async def write_session_events(client: redis.Redis, events: Sequence[SessionEvent], length_max: int) -> None:
    """Append events to `session:stream`: event, tenant, user, session, device, node, transport, at, code. Update who is online.

    Raises StorageUnavailable; some may have been written.
    """
    try:
        pipeline = client.pipeline(transaction=False)
        for event in events:
            tenant, user = split_key(event.key)
            fields: dict[str | bytes, str | bytes | int] = {
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
            pipeline.xadd(session_stream_key(), fields, maxlen=length_max, approximate=True)  # type: ignore[arg-type]
            if event.online is not None:
                (pipeline.sadd if event.online else pipeline.srem)(online_key(slot_of(event.key)), event.key)
        await pipeline.execute()
    except (RedisError, OSError) as error:
        raise StorageUnavailable(f"session stream: {error}") from error


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
