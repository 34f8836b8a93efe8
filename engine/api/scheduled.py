"""Scheduled notifications in the answers of `/v1/scheduled`."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.core.model.routing import split_key, topic_of
from engine.core.wire import records as wire
from engine.errors import Overloaded, Unavailable
from engine.http.problems import ALREADY_FIRED, conflict, not_found


def as_json(timer: wire.Timer) -> dict[str, Any]:
    """The JSON object of a timer: its notification, when it is due and for whom, and what it does instead of delivering it."""
    topic = topic_of(timer.key)
    whom: dict[str, Any] = {"user": split_key(timer.key)[1]} if topic is None else {"topic": topic} if topic else {"broadcast": True}
    members = {"scheduled_id": timer.sid, "scheduled_at": timer.due_ms, "created_at": timer.created_ms, **whom}
    if timer.action is not None:
        members["action"] = timer.action.target
    return {**members, "notification": msgspec.Raw(b"{%b}" % timer.envelope.body)}


def raise_unless_ok(answer: wire.TimerAnswer) -> wire.TimerAnswer:
    """Return the answer when its status is OK.

    Raises:
        Problem: 404, or 409 when it was delivered already.
        Overloaded, Unavailable: the scheduler refused, or storage did not answer.
    """
    if answer.status == wire.OK:
        return answer
    if answer.status == wire.NOT_FOUND:
        raise not_found("no such scheduled notification")
    if answer.status == wire.ALREADY_FIRED:
        raise conflict("it has been delivered already", type=ALREADY_FIRED)
    if answer.status == wire.OVERLOADED:
        raise Overloaded(answer.detail or "a limit is reached")
    raise Unavailable(answer.detail or "durable storage did not answer")
