"""A user's entries in the streams for other systems, which are found for an export and deleted with the user: the dead letters of the
tenant, `session:stream`, and the streams of actions that fired and are not done.

None has an index by user. All are bounded, so all entries are looked at, some hundred in one script run of a millisecond.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import redis.asyncio as redis
from msgspec import Struct

from engine.core.model.routing import slot_of, split_key
from engine.store.keys import ACTION_TARGETS_KEY, SESSION_STREAM_KEY, action_stream_key, dead_letter_key, online_key
from engine.store.lua import Script
from engine.store.storage_calls import StorageCalls

_SCRIPT = Script("user_entries")

_ENTRIES: Final = 500
"""Looked at in one script run."""


class UserEntry(Struct, frozen=True):
    """An entry of a user. `stream`: dead_letters, sessions or actions; `key`: in Redis; `entry`: its id; `target`: of an action."""

    stream: str
    key: str
    entry: str
    fields: Mapping[str, bytes]
    target: str = ""


async def find_user_entries(client: redis.Redis, key: str) -> AsyncIterator[UserEntry]:
    """The entries of the user with this mailbox key, the oldest of each stream first. Raises StorageUnavailable."""
    for name, stream, target, fields in await _streams(client, key):
        start = "-"
        while start:
            _, following, found = await _SCRIPT.run(client, [stream], ["find", start, _ENTRIES, *fields])
            for entry, flat in found:
                pairs = zip(flat[::2], flat[1::2], strict=True)
                yield UserEntry(name, stream, entry.decode(), {field.decode(errors="replace"): value for field, value in pairs}, target)
            start = following.decode()


async def drop_user_entries(client: redis.Redis, key: str, *, own: redis.Redis | None = None) -> None:
    """Delete every entry of the user with this mailbox key. Idempotent; entries added meanwhile may stay.

    Args:
        own: of the server that has the user; `client` when left out.

    Raises StorageUnavailable; some may be deleted.
    """
    for _, stream, _, fields in await _streams(client, key):
        start = "-"
        while start:
            _, following, _ = await _SCRIPT.run(client, [stream], ["drop", start, _ENTRIES, *fields])
            start = following.decode()
    with StorageCalls("users online"):
        await (own or client).srem(online_key(slot_of(key)), key)


async def _streams(client: redis.Redis, key: str) -> list[tuple[str, str, str, list[str]]]:
    """The streams that may have entries of a user: name, key in Redis, target of actions, and the fields that entries of the user have."""
    tenant, user = split_key(key)
    with StorageCalls("targets of actions"):
        members: Any = await client.smembers(ACTION_TARGETS_KEY)
    mine = ["tenant", tenant, "user", user]
    targets = sorted(member.decode() for member in members)
    return [
        ("dead_letters", dead_letter_key(tenant), "", ["user", user]),
        ("sessions", SESSION_STREAM_KEY, "", mine),
        *(("actions", action_stream_key(target), target, mine) for target in targets),
    ]
