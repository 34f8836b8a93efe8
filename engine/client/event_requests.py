"""Events for the rules, timers that came of them or of delayed messages, and topics of a user, over HTTP.

An event has an id, and moving or cancelling a timer or subscribing twice changes nothing, so all of these are retried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from engine.client.http_connection import Response
from engine.client.publish_results import Result, body_of
from engine.client.retried_requests import RetriedRequests


class EventOutcome(Struct):
    """What the rules made of an event.

    Attributes:
        matched: names of the rules that apply to it.
        results: of the messages that were published.
        scheduled: ids of the timers that were made.
        cancelled: how many timers it cancelled.
    """

    matched: list[str]
    results: list[Result]
    scheduled: list[str]
    cancelled: int


class ScheduledMessage(Struct):
    """A message that is delivered later, or an action that is carried out later.

    Attributes:
        scheduled_id: names it.
        scheduled_at, created_at: milliseconds since the epoch.
        user, topic, broadcast: whom it is for.
        action: the target that is called in place of notifying.
        notification: its own members.
    """

    scheduled_id: str
    scheduled_at: int
    created_at: int = 0
    user: str | None = None
    topic: str | None = None
    broadcast: bool = False
    action: str | None = None
    notification: dict[str, Any] = msgspec.field(default_factory=dict)


class _Scheduled(Struct):
    scheduled: list[ScheduledMessage]
    next: str = ""


async def send_event(requests: RetriedRequests, event: Mapping[str, Any]) -> EventOutcome:
    """Hand an event to the rules. What they made of it is durable on return, but for results that are not `final`: send it again then.

    Raises:
        Refused: a field is not valid, nothing has happened; Unauthorized, Forbidden: the token.
        Unreachable: no engine answered within the time for retries.
    """
    return msgspec.json.decode(body_of(await requests.send("POST", "/v1/events", msgspec.json.encode(event)), 202), type=EventOutcome)


async def fetch_scheduled(requests: RetriedRequests, scheduled_id: str) -> ScheduledMessage | None:
    """What is scheduled under this id; None when it is unknown, was cancelled or has fired. Raises as `send_event`."""
    answer = await requests.send("GET", _of(scheduled_id), b"")
    return None if answer.status == 404 else msgspec.json.decode(body_of(answer), type=ScheduledMessage)


async def move_scheduled(requests: RetriedRequests, scheduled_id: str, when: Mapping[str, Any]) -> bool:
    """Move it to `{"at": ...}` or `{"delay": ...}`. False when it is too late, or nothing has this id. Raises as `send_event`."""
    return _in_time(await requests.send("PATCH", _of(scheduled_id), msgspec.json.encode(when)))


async def cancel_scheduled(requests: RetriedRequests, scheduled_id: str) -> bool:
    """Cancel it. False when it is too late, or nothing has this id. Raises as `send_event`."""
    return _in_time(await requests.send("DELETE", _of(scheduled_id), b""))


async def fetch_all_scheduled(requests: RetriedRequests, user: str, collapse: str | None) -> list[ScheduledMessage]:
    """What is scheduled for a user, of one `collapse` key if there is one. Raises as `send_event`."""
    found: list[ScheduledMessage] = []
    after = ""
    while True:
        answer = await requests.send("GET", _for(user, collapse) + after, b"")
        page = msgspec.json.decode(body_of(answer), type=_Scheduled)
        found += page.scheduled
        if not page.next:
            return found
        after = f"&after={quote(page.next, safe='')}"


async def cancel_all_scheduled(requests: RetriedRequests, user: str, collapse: str | None) -> int:
    """Cancel what has not fired of the same. Returns how many; after a lost answer, what the repeat cancelled. Raises as `send_event`."""
    answer = await requests.send("DELETE", _for(user, collapse), b"")
    return int(msgspec.json.decode(body_of(answer))["cancelled"])


async def change_topics(requests: RetriedRequests, method: str, topics: Sequence[str]) -> list[str]:
    """All topics of the token's user, after a PUT or DELETE of each of `topics`; durable on return.

    Raises:
        Refused: a topic is not allowed, or there are too many; those before it are changed. Otherwise as `send_event`.
    """
    answer = None
    for topic in topics:
        answer = body_of(await requests.send(method, f"/v1/subscriptions/{quote(topic, safe='')}", b""))
    found = answer if answer is not None else body_of(await requests.send("GET", "/v1/subscriptions", b""))
    names: list[str] = msgspec.json.decode(found)["topics"]
    return names


def _for(user: str, collapse: str | None) -> str:
    return f"/v1/scheduled?{urlencode({'user': user} | ({'collapse': collapse} if collapse is not None else {}))}"


def _of(scheduled_id: str) -> str:
    return f"/v1/scheduled/{quote(scheduled_id, safe='')}"


def _in_time(answer: Response) -> bool:
    if answer.status in (404, 409):
        return False
    body_of(answer)
    return True
