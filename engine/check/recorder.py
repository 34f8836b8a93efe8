"""Writes a history, for publishers and clients under test."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TextIO

HistoryEvent = dict[str, Any]


class Recorder:
    """Hands on events. One recorder for all publishers and clients of a process: the order of its calls is that of the history.

    Args:
        write: takes one event: `Checker.take_next`, or the `append` of a list. `Recorder.to_file` writes lines.
        now_ms: the clock of `at_ms`, milliseconds since the epoch; without it, nothing is checked that depends on times.
    """

    def __init__(self, write: Callable[[HistoryEvent], None], now_ms: Callable[[], float] | None = None) -> None:
        self._write = write
        self._now_ms = now_ms
        self._calls = 0
        self._connections = 0
        self._file: TextIO | None = None

    @classmethod
    def to_file(cls, path: str, now_ms: Callable[[], float] | None = None) -> Self:
        """Writes a file, which is replaced. `close` it, or use the recorder as a context manager."""
        file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed by `close`
        recorder = cls(lambda event: print(json.dumps(event), file=file), now_ms)
        recorder._file = file
        return recorder

    # -- Publishers. ---------------------------------------------------------------------------------------------------
    def published(self, user: str, id: str, payload: Any, **members: Any) -> int:
        """A publisher sends a message. To be called before it does. Returns the number of the call, for `answered`.

        Args:
            user: empty for a broadcast.
            members: of the message, those that change what it is owed: `ttl`, `retain`, `collapse`, `category`; and `suppressible`, for
                one that its user may want in the inbox only, or a delayed one that quiet hours may hold back or a cap suppress when due.
        """
        return self._call("publish", user=user, id=id, payload=payload, **({"members": members} if members else {}))

    def answered(self, call: int, status: int, result: Mapping[str, Any] | None = None) -> None:
        """The HTTP status of an answer, and the message's part of its `results`. A call without an answer has an unknown effect."""
        self._tell("answer", call=call, status=status, **({"result": dict(result)} if result else {}))

    def cancelled(self, user: str, id: str) -> None:
        """Somebody asks that a message not come: it is owed no more. To be called before the request."""
        self._tell("cancel", user=user, id=id)

    def moved(self, user: str, id: str, due_ms: float) -> None:
        """Somebody asks that a delayed message come at another time. To be called before the request."""
        self._tell("move", user=user, id=id, due_ms=due_ms)

    # -- Clients. ------------------------------------------------------------------------------------------------------
    def connected(self, user: str, cursor: str | None, welcome: Mapping[str, Any]) -> int:
        """A client that gave this cursor has read `welcome`. Returns the number of the connection."""
        self._connections += 1
        self._tell("welcome", connection=self._connections, user=user, cursor=cursor, **_members(welcome, "epoch", "resumed"))
        return self._connections

    def received(self, connection: int, frame: Mapping[str, Any]) -> None:
        """Any later frame of the connection, or what a stream or a poll has in its place."""
        kind = frame["type"]
        if kind in {"messages", "early"}:
            event = {"messages": "message", "early": "early"}[kind]
            for message in frame["messages"]:
                named = _members(message, "seq", "id", "attempt", "count")
                self._tell(event, connection=connection, payload=message.get("data"), **named)
        elif kind == "gap":
            self._tell("gap", connection=connection, **_members(frame, "from", "to"))
        elif kind == "counts":
            self._tell("counts", connection=connection, **_members(frame, "revision", "unread", "unseen"))
        elif kind == "revoke":
            self._tell("revoke", connection=connection, ids=frame["ids"])

    def acknowledged(self, user: str, cursor: str = "", ids: Sequence[str] = ()) -> None:
        """The user's client acknowledges everything through a cursor, which it may also present, or these ids; or it refuses them.

        To be called before it sends that.
        """
        self._tell("ack", user=user, **({"cursor": cursor} if cursor else {"ids": list(ids)}))

    # -- Inboxes and questions. ----------------------------------------------------------------------------------------
    def marked(self, user: str, mark: str, ids: Sequence[str]) -> int:
        """`POST /v1/inbox/{mark}` begins. Returns the number of the call, for `answered`."""
        return self._call("mark", user=user, mark=mark, ids=list(ids))

    def listed(self, user: str, messages: Sequence[Mapping[str, Any]]) -> None:
        """`GET /v1/inbox` was answered. The request must have begun after the answer to the last mark."""
        self._tell("inbox", user=user, messages=[_members(one, "id", "seq", "read", "seen", "archived", "pinned") for one in messages])

    def replied(self, user: str, id: str, answer: str) -> int:
        """Somebody answers a question. Returns the number of the call, for `answered` with `{"answer": the one that won}`."""
        return self._call("reply", user=user, id=id, answer=answer)

    # -- Of the run. ---------------------------------------------------------------------------------------------
    def disturbed(self) -> None:
        """From now on processes may die or users move: another shard or process counts attempts anew."""
        self._tell("disturbed")

    def quiet(self, user: str, from_ms: float, to_ms: float) -> None:
        """From now on the user has quiet hours between these times."""
        self._tell("quiet", user=user, from_ms=from_ms, to_ms=to_ms)

    def capped(self, category: str, count: int, window_ms: float) -> None:
        """From now on each user may get so many messages of a category within any such time."""
        self._tell("cap", category=category, count=count, window_ms=window_ms)

    def complete(self, now_ms: float | None = None) -> None:
        """Everybody was connected for long enough: what did not come until now is lost, unless it is due after `now_ms`."""
        self._tell("complete", **({} if now_ms is None else {"now_ms": now_ms}))

    # -- Its file. -----------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _call(self, event: str, **members: Any) -> int:
        self._calls += 1
        self._tell(event, call=self._calls, **members)
        return self._calls

    def _tell(self, event: str, **members: Any) -> None:
        at = {} if self._now_ms is None else {"at_ms": self._now_ms()}
        self._write({"event": event, **members, **at})


def _members(of: Mapping[str, Any], *names: str) -> HistoryEvent:
    return {name: of[name] for name in names if name in of}
