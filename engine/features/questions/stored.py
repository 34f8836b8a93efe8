"""What `engine verify` checks of questions."""

from __future__ import annotations

from typing import Final

import msgspec

from engine.core.wire.records import UNREADABLE
from engine.features.questions.keys import INDEXES
from engine.store.stored_kinds import FeatureData, RecordReader, StoredKind

_NAME: Final = "question"


async def _check(reader: RecordReader, key: bytes) -> None:
    """Layout only, of its answer too: an edge reads both whole, or not."""
    async for id, value in reader.fields(key):
        reader.look(_NAME)
        try:
            msgspec.msgpack.decode(value)
        except UNREADABLE as error:
            reader.found(_NAME, key, id, error)


DATA: Final = FeatureData(
    "questions",
    INDEXES,
    (
        StoredKind(
            _NAME,
            rb"s\d+:(questions|answers|votes):",
            "nothing: it has no answer for its asker, who asks again under another id",
            _check,
        ),
    ),
)
