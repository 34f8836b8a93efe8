"""Everything the engine raises on purpose. One small hierarchy, so a caller can catch at the level it cares about."""

from __future__ import annotations


class EngineError(Exception):
    """Base of every error the engine raises on purpose."""


class ConfigError(EngineError):
    """A setting is missing, malformed or out of range; the message names it and says what is allowed."""


class StorageUnavailable(EngineError):
    """Durable storage did not answer in time, or refused the write for a reason that may pass (loading, out of memory)."""


class Fenced(EngineError):
    """Storage holds a newer epoch than the writer's: another incarnation owns this shard or slot now. Stop writing."""


class CorruptRecord(EngineError):
    """A stored record cannot be decoded. It is quarantined and reported, never skipped silently."""


class Invalid(EngineError):
    """Input from outside breaks a rule.

    Args:
        detail: what is wrong and what is allowed, for people.
        path: JSON path of the offending field, `$` for the whole input.
    """

    def __init__(self, detail: str, path: str = "$") -> None:
        super().__init__(f"{path}: {detail}")
        self.detail = detail
        self.path = path
