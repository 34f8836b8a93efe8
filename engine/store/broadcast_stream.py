"""The broadcast log in Redis: one stream that any edge appends to and every shard tails.

An append is one script run per broadcast, whatever its audience: look up the idempotency key, append, store the key, trim the log to
its limits; all or nothing. It is not fenced, because a writer of the log has no state. Tenants share the log: what makes room is the oldest
entry of the tenant with the largest part of it, so a tenant that floods the log evicts its own broadcasts.

Entries leave the log when they expire and when they are evicted. Each drop is numbered, and followers read which entries went. Of each
audience the newest retained entry that has left is remembered, so that users who have not got it are told.

An append whose reply is lost may have been applied. It is repeated under the same id until `commit_retry_ms` have passed, and then
finds itself. So after "unavailable" the broadcast may or may not be in the log, and a publisher that repeats it under its id stores
it exactly once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import redis.asyncio as redis
from msgspec import Struct

from engine.config import Config
from engine.core.commit.first_result import parse_idempotency_value
from engine.core.journal.stored_formats import read_entry
from engine.core.mailbox.broadcast_log import Broadcast, BroadcastEntry, Channel, encode_entry
from engine.core.model.routing import audience_key
from engine.core.wire.records import ACCEPTED, CONFLICT, DUPLICATE, UNREADABLE
from engine.store.keys import (
    BROADCAST_DROPPED_KEY,
    BROADCAST_LOG_KEY,
    BROADCAST_LOST_KEY,
    BROADCAST_PARTS_KEY,
    BROADCAST_POSITIONS_PREFIX,
    BROADCAST_STATE_KEY,
    idempotency_key,
)
from engine.store.lua import Replicas, Script
from engine.store.storage_calls import StorageCalls

log = logging.getLogger(__name__)

_APPEND = Script("broadcast_log/append")
_DROP = Script("broadcast_log/drop")

_KEYS: Final = [
    BROADCAST_LOG_KEY,
    BROADCAST_STATE_KEY,
    BROADCAST_PARTS_KEY,
    BROADCAST_DROPPED_KEY,
    BROADCAST_LOST_KEY,
    BROADCAST_POSITIONS_PREFIX,
]

_READ_ENTRIES: Final = 200
"""Entries per read: at most some ten megabytes, usually a hundred kilobytes."""


class Appended(Struct, frozen=True):
    """Result of an append.

    Attributes:
        status: ACCEPTED, DUPLICATE or CONFLICT.
        pos: position in the log, of the first one for a DUPLICATE.
        scheduled_id: of a DUPLICATE whose first one was delayed.
    """

    status: int
    pos: int = 0
    scheduled_id: str = ""


class Dropped(NamedTuple):
    """An entry that has left the log; `channel` None: it was not retained."""

    pos: int
    channel: Channel | None


class Read(NamedTuple):
    """Some entries of the log, the position that is reached with them, and the entry there, if it cannot be read."""

    broadcasts: list[Broadcast]
    reached: int
    damaged: Dropped | None = None


class BroadcastLog:
    """The log, for edges and shards.

    Args:
        client: its commands time out after `redis_timeout_ms`, so a blocking read blocks for half of that.
    """

    def __init__(self, client: redis.Redis, config: Config) -> None:
        self._client = client
        self._config = config
        self._limits = [config.broadcasts_max, config.broadcasts_bytes_max]
        self._replicas = Replicas.wanted(config)
        self._block_ms = max(config.redis_timeout_ms // 2, 1)

    async def append(self, entries: Sequence[tuple[BroadcastEntry, str]], *, repeated: bool = False) -> list[Appended]:
        """Make broadcasts durable, in one round trip.

        Args:
            entries: (entry, idempotency id).
            repeated: an earlier attempt of this call may have been applied, so a stored id with the same digest is its effect.

        Raises:
            StorageUnavailable: no reply, or too few replicas have it; some of it may have been written: repeat it.
        """
        calls: list[tuple[list[str], list[Any]]] = []
        remember_ms = self._config.idempotency_caller_s * 1000
        for entry, id in entries:
            keys = [*_KEYS, idempotency_key(audience_key(entry.tenant, entry.topic), id)]
            audience = f"{entry.tenant} {entry.topic}" if entry.envelope.retain else ""
            calls.append((keys, [*self._limits, entry.envelope.digest.hex(), encode_entry(entry), remember_ms, entry.tenant, audience]))
        replies = await _APPEND.run_many(self._client, calls, self._replicas)
        return [_appended(reply, entry.envelope.digest, repeated) for reply, (entry, _) in zip(replies, entries, strict=True)]

    async def read(self, after: int, *, wait: bool) -> Read:
        """The next entries behind a position. Those before one that cannot be read, or that one by itself.

        Args:
            wait: block until there is an entry, for half of `redis_timeout_ms` at most.

        Raises StorageUnavailable.
        """
        block_ms = self._block_ms if wait else None
        with StorageCalls("broadcast log"):
            found: Any = await self._client.xread({BROADCAST_LOG_KEY: f"{after}-0"}, count=_READ_ENTRIES, block=block_ms)
        broadcasts: list[Broadcast] = []
        for entry_id, fields in found[0][1] if found else ():
            pos = int(entry_id.partition(b"-")[0])
            try:
                broadcasts.append(read_entry(pos, fields.get(b"b", b"")))
            except UNREADABLE as error:
                if broadcasts:
                    break
                log.error("the broadcast at %d cannot be read; whom it concerns is told of a gap: %s", pos, error)
                return Read([], pos, Dropped(pos, _channel(fields.get(b"a", b"").decode(errors="replace"))))
        return Read(broadcasts, broadcasts[-1].pos if broadcasts else after)

    async def first(self) -> int:
        """Position of the oldest entry; 0 when the log is empty. Raises StorageUnavailable."""
        with StorageCalls("broadcast log"):
            found: Any = await self._client.xrange(BROADCAST_LOG_KEY, count=1)
        return int(found[0][0].partition(b"-")[0]) if found else 0

    async def dropped(self, since: int) -> tuple[Sequence[Dropped] | None, int]:
        """The entries that have left the log after drop number `since`, and the number of the last one.

        None in place of the entries: not all of them are stored any more, the newest `broadcasts_max` only. Raises StorageUnavailable.
        """
        with StorageCalls("broadcast log"):
            newest = int(await self._client.hget(BROADCAST_STATE_KEY, "drops") or 0)
            found: Any = await self._client.zrangebyscore(BROADCAST_DROPPED_KEY, f"({since}", newest) if newest > since else ()
        if len(found) != newest - since:
            return None, newest
        return [Dropped(int(pos), _channel(audience)) for pos, _, audience in (one.decode().partition(" ") for one in found)], newest

    async def lost(self) -> tuple[dict[Channel, int], int]:
        """By tenant and topic, the position of the newest retained entry that has left; and that up to which these may be forgotten.

        Raises StorageUnavailable.
        """
        with StorageCalls("broadcast log"):
            found: Any = await self._client.zrange(BROADCAST_LOST_KEY, 0, -1, withscores=True)
            horizon = int(await self._client.hget(BROADCAST_STATE_KEY, "horizon") or 0)
        return {channel: int(pos) for audience, pos in found if (channel := _channel(audience.decode())) is not None}, horizon

    async def positions(self) -> list[int]:
        """The positions of all entries. Costs a read of the whole log. Raises StorageUnavailable."""
        found: list[int] = []
        after = "-"
        with StorageCalls("broadcast log"):
            while after:
                page: Any = await self._client.xrange(BROADCAST_LOG_KEY, after, count=_READ_ENTRIES)
                found += [int(entry_id.partition(b"-")[0]) for entry_id, _ in page]
                after = f"({found[-1]}-0" if page else ""
        return found

    async def drop(self, positions: Sequence[int]) -> None:
        """Delete expired entries from the log. Raises StorageUnavailable."""
        for start in range(0, len(positions), _READ_ENTRIES):
            await _DROP.run(self._client, _KEYS, [*self._limits, *positions[start : start + _READ_ENTRIES]])


def _channel(audience: str) -> Channel | None:
    tenant, _, topic = audience.partition(" ")
    return (tenant, topic) if audience else None


def _appended(reply: list[Any], digest: bytes, repeated: bool) -> Appended:
    if reply[0] != b"KNOWN":
        return Appended(ACCEPTED, int(reply[1]))
    try:
        known, pos, scheduled_id = parse_idempotency_value(reply[1])
    except ValueError:
        return Appended(CONFLICT)
    if known != digest:
        return Appended(CONFLICT)
    return Appended(ACCEPTED if repeated and not scheduled_id else DUPLICATE, pos, scheduled_id)
