"""Ids stored by versions up to 65fafe9, under keys that joined mailbox key and id by a colon.

Both may contain colons, so two pairs could share a key: user `g` with id `x:1`, and user `g:x` with id `1`, when both users hash to the
same slot. The message published second was answered `duplicate` and never delivered. `engine.store.keys.idempotency_key` has no such
pairs; this module keeps a publisher's repeat within the time ids are remembered a duplicate across the upgrade.

The controller stores once, before any actor is created, when this data was first used with the new keys (`mark_upgrade`). Until ids
written before that have expired, each lookup of an id is preceded by one of its legacy key, in a round trip of its own. Afterwards, and
on data that never held legacy keys, the cost is one attribute read per journal group.

A legacy key that two pairs share is not looked up: a repeat may then be delivered twice, which the engine's promise (at least once)
allows; answering `duplicate` could drop a message that was never accepted before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import redis.asyncio as redis
from redis.exceptions import RedisError

from engine.core.model.message import is_timer_effect_id
from engine.core.model.routing import slot_of
from engine.errors import StorageUnavailable
from engine.store.keys import IDS_SINCE_FIELD, meta_key, slots_key

_NO_IDS: Final[Mapping[int, bytes]] = {}


def wall_ms() -> int:
    """The wall clock, milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


async def mark_upgrade(client: redis.Redis, now_ms: int) -> None:
    """Store since when this data has the new keys: `now_ms` when an older version has used it before, else 0. Idempotent.

    Call it before the slot map is claimed: data without one is new. The data epoch is removed from a backup that is restored.

    Raises:
        RedisError: no answer, or an error reply.
    """
    used = await client.get(slots_key()) is not None
    await client.hsetnx(meta_key(), IDS_SINCE_FIELD, str(now_ms if used else 0))


def legacy_key(key: str, id: str) -> str | None:
    """The key under which older versions stored an id; None when another pair of mailbox key and id has the same one."""
    slot = slot_of(key)
    joined = f"{key}:{id}"
    if joined.count(":") > 2 and not is_timer_effect_id(id):  # a scheduled id is unguessable, so no caller's id ends in one
        colon = first = joined.index(":")  # the tenant has none
        while (colon := joined.find(":", colon + 1)) != -1:
            if colon != len(key) and first + 1 < colon < len(joined) - 1 and slot_of(joined[:colon]) == slot:
                return None
    return f"{{s{slot}}}idemp:{joined}"


class LegacyIds:
    """Looks ids up under their legacy keys while such keys may exist.

    Args:
        remembered_ms: how long an id is remembered.
        clock_ms: wall clock, milliseconds since the epoch.
    """

    def __init__(self, client: redis.Redis, remembered_ms: int, clock_ms: Callable[[], int] = wall_ms) -> None:
        self._client = client
        self._remembered_ms = remembered_ms
        self._clock_ms = clock_ms
        self._until_ms: int | None = None  # when the last legacy key has expired; unknown until the first lookup
        self.may_exist = True
        """Whether `look_up` is needed."""

    async def look_up(self, ids: Sequence[tuple[str, str]]) -> Mapping[int, bytes]:
        """The values stored under the legacy keys of these (mailbox key, id) pairs, by index; absent where there is none.

        Raises StorageUnavailable.
        """
        try:
            if self._until_ms is None:
                since: Any = await self._client.hget(meta_key(), IDS_SINCE_FIELD)
                since_ms = int(since or 0)
                self._until_ms = since_ms + self._remembered_ms if since_ms else 0
            if self._clock_ms() >= self._until_ms:
                self.may_exist = False
                return _NO_IDS
            keys = {index: name for index, pair in enumerate(ids) if (name := legacy_key(*pair)) is not None}
            values: Any = await self._client.mget(list(keys.values())) if keys else []
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"legacy ids: {error}") from error
        return {index: value for index, value in zip(keys, values, strict=True) if value is not None}
