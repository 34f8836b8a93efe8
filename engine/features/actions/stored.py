"""What `engine verify` checks of actions."""

from __future__ import annotations

import re
from typing import Any, Final

from engine.store.keys import ACTION_TARGETS_KEY, action_stream_key
from engine.store.storage_calls import StorageCalls
from engine.store.stored_kinds import FeatureData, RecordReader, StoredKind, sealed_entries

_STREAMS: Final = action_stream_key("").encode()

_entries: Final = sealed_entries("action")


async def _check(reader: RecordReader, key: bytes) -> None:
    await _entries(reader, key)
    with StorageCalls("targets of actions"):
        pipeline: Any = reader.client.pipeline(transaction=True)  # a target is forgotten together with its stream
        pipeline.sismember(ACTION_TARGETS_KEY, key.removeprefix(_STREAMS))
        pipeline.exists(key)
        known, waiting = await pipeline.execute()
    if waiting and not known:  # no edge looks there
        reader.found("action", key, b"", "its target is not among the known ones: nothing is carried out before the next action for it")


DATA: Final = FeatureData(
    "actions",
    ACTION_TARGETS_KEY.encode(),
    (StoredKind("action", re.escape(_STREAMS), "nothing: it becomes a dead letter and is not carried out", _check),),
)
