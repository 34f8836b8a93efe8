"""The keys of this feature in Redis."""

from __future__ import annotations

from typing import Final

AUDIT_KEY: Final = "audit:acts"
"""Stream: acts of operators and admins, of all tenants."""

INDEXES: Final = rb"audit:acts"
"""Keys without bodies and numbers of messages (`engine.store.stored_kinds`)."""
