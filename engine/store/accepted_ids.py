"""The ids under which messages for users were accepted, for `idempotency_caller_s`: a repeat gets the first result.

In buckets: hashes of some 30 ids, so small that Redis keeps them as one piece of memory (listpack). Field: 12 bytes of the hash of
mailbox key and id. Value: 4 bytes, the second in which it was stored, then `engine.core.commit.first_result.packed_result`. An id takes
about 40 bytes, its part of the bucket's key included; a key of its own took 135. Two ids share a field once in 2**96 pairs.

    state     hash: `buckets`, how many there are; `since_ms`, since when (`open_buckets`); `cursor` and `swept_ms`, how far they are swept
    bucket    one for a hash: the first three bytes choose it by linear hashing, so that there can be any number of buckets
    grown     a bucket has more than 40 fields: there is one more, which takes half of another's. Their number never decreases: a server
              keeps that of its busiest day, and some 100 bytes for each in which there are ids
    past      an id whose second is longer ago than it is remembered: it is as if it were not there, to the second
    swept     shards delete what is past from all buckets three times in that time (`AcceptedIds.sweep`); in the middle a seventh of what
              there is waits for that. Nothing depends on it but memory

All of it is written by scripts (`scripts/accepted_ids.lua`), by whoever stores an id: shards with the group of the message, schedulers
before the timer is stored. A script is atomic, so there is no state between: a split is complete or has not begun, on replicas and in the
append-only file too, where the script's writes are one transaction. A group some of whose ids are known stores none: what the script has
stored before it found that is deleted by the same run.

Until buckets are opened, every id gets a key of its own (`engine.store.keys.idempotency_key`), as all versions up to formats `INBOXES` have
it. The controller opens them when every process reads `ID_BUCKETS` (`engine.core.model.formats`); the scripts look whether they are, so
all writers change in the same moment. For `idempotency_caller_s` after that, the scripts look for both; new data begin with buckets.
Crash points: the controller ends between raising the formats and opening the buckets: its successor opens them. A fail-over that loses
that: the shard that finds the loss opens them again (`engine.store.restore`), and ids that it has lost are forgotten, as all that is lost.

Which timers have fired is in the buckets too, written and read by `engine.store.timer_store`: field `id_hash("", scheduled id)`.

Ids of broadcasts and of actions stay in keys of their own: they are few. `look_up`, of timers that may have taken effect before, has both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import redis.asyncio as redis
from redis.exceptions import RedisError

from engine.core.commit.first_result import Result, idempotency_value, packed_result, parse_idempotency_value, unpacked_result
from engine.errors import StorageUnavailable
from engine.store.keys import idempotency_key, ids_prefix, ids_state_key, slots_key
from engine.store.legacy_ids import wall_ms
from engine.store.lua import Script

Pairs = Sequence[tuple[str, str]]
"""Mailbox key and id of each."""

LIBRARY: Final = "accepted_ids"
"""The script to put before those that take `AcceptedIds.keys` and `AcceptedIds.words`."""

_TAKE: Final = Script("ids_take", LIBRARY)
_RELEASE: Final = Script("ids_release", LIBRARY)
_LOOK_UP: Final = Script("ids_look_up", LIBRARY)
_SWEEP: Final = Script("ids_sweep")

_HASH_BYTES: Final = 12
_STAMP_BYTES: Final = 4
_BUCKETS: Final = "buckets"
_SINCE: Final = "since_ms"
_LOOK_MS: Final = 60_000
_PASSES: Final = 3  # over all buckets, in the time that an id is remembered
_SWEPT_AT_ONCE: Final = 64  # buckets: a millisecond of Redis
_CLOCKS_MS: Final = 3_600_000  # between the clocks of the controller, this process and Redis


async def open_buckets(client: redis.Redis, since_ms: int) -> None:
    """Store ids in buckets from now on. Idempotent.

    Args:
        since_ms: now, wall clock; 0 when no version before has used this data.

    Raises StorageUnavailable.
    """
    try:
        await client.hsetnx(ids_state_key(), _BUCKETS, "1")
        await client.hsetnx(ids_state_key(), _SINCE, str(since_ms))  # until it is there, `AcceptedIds` takes it for now
    except (RedisError, OSError) as error:
        raise StorageUnavailable(f"ids: {error}") from error


async def begin_with_buckets(client: redis.Redis) -> None:
    """Open buckets in data that no version has used. Before the slot map is claimed: data without one are new.

    Without a data epoch they need not be: it is removed from a backup that is restored.

    Raises:
        RedisError: no answer, or an error reply.
        StorageUnavailable: likewise.
    """
    if await client.get(slots_key()) is None:
        await open_buckets(client, 0)


class AcceptedIds:
    """Reads and writes ids, and gives the scripts of others the words to do so in the same step.

    Args:
        remembered_ms: how long an id is remembered.
        clock_ms: wall clock, milliseconds since the epoch.
    """

    def __init__(self, client: redis.Redis, remembered_ms: int, clock_ms: Callable[[], int] = wall_ms) -> None:
        self._client = client
        self._remembered_ms = remembered_ms
        self._clock_ms = clock_ms
        self._looked_ms: int | None = None
        self._own_keys = True  # there may be ids in keys of their own

    async def look(self) -> None:
        """Look whether ids may still be in keys of their own: once a minute, and never again when they cannot. Before `keys`.

        Raises StorageUnavailable.
        """
        if not self._own_keys:
            return
        now_ms = self._clock_ms()
        if self._looked_ms is not None and 0 <= now_ms - self._looked_ms < _LOOK_MS:
            return
        try:
            since: Any = await self._client.hget(ids_state_key(), _SINCE)
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"ids: {error}") from error
        self._looked_ms = now_ms
        self._own_keys = since is None or (bool(int(since)) and now_ms <= int(since) + self._remembered_ms + _CLOCKS_MS)

    def keys(self, pairs: Pairs) -> list[str]:
        """The last keys of a script."""
        keys = [ids_state_key(), ids_prefix()]
        if self._own_keys:
            keys += [idempotency_key(key, id) for key, id in pairs]
        return keys

    def words(self, pairs: Pairs, values: Sequence[bytes] = ()) -> list[bytes]:
        """The last arguments of a script; `values` are packed, and left out where nothing is stored."""
        words: list[bytes] = []
        for index, (key, id) in enumerate(pairs):
            value = values[index] if values else b""
            words += (id_hash(key, id), value)
            if self._own_keys:
                words.append(idempotency_value(*unpacked_result(value)) if value else b"")
        return words

    async def take(self, pairs: Pairs, values: Sequence[bytes]) -> Mapping[int, bytes]:
        """Store each id that is not stored; returns the packed values of the others, by index. Raises StorageUnavailable."""
        return known_of((await self._run(_TAKE, pairs, values))[1:])

    async def release(self, pairs: Pairs, values: Sequence[bytes]) -> None:
        """Delete those ids that have these values. Raises StorageUnavailable."""
        await self._run(_RELEASE, pairs, values)

    async def look_up(self, pairs: Pairs) -> Mapping[int, bytes]:
        """The packed values of those ids that are stored, by index, in keys of their own too. Raises StorageUnavailable."""
        keys = [ids_state_key(), ids_prefix(), *(idempotency_key(key, id) for key, id in pairs)]
        words = [word for key, id in pairs for word in (id_hash(key, id), b"", b"")]
        return known_of((await _LOOK_UP.run(self._client, keys, [self._remembered_ms, *words]))[1:])

    async def sweep(self) -> bool:
        """Delete what is past from some buckets whose turn it is; returns whether more of them wait. Raises StorageUnavailable."""
        args = [self._remembered_ms, self._remembered_ms // _PASSES, _SWEPT_AT_ONCE]
        return bool((await _SWEEP.run(self._client, [ids_state_key(), ids_prefix()], args))[1])

    async def _run(self, script: Script, pairs: Pairs, values: Sequence[bytes]) -> list[Any]:
        await self.look()
        return await script.run(self._client, self.keys(pairs), [self._remembered_ms, *self.words(pairs, values)])


def id_hash(key: str, id: str) -> bytes:
    """What stands for an id. Both texts may contain a colon, so the length of the first in characters precedes it."""
    return blake2b(f"{len(key)}:{key}:{id}".encode(), digest_size=_HASH_BYTES).digest()


def known_of(reply: Sequence[Any]) -> dict[int, bytes]:
    """The packed values by index, of a reply with what `ids_known` returns."""
    (stamped, own) = reply
    known = {index: value[_STAMP_BYTES:] for index, value in zip(stamped[::2], stamped[1::2], strict=True)}
    for index, value in zip(own[::2], own[1::2], strict=True):
        known[index] = packed_text(value)
    return known


def packed_text(value: bytes) -> bytes:
    """The packed layout of a value that is stored as text; where it cannot be read, what `unpacked_result` cannot read either."""
    try:
        result: Result = parse_idempotency_value(value)
    except ValueError:
        return b""
    return packed_result(*result)
