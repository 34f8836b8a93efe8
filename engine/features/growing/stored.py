"""What `engine verify` checks of messages that grow."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from engine.core.wire.records import UNREADABLE
from engine.features.growing.keys import INDEXES
from engine.store.stored_kinds import FeatureData, RecordReader, StoredKind

_NAME: Final = "growing message"


async def _check(reader: RecordReader, key: bytes) -> None:
    """Layout only, of its head: the text in its chunks becomes a message at its end."""
    reader.look(_NAME)
    head: Any = await reader.client.hget(key.decode(), "head")
    try:
        if head is not None:  # else it has expired meanwhile
            msgspec.msgpack.decode(head)
    except UNREADABLE as error:
        reader.found(_NAME, key, b"head", error)


DATA: Final = FeatureData(
    "growing messages",
    INDEXES,
    (StoredKind(_NAME, rb"s\d+:growth:", "nothing: it does not end; its publisher begins it anew", _check),),
)
