"""What shards have to know of events so that conditions can be judged later, and the timers of inactivity rules that follow users.

    event --Happened--> shard of the event's user: journalled, answered --> only then the event goes on
                        shard of whom an inactivity rule is about: which timer follows this user? the one proposed, unless there is one

An event is told to the shard when some rule in force asks for it: by its name, or because any activity counts. It is told with the time
at which it happened, the same that the conditions of what it arms count from, so no event ends what it began; nor does its repeat,
which the shard recognises where the event does not say its time.

One timer follows a user for each inactivity rule. Its scheduled id is in the user's mailbox, and every event of the rule schedules it
again under that id: nothing when it waits already. So whoever dies in between, the next event heals it. Where the scheduler answers
that this timer is gone (cancelled, or it has fired and the shard does not know), the shard is told, and another one follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from engine.core.model.routing import mailbox_key, timer_id
from engine.core.rules.rules import Notification, Rules
from engine.core.wire.records import GONE, OK, OVERLOADED, SCHEDULED
from engine.gateway.shard_client import ShardClient
from engine.http.problems import RETRY_AFTER_S, Problem, too_many_requests, unavailable
from engine.publish.drafts import Draft
from engine.publish.results import ItemResult, blank_result, timer_of

_TRIES: Final = 3
"""Of arming a timer that follows a user: twice it may turn out that it was cancelled just then."""

Followers = Mapping[tuple[str, str], str]
"""(user, rule) -> scheduled id."""


class Happening(Struct, frozen=True):
    """An event: its name, whose it is, when it happened, and what identifies it when it does not say that time itself, else ""."""

    name: str
    user: str
    at_ms: int
    delivery: str = ""


_NOTHING: Final = Happening("", "", 0)


class InactivityTimers:
    """Tells shards, and arms what follows users.

    Args:
        wall_ms: milliseconds since the epoch.
    """

    def __init__(self, requests: ShardClient, wall_ms: Callable[[], int]) -> None:
        self._requests = requests
        self._wall_ms = wall_ms

    async def happened(self, rules: Rules, event: Happening, notifications: Sequence[Notification], tenant: str) -> Followers:
        """Tell the shards of an event what some rule will ask. Returns which timers follow whom.

        Raises:
            Problem: 503, not everything is durable.
        """
        follow: dict[str, dict[str, str]] = {}
        for notification in notifications:
            if _follows(notification):
                key = mailbox_key(tenant, notification.user)
                follow.setdefault(notification.user, {})[notification.rule] = timer_id(key, self._requests.new_id())
        noticed = event if event.name in rules.events_asked else msgspec.structs.replace(event, name="")
        if noticed.name or rules.activity_asked:
            follow.setdefault(event.user, {})
        told = await asyncio.gather(
            *(self._tell(mailbox_key(tenant, user), noticed if user == event.user else _NOTHING, timers) for user, timers in follow.items())
        )
        return {(user, rule): sid for user, timers in zip(follow, told, strict=True) for rule, sid in timers.items()}

    async def _tell(self, key: str, event: Happening, follow: dict[str, str], ended: Sequence[str] = ()) -> dict[str, str]:
        answer = await self._requests.happened(key, event.at_ms, event.name, follow, ended, event.delivery)
        if answer.status != OK:
            raise unavailable("durable storage did not answer", RETRY_AFTER_S)
        return follow | answer.timers

    async def arm(self, notification: Notification, draft: Draft, sid: str) -> ItemResult:
        """Schedule what follows a user, under this scheduled id: nothing when it waits already.

        Raises:
            Problem: 503 or 429, it may not be armed.
        """
        for _ in range(_TRIES):
            answer = await self._requests.schedule(timer_of(draft, sid, self._wall_ms()))
            if answer.status != SCHEDULED:
                raise _refused(answer.status, answer.detail)
            if answer.detail != GONE:
                result = blank_result(draft)
                result.status = "scheduled"
                result.scheduled_id = sid
                result.scheduled_at = answer.timers[0].due_ms if answer.timers else draft.due_ms
                return result
            rule = notification.rule
            sid = (await self._tell(draft.key, _NOTHING, {rule: timer_id(draft.key, self._requests.new_id())}, [sid]))[rule]
        raise unavailable("what follows this user is cancelled again and again", RETRY_AFTER_S)


def _follows(notification: Notification) -> bool:
    """Is it of an inactivity rule?"""
    return notification.conditions is not None and notification.conditions.inactive_ms > 0


def split(notifications: Sequence[Notification], drafts: Sequence[Draft]) -> tuple[list[int], list[int]]:
    """The places of what is published as any draft, and of what follows users."""
    places = range(len(drafts))
    return (
        [place for place in places if not _follows(notifications[place])],
        [place for place in places if _follows(notifications[place])],
    )


def _refused(status: int, detail: str) -> Problem:
    if status == OVERLOADED:
        return too_many_requests(detail or "a limit is reached", RETRY_AFTER_S)
    return unavailable(detail or "durable storage did not answer", RETRY_AFTER_S)
