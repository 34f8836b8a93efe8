"""Deletes an erased user's entries from the streams for other systems: the dead letters of the tenant, and `session:stream`;
and from the streams of actions that fired and are not done.

Neither has an index by user. Both are bounded, so all entries are looked at, some hundred in one script run of a millisecond.
"""

from __future__ import annotations

from typing import Any, Final

import redis.asyncio as redis
from redis.exceptions import RedisError

from engine.core.model.routing import slot_of, split_key
from engine.errors import StorageUnavailable
from engine.store.keys import action_stream_key, action_targets_key, dead_letter_key, online_key, session_stream_key
from engine.store.lua import Script

_DROP = Script("user_entries_drop")

_ENTRIES: Final = 500
"""Looked at in one script run."""


async def drop_user_entries(client: redis.Redis, key: str, *, own: redis.Redis | None = None) -> None:
    """Delete every entry of the user with this mailbox key. Idempotent; entries added meanwhile may stay.

    Args:
        own: of the server that has the user; `client` when left out.

    Raises StorageUnavailable; some may be deleted.
    """
    tenant, user = split_key(key)
    try:
        targets: Any = await client.smembers(action_targets_key())
    except (RedisError, OSError) as error:
        raise StorageUnavailable(f"targets of actions: {error}") from error
    for stream, fields in (
        (dead_letter_key(tenant), ["user", user]),
        (session_stream_key(), ["tenant", tenant, "user", user]),
        *((action_stream_key(target.decode()), ["tenant", tenant, "user", user]) for target in targets),
    ):
        start = "-"
        while start:
            _, following = await _DROP.run(client, [stream], [start, _ENTRIES, *fields])
            start = following.decode()
    try:
        await (own or client).srem(online_key(slot_of(key)), key)
    except (RedisError, OSError) as error:
        raise StorageUnavailable(f"users online: {error}") from error
