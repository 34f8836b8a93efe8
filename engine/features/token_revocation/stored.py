"""What `engine verify` checks of revocations."""

from __future__ import annotations

import re
from typing import Final

from engine.features.token_revocation.keys import INDEXES, REVOCATION_LOG_KEY
from engine.features.token_revocation.revocation_log import revocation_in
from engine.store.stored_kinds import FeatureData, RecordReader, StoredKind

_NAME: Final = "revocation"


async def _check(reader: RecordReader, key: bytes) -> None:
    """Layout only: an edge puts none in force that it cannot read."""
    async for entry, fields in reader.entries(key):
        reader.look(_NAME)
        try:
            revocation_in(fields)
        except (KeyError, ValueError) as error:
            reader.found(_NAME, key, entry, f"{type(error).__name__}: {error}")


DATA: Final = FeatureData(
    "token revocation",
    INDEXES,
    (StoredKind(_NAME, re.escape(REVOCATION_LOG_KEY.encode()) + rb"$", "revoke these tokens again: they are accepted", _check),),
)
