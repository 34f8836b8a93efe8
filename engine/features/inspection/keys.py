"""The key of this feature in Redis."""

from __future__ import annotations

from typing import Final

LOAD_HISTORY_KEY: Final = "engine:load"
"""Stream: the load of the last hour, a point each few seconds (`engine.features.inspection.load_history`)."""

INDEXES: Final = rb"engine:load"
"""Keys without bodies and numbers of messages (`engine.store.stored_kinds`)."""
