"""Streams for other systems: dead letters per tenant, and the connects and disconnects of all users."""

from __future__ import annotations

from collections.abc import Sequence

import redis.asyncio as redis
from redis.exceptions import RedisError

from engine.core.model.constants import PRIORITIES
from engine.core.model.routing import split_key
from engine.core.shard.mailbox_store import DeadLetter
from engine.core.shard.output import SessionEvent
from engine.core.wire.records import TRANSPORTS
from engine.errors import StorageUnavailable
from engine.store.keys import dead_letter_key, session_stream_key


async def write_dead_letters(client: redis.Redis, letters: Sequence[DeadLetter], length_max: int) -> None:
    """Append messages that clients rejected to `dead:<tenant>`: user, seq, id, priority, reason, attempts, body (a JSON object).

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


async def write_session_events(client: redis.Redis, events: Sequence[SessionEvent], length_max: int) -> None:
    """Append connects and disconnects to `session:stream`: event, tenant, user, session, device, node, transport, at, code.

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
        await pipeline.execute()
    except (RedisError, OSError) as error:
        raise StorageUnavailable(f"session stream: {error}") from error
