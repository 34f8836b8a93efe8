"""What `engine verify` checks of addresses in other channels."""

from __future__ import annotations

import re
from typing import Final

from engine.core.model.routing import mailbox_key
from engine.core.model.sealed import unsealed
from engine.core.wire.records import UNREADABLE
from engine.features.reach.keys import INDEXES, channels_key
from engine.store.stored_kinds import FeatureData, RecordReader, StoredKind

_NAME: Final = "addresses"


async def _check(reader: RecordReader, key: bytes) -> None:
    """Version and checksum, which includes the user."""
    tenant = key.decode().removeprefix(channels_key(""))
    async for user, value in reader.fields(key):
        reader.look(_NAME)
        try:
            unsealed(value, mailbox_key(tenant, user.decode()).encode())
        except UNREADABLE as error:
            reader.found(_NAME, key, user, error)


DATA: Final = FeatureData(
    "channels",
    INDEXES,
    (StoredKind(_NAME, re.escape(channels_key("").encode()), "nothing: the user has none until the application sets them again", _check),),
)
