"""The keys of this feature in Redis."""

from __future__ import annotations

from typing import Final

from engine.core.model.routing import slot_of


def growing_key(key: str) -> str:
    """Sorted set: ids of this user's messages that grow, scored 0, or grew, scored by their end in ms. It expires after the last end."""
    return f"s{slot_of(key)}:growing:{key}"


def growth_key(key: str, id: str) -> str:
    """Hash: one message that grows: its text in chunks, and its state. It expires after its end. The key's length is before the key."""
    return f"s{slot_of(key)}:growth:{len(key)}:{key}:{id}"


GROWING_DUE_KEY: Final = "growing:due"
"""Sorted set: `<mailbox key> LF <id>` of each message on this store that grows, scored by when it ends unless something comes, ms."""

GROWING_TENANTS_KEY: Final = "growing:tenants"
"""Hash: tenant -> how many of its messages grow on this store."""

INDEXES: Final = rb"s\d{1,2}:growing:.*|growing:(due|tenants)"
"""Keys without bodies and numbers of messages (`engine.store.stored_kinds`)."""
