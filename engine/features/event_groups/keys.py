"""The keys of this feature in Redis."""

from __future__ import annotations

from typing import Final


def event_groups_key(tenant: str) -> str:
    """Hash: how far each group of consumers has read the tenant's events, and which consumer reads."""
    return f"events:{tenant}"


INDEXES: Final = rb"events:.*"
"""Keys without bodies and numbers of messages (`engine.store.stored_kinds`)."""
