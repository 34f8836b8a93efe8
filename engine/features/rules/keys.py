"""The keys of this feature in Redis."""

from __future__ import annotations

from typing import Final


def event_arrival_key(tenant: str, content: str) -> str:
    """String, which expires: when an event without an id came first, ms since the epoch."""
    return f"event:{tenant}:{content}"


def rules_state_key(tenant: str = "") -> str:
    """Hash: `state`, which versions of the rules there are and which are in force; `stamp`, another one after each change.

    `tenant`: whose own they are; "": the operator's.
    """
    return f"rules:state:{tenant}" if tenant else "rules:state"


def rules_texts_key(tenant: str = "") -> str:
    """Hash: number of a version -> its text."""
    return f"rules:texts:{tenant}" if tenant else "rules:texts"


RULES_TENANTS_KEY: Final = "rules:tenants"
"""Hash: tenant that has rules of its own -> the stamp of their state."""

RECORDED_EVENTS_KEY: Final = "rules:events"
"""Stream: a sample of recent events, for dry runs; it expires."""

INDEXES: Final = rb"event:.*|rules:(events|tenants)"
"""Keys without bodies and numbers of messages (`engine.store.stored_kinds`)."""
