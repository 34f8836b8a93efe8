"""The exceptions of the engine, in one hierarchy: a caller catches at the level it handles."""

from __future__ import annotations


class EngineError(Exception):
    """Base of the engine's exceptions. The text is one line, for the user who gets it."""


class ConfigError(EngineError):
    """A setting is unknown, malformed or out of range; the message names it and what is allowed."""


class StorageUnavailable(EngineError):
    """Durable storage did not answer in time, or refused the write for a reason that may pass (loading, out of memory)."""


class SnapshotFailed(EngineError):
    """A snapshot could not be taken or restored; the message says why. The data are as they were."""


class Fenced(EngineError):
    """Storage has a newer epoch than the writer: another incarnation owns this shard or slot. The writer must stop."""


class FormatsTooNew(EngineError):
    """The data are written in formats that this version of the code does not read: a newer version has been in use for all of it."""


class DataLost(EngineError):
    """Storage lacks data that it had confirmed: a fail-over to a replica that lagged, a restored backup, a lost log."""


class ClockSetBack(EngineError):
    """The wall clock was set back: everything measured by it would stop. The process ends, and its successor recovers."""


class NotProven(EngineError):
    """A call of an actor came from outside the engine, or with the key of another one."""


class ActionFailed(EngineError):
    """The target of an action did not do it.

    Args:
        detail: why.
        final: trying again is of no use.
        retry_after_s: the target wants no try before; 0: it named no time.
        own: a part of the engine did not answer. Nothing is given up for that.
        unclear: the target may have done it, and could not say so.
    """

    def __init__(self, detail: str, *, final: bool = False, retry_after_s: int = 0, own: bool = False, unclear: bool = False) -> None:
        super().__init__(detail)
        self.final = final
        self.retry_after_s = retry_after_s
        self.own = own
        self.unclear = unclear


class NobodyToReach(EngineError):
    """An action has done nothing, since whom it is for has no address. That is no failure. The text says which is missing."""


class CorruptRecord(EngineError):
    """A stored record cannot be decoded. It is quarantined and counted, never skipped silently."""


class Invalid(EngineError):
    """Input from outside breaks a rule.

    Args:
        detail: what is wrong and what is allowed.
        path: JSON path of the offending field, `$` for the whole input.
    """

    def __init__(self, detail: str, path: str = "$") -> None:
        super().__init__(f"{path}: {detail}")
        self.detail = detail
        self.path = path


class Overloaded(EngineError):
    """A limit of this process is reached (HTTP 429): nothing was accepted, the same request succeeds later.

    Args:
        detail: which limit.
        backlog_ms: time until the current backlog is done; 0 when unknown.
    """

    def __init__(self, detail: str, backlog_ms: float = 0.0) -> None:
        super().__init__(detail)
        self.backlog_ms = backlog_ms


class Unavailable(EngineError):
    """A required part did not answer, or this process accepts nothing new (HTTP 503): the same request succeeds later.

    Args:
        detail: which part, or why.
        retry_ms: when it may be back, after so long; 0 when unknown.
    """

    def __init__(self, detail: str, retry_ms: float = 0.0) -> None:
        super().__init__(detail)
        self.retry_ms = retry_ms


class RulesError(EngineError):
    """Rules cannot be used; the message names the line, the rule and what is allowed.

    Args:
        message: that message.
        path: of the field, such as `rule[2].delay`; "" where the text as a whole cannot be read.
        line: on which the rule begins; 0 where that is not known.
    """

    def __init__(self, message: str, *, path: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.path = path
        self.line = line


class ClientError(EngineError):
    """Base of the exceptions of `engine.Client` and `engine.Publisher`."""


class Unreachable(ClientError):
    """No engine answered in time. What was being published can safely be published again under the same ids.

    Args:
        detail: who did not answer, and why.
        status: the HTTP status of the last answer, such as 429 where a limit was reached all the time; 0 for none.
    """

    def __init__(self, detail: str, status: int = 0) -> None:
        super().__init__(detail)
        self.status = status


class Refused(ClientError):
    """The engine refused the connection or request for a reason that a retry does not change.

    Args:
        detail: the engine's reason.
        status: the HTTP status or WebSocket close code.
    """

    def __init__(self, detail: str, status: int) -> None:
        super().__init__(detail, status)  # of which a copy is made in another process
        self.detail = detail
        self.status = status

    def __str__(self) -> str:
        return f"{self.detail} ({self.status})"


class Unauthorized(Refused):
    """401 or 4401: the token is missing, malformed, expired, or signed with another key."""


class Forbidden(Refused):
    """403 or 4403: the token is valid and lacks the scope."""


class TooManyConnections(Refused):
    """4409: closed in favour of newer connections of the same user. Reconnecting would close another one."""
