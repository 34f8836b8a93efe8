"""The keys of this feature in Redis."""

from __future__ import annotations

from typing import Final

PUSH_KEY_KEY: Final = "engine:push-key"
"""String: 32 secret bytes, of which the key is made that pushes are signed with (VAPID)."""


def channels_key(tenant: str) -> str:
    """Hash: user -> addresses in other channels, JSON behind version and checksum."""
    return f"channels:of:{tenant}"


def channels_asked_key(name: str) -> str:
    """String: how many mails of confirmation the user or address behind this digest caused lately; it expires."""
    return f"channels:asked:{name}"


def channels_erased_key(name: str) -> str:
    """String: when the user behind this digest was erased, ms by the clock of Redis; it expires with the links of before."""
    return f"channels:erased:{name}"


def channels_told_key(name: str) -> str:
    """Sorted set: digests of steps, by when they were taken, of the user, category and channel behind this digest; it expires."""
    return f"channels:told:{name}"


CAUGHT_MAILS_KEY: Final = "channels:caught"
"""List: mails that are shown in place of being sent, JSON, the newest first; it expires."""

INDEXES: Final = rb"engine:push-key|channels:((asked|erased|told):.*|caught)"
"""Keys without bodies and numbers of messages (`engine.store.stored_kinds`)."""
