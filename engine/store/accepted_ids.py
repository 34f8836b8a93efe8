"""The ids under which messages for users were accepted, for `idempotency_caller_s`: a repeat gets the first result.

In buckets: hashes of some 30 ids, so small that Redis keeps them as one piece of memory (listpack). Field: 12 bytes of the hash of
mailbox key and id. Value: 4 bytes, the second in which its time begins, then `engine.core.commit.first_result.packed_result`. The time
of an id begins when it is stored, and that of a timer's id when the timer is due. An id takes about 40 bytes, its part of the bucket's
key included; a key of its own took 135. Two ids share a field once in 2**96 pairs.

    state     hash: `buckets`, how many there are, 1 when absent; `cursor` and `swept_ms`, how far they are swept
    bucket    one for a hash: the first three bytes choose it by linear hashing, so that there can be any number of buckets
    grown     a bucket has more than 40 fields: there is one more, which takes half of another's. Their number never decreases: a server
              keeps that of its busiest day, and some 100 bytes for each in which there are ids
    past      an id whose second is longer ago than it is remembered: it is as if it were not there, to the second
    swept     shards delete what is past from all buckets three times in that time (`AcceptedIds.sweep`); in the middle a seventh of what
              there is waits for that. Nothing depends on it but memory

All of it is written by scripts (`scripts/accepted_ids.lua`) that store an id and what it stands for in one step: shards with the group of
the message, schedulers with the timer. A script is atomic, so there is no state between: a split is complete or has not begun, on
replicas and in the append-only file too, where the script's writes are one transaction. A group some of whose ids are known stores none:
what the script has stored before it found that is deleted by the same run.

The id of a timer's effect says too that the timer has fired, for `engine.store.timer_store`.

Ids of broadcasts and of actions stay in keys of their own: they are few. `look_up`, of timers that may have taken effect before, looks at
both.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

import redis.asyncio as redis

from engine.core.commit.first_result import packed_result, parse_idempotency_value, unpacked_result
from engine.core.model.message import TIMER_EFFECT
from engine.store.keys import IDS_PREFIX, IDS_STATE_KEY, idempotency_key
from engine.store.lua import Script

Pairs = Sequence[tuple[str, str]]
"""Mailbox key and id of each."""

LIBRARY: Final = "accepted_ids"
"""The script to put before those that take `KEYS` and `words_of`."""

_EXTEND: Final = Script("ids_extend", LIBRARY)
_LOOK_UP: Final = Script("ids_look_up", LIBRARY)
_SWEEP: Final = Script("ids_sweep")

_HASH_BYTES: Final = 12
_STAMP_BYTES: Final = 4
_PASSES: Final = 3  # over all buckets, in the time that an id is remembered
_SWEPT_AT_ONCE: Final = 64  # buckets: a millisecond of Redis

KEYS: Final = (IDS_STATE_KEY, IDS_PREFIX)
"""The last keys of a script that stores ids."""


class AcceptedIds:
    """What concerns ids alone; the scripts of others store and look them up in the same step as what they stand for.

    Args:
        remembered_ms: how long an id is remembered.
    """

    def __init__(self, client: redis.Redis, remembered_ms: int) -> None:
        self._client = client
        self._remembered_ms = remembered_ms

    async def extend(self, pairs: Pairs, values: Sequence[bytes], seconds: Sequence[int]) -> None:
        """Let the time of those ids that have these packed values begin in these seconds since the epoch. Raises StorageUnavailable."""
        words = [word for pair, value, second in zip(pairs, values, seconds, strict=True) for word in (id_hash(*pair), value, second)]
        await _EXTEND.run(self._client, KEYS, [self._remembered_ms, *words])

    async def look_up(self, pairs: Pairs) -> dict[tuple[str, str], int]:
        """Those of these ids that are stored, with the number of what was accepted; 0 of one that has a key of its own, or none.

        Raises StorageUnavailable.
        """
        keys = [*KEYS, *(idempotency_key(key, id) for key, id in pairs)]
        _, known, alone = await _LOOK_UP.run(self._client, keys, [self._remembered_ms, *words_of(pairs)])
        numbers = dict.fromkeys(alone, 0) | {index: _number(value) for index, value in known_of(known).items()}
        return {pairs[index]: number for index, number in numbers.items()}

    async def sweep(self) -> bool:
        """Delete what is past from some buckets whose turn it is; returns whether more of them wait. Raises StorageUnavailable."""
        args = [self._remembered_ms, self._remembered_ms // _PASSES, _SWEPT_AT_ONCE]
        return bool((await _SWEEP.run(self._client, KEYS, args))[1])


def words_of(pairs: Pairs, values: Sequence[bytes] = ()) -> list[bytes]:
    """The last arguments of a script; `values` are packed, and left out where nothing is stored."""
    words: list[bytes] = []
    for index, (key, id) in enumerate(pairs):
        words += (id_hash(key, id), values[index] if values else b"")
    return words


def id_hash(key: str, id: str) -> bytes:
    """What stands for an id. Both texts may contain a colon, so the length of the first in characters precedes it.

    A request about a timer names no mailbox. So only the tenant of `key`, which may be all of it, stands before the id of a timer's effect.
    """
    if id.startswith(TIMER_EFFECT):
        key = key.partition(":")[0]
    return blake2b(f"{len(key)}:{key}:{id}".encode(), digest_size=_HASH_BYTES).digest()


def known_of(reply: Sequence[Any]) -> dict[int, bytes]:
    """The packed values by index, of what `ids_known` returns."""
    return {index: value[_STAMP_BYTES:] for index, value in zip(reply[::2], reply[1::2], strict=True)}


def _number(value: bytes) -> int:
    try:
        return unpacked_result(value)[1]
    except ValueError:  # damaged: it is there, and that is all it tells
        return 0


def packed_text(value: bytes) -> bytes:
    """The packed layout of a value that is stored as text; where it cannot be read, what `unpacked_result` cannot read either."""
    try:
        result = parse_idempotency_value(value)
    except ValueError:
        return b""
    return packed_result(*result)
