"""The keys of this feature in Redis."""

from __future__ import annotations

from typing import Final

UNSUBSCRIBE_KEY_KEY: Final = "engine:unsubscribe-key"
"""String: 32 secret bytes, the key that unsubscribe links are signed with."""

INDEXES: Final = rb"engine:unsubscribe-key"
"""Keys without bodies and numbers of messages (`engine.store.stored_kinds`)."""
