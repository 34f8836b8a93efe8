"""Streams for other systems: dead letters per tenant, and the connects, disconnects and presence of all users.

With the presence goes the set of users who are online, for the successor of a shard: a user whose event is lost because storage was away
for long is told offline by a later successor, or is not told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import redis.asyncio as redis
from redis.exceptions import RedisError

from engine.core.model.constants import PRIORITIES
from engine.core.model.routing import slot_of, split_key
from engine.core.shard.mailbox_store import DeadLetter
from engine.core.shard.output import SessionEvent
from engine.core.wire.records import TRANSPORTS
from engine.errors import StorageUnavailable
from engine.store.keys import dead_letter_key, online_key, session_stream_key
from engine.store.lua import Script

_TRIM = Script("stream_trim")


async def write_dead_letters(
    client: redis.Redis, letters: Sequence[DeadLetter], length_max: int, bytes_max: int = 0, letter_bytes_max: int = 1
) -> None:
    """Append messages that clients rejected to `dead:<tenant>`: user, seq, id, priority, reason, attempts, body (a JSON object).

    At most `length_max` are kept, and about `bytes_max` bytes, 0 for no limit; the oldest go. One has at most `letter_bytes_max`.

    Raises StorageUnavailable; some may have been written, and a repeat writes those twice.
    """
    try:
        pipeline = client.pipeline(transaction=False)
        for letter in letters:
            tenant, user = split_key(letter.key)
            message = letter.message
            fields: dict[str | bytes, str | bytes | int] = {
                "user": user,
                "seq": message.seq,
                "id": message.envelope.id,
                "priority": PRIORITIES[message.envelope.priority],
                "reason": letter.reason,
                "attempts": message.attempts,
                "body": b"{%b}" % message.envelope.body,
            }
            pipeline.xadd(dead_letter_key(tenant), fields, maxlen=length_max, approximate=True)  # type: ignore[arg-type]
        await pipeline.execute()
    except (RedisError, OSError) as error:
        raise StorageUnavailable(f"dead letters: {error}") from error
    if bytes_max:
        tenants = Counter(split_key(letter.key)[0] for letter in letters)
        keys = [dead_letter_key(tenant) for tenant in tenants]
        await _TRIM.run(client, keys, [bytes_max, bytes_max // letter_bytes_max, *tenants.values()])


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
