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


class DataLost(EngineError):
    """Storage no longer has what it had confirmed: a fail-over to a replica that lagged, a restored backup, a lost log."""


class ClockSetBack(EngineError):
    """The wall clock went back: what this process measures by it would stand still. It ends, and a successor begins anew."""


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


class Overloaded(EngineError):
    """A limit of this process is reached (HTTP 429): nothing was accepted, the same request succeeds later.

    Args:
        detail: which limit, for people.
        backlog_ms: how long what is ahead takes; 0 when nobody knows.
    """

    def __init__(self, detail: str, backlog_ms: float = 0.0) -> None:
        super().__init__(detail)
        self.backlog_ms = backlog_ms


class Unavailable(EngineError):
    """A part that has to answer did not, or this process takes nothing new (HTTP 503): the same request succeeds later."""


class RulesError(EngineError):
    """A rules file cannot be used; the message names the file's line, the rule and what is allowed."""


class ClientError(EngineError):
    """Base of what `engine.Client` and `engine.Publisher` raise."""


class Unreachable(ClientError):
    """No engine answered in the time allowed. Whatever was being published may be published again under the same ids."""


class Refused(ClientError):
    """The engine refused the connection or request for a reason that waiting does not cure.

    Args:
        detail: what the engine said.
        status: the HTTP status or WebSocket close code.
    """

    def __init__(self, detail: str, status: int) -> None:
        super().__init__(f"{detail} ({status})")
        self.detail = detail
        self.status = status


class Unauthorized(Refused):
    """401 or 4401: the token is missing, malformed, expired, or signed with another secret."""


class Forbidden(Refused):
    """403 or 4403: the token is good and lacks the scope for this."""


class TooManyConnections(Refused):
    """4409: newer connections of the same user took this one's place. Reconnecting would only push out another."""
