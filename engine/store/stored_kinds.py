"""What a feature tells `engine verify` of the data it stores: which keys it has, and how their records are checked.

The list of features is `engine.cli.feature_data`. A key that no feature and no part of the kernel has is reported as unknown.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Protocol

import redis.asyncio as redis
from msgspec import Struct

from engine.core.mailbox.judge_state import JudgeKinds
from engine.store.sealed_fields import is_whole


class RecordReader(Protocol):
    """Reads records in bounded pieces, and notes what it is told of them.

    Attributes:
        client: of the Redis that is checked. It reads only.
    """

    client: redis.Redis

    def fields(self, key: bytes) -> AsyncIterator[tuple[bytes, bytes]]:
        """The fields of a hash."""

    def entries(self, key: bytes) -> AsyncIterator[tuple[bytes, dict[bytes, bytes]]]:
        """The entries of a stream, in order."""

    def look(self, kind: str) -> None:
        """A record of this kind is checked."""

    def found(self, kind: str, key: bytes, place: bytes, problem: object) -> None:
        """A record is damaged. `place`: the field or entry, b"" for the key itself."""


Check = Callable[[RecordReader, bytes], Coroutine[None, None, None]]
"""Checks the records of one key."""


def sealed_entries(kind: str) -> Check:
    """A check of a stream whose entries have a checksum (`engine.store.sealed_fields`)."""

    async def check(reader: RecordReader, key: bytes) -> None:
        async for entry, fields in reader.entries(key):
            reader.look(kind)
            if not is_whole(key, fields):
                reader.found(kind, key, entry, "the checksum is another: the value is damaged")

    return check


class StoredKind(Struct, frozen=True):
    """Records of one kind.

    Attributes:
        name: of the kind, in the report.
        keys: a regular expression; it fits every key with such records, from its beginning.
        advice: what an operator does about a damaged one.
        check: of the records.
    """

    name: str
    keys: bytes
    advice: str
    check: Check


class FeatureData(Struct, frozen=True):
    """All keys of one feature.

    Attributes:
        feature: its name.
        kinds: those with records to check.
        indexes: a regular expression for whole keys without bodies and numbers of messages: Redis replaces each whole.
        judge_kinds: what its judge stores in journal and pages (`ShardFeature.judge_kinds`); None: it has no judge, or that stores nothing.
    """

    feature: str
    indexes: bytes = b""
    kinds: tuple[StoredKind, ...] = ()
    judge_kinds: JudgeKinds | None = None
