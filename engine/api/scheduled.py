"""Scheduled notifications as clients see them."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.core.model.routing import split_key, topic_of
from engine.core.wire import records as wire
from engine.errors import Overloaded, Unavailable
from engine.http.problems import ALREADY_FIRED, conflict, not_found


def shown(timer: wire.Timer) -> dict[str, Any]:
    """One of them: its own members, and when and for whom."""
    topic = topic_of(timer.key)
    whom: dict[str, Any] = {"user": split_key(timer.key)[1]} if topic is None else {"topic": topic} if topic else {"broadcast": True}
    members = {"scheduled_id": timer.sid, "scheduled_at": timer.due_ms, "created_at": timer.created_ms, **whom}
    return {**members, "notification": msgspec.Raw(b"{%b}" % timer.body)}


def good(answer: wire.TimerAnswer) -> wire.TimerAnswer:
    """The answer, when it is a good one."""
    if answer.status == wire.OK:
        return answer
    if answer.status == wire.NOT_FOUND:
        raise not_found("no such scheduled notification")
    if answer.status == wire.ALREADY_FIRED:
        raise conflict("it has been delivered already", type=ALREADY_FIRED)
    if answer.status == wire.OVERLOADED:
        raise Overloaded(answer.detail or "a limit is reached")
    raise Unavailable(answer.detail or "durable storage did not answer")
