"""The keys of this feature in Redis."""

from __future__ import annotations

from typing import Final


def signals_key(tenant: str) -> str:
    """Hash: name of a signal -> its sum."""
    return f"signals:sums:{tenant}"


def signals_writer_key(writer: str) -> str:
    """String: number of the last batch that a writer added; it expires."""
    return f"signals:writer:{writer}"


INDEXES: Final = rb"signals:.*"
"""Keys without bodies and numbers of messages (`engine.store.stored_kinds`)."""
