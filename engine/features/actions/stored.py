"""What `engine verify` checks of actions."""

from __future__ import annotations

import re
from typing import Final

from engine.store.keys import ACTION_TARGETS_KEY, action_stream_key
from engine.store.stored_kinds import FeatureData, StoredKind, sealed_entries

DATA: Final = FeatureData(
    "actions",
    ACTION_TARGETS_KEY.encode(),
    (
        StoredKind(
            "action",
            re.escape(action_stream_key("").encode()),
            "nothing: it becomes a dead letter and is not carried out",
            sealed_entries("action"),
        ),
    ),
)
