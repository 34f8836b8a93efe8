"""What `engine verify` checks of dead letters."""

from __future__ import annotations

import re
from typing import Final

from engine.store.keys import dead_letter_key
from engine.store.stored_kinds import FeatureData, StoredKind, sealed_entries

DATA: Final = FeatureData(
    "dead letters",
    kinds=(
        StoredKind(
            "dead letter",
            re.escape(dead_letter_key("").encode()),
            "`engine dead-letters drop` it: it is not redriven",
            sealed_entries("dead letter"),
        ),
    ),
)
