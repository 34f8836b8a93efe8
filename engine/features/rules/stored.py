"""What `engine verify` checks of rules: the layout only, since edges parse and validate a text before they use it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from engine.core.wire.records import UNREADABLE
from engine.features.rules.core.versions import VersionState
from engine.features.rules.keys import INDEXES
from engine.store.stored_kinds import FeatureData, RecordReader, StoredKind

_NAME: Final = "rules"
_ADVICE: Final = "store the rules again, `PUT /v1/rules` (of a tenant `/v1/tenant-rules`) with `If-Match: *`"


async def _check_state(reader: RecordReader, key: bytes) -> None:
    reader.look(_NAME)
    state: Any = await reader.client.hget(key.decode(), "state")
    try:
        if state is not None:
            msgspec.json.decode(state, type=VersionState)
    except UNREADABLE as error:
        reader.found(_NAME, key, b"state", error)


async def _check_texts(reader: RecordReader, key: bytes) -> None:
    async for version, text in reader.fields(key):
        reader.look(_NAME)
        try:
            int(version)
            text.decode()
        except ValueError as error:
            reader.found(_NAME, key, version, error)


DATA: Final = FeatureData(
    "rules",
    INDEXES,
    (
        StoredKind(_NAME, rb"rules:state(:|$)", _ADVICE, _check_state),
        StoredKind(_NAME, rb"rules:texts(:|$)", _ADVICE, _check_texts),
    ),
)
