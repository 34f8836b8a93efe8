"""The keys of this feature in Redis."""

from __future__ import annotations

from typing import Final

REVOCATION_LOG_KEY: Final = "revoked:log"
"""Stream: the revocations in force."""

REVOCATION_ENTRIES_KEY: Final = "revoked:entries"
"""Hash: `kind:tenant:name` of a revocation -> `<id in the log>|<before in ms>|<expiry in ms>`."""

REVOCATION_EXPIRIES_KEY: Final = "revoked:expiries"
"""Sorted set: `kind:tenant:name`, scored by when the revocation expires, ms."""

REVOCATION_STATE_KEY: Final = "revoked:state"
"""Hash: `last`, the id of the last entry that was appended to the log."""

REVOCATION_TENANTS_KEY: Final = "revoked:tenants"
"""Hash: tenant -> its number of revocations."""

REVOCATION_USELESS_KEY: Final = "revoked:useless"
"""List: ids in the log whose revocation was merged or has expired; the oldest go when there are too many."""

INDEXES: Final = rb"revoked:(entries|expiries|state|tenants|useless)"
"""Keys without bodies and numbers of messages (`engine.store.stored_kinds`)."""
