"""Records events at shards, for conditions that are decided later, and arms the timers of inactivity rules.

    event --Happened--> shard of the event's user: journalled, answered; only then the event is processed further
                        shard of each user an inactivity rule concerns: returns the timer that follows the user, or takes the proposed one

An event is recorded when some rule in force refers to it: by its name, or because any activity counts. It is recorded with the time at
which it happened, from which the conditions of what it arms count too, so an event never cancels what it armed itself; nor does its
repeat, which the shard recognises. An event of the past needs no recognition: its repeat happened at the same time.

One timer follows a user for each inactivity rule. Its scheduled id is in the user's mailbox, and every event of the rule schedules it
again under that id, which does nothing while it is armed. So whatever process dies in between, the next event repairs it. When the
scheduler answers that this timer is gone (cancelled, or it has fired and the shard has no record of that), the shard is notified, and
another timer follows the user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from engine.core.model.routing import mailbox_key, timer_id
from engine.core.wire.records import GONE, OK, OVERLOADED, SCHEDULED, USERS_FULL, USERS_FULL_RETRY_MS, Followed, Happened
from engine.features.rules.core.rules import Notification
from engine.features.rules.core.staging import RulesInForce
from engine.gateway.shard_client import ShardClient
from engine.http.problems import RETRY_AFTER_S, Problem, over_quota, too_many_requests, unavailable, whole_seconds
from engine.publish.drafts import Draft
from engine.publish.results import ItemResult, blank_result, timer_of

_TRIES: Final = 3
"""Attempts to arm a timer that follows a user: each may find that the timer was cancelled just then."""

Followers = Mapping[tuple[str, str], str]
"""(user, rule) -> scheduled id."""


class Happening(Struct, frozen=True):
    """An event: its name, its user, when it happened, and an id to recognise a repeat by; "" when that has the same `at_ms`."""

    name: str
    user: str
    at_ms: int
    delivery: str = ""


_NOTHING: Final = Happening("", "", 0)


class InactivityTimers:
    """Records events at shards, and arms the timers that follow users.

    Args:
        wall_ms: milliseconds since the epoch.
    """

    def __init__(self, shard_client: ShardClient, wall_ms: Callable[[], int]) -> None:
        self._shard_client = shard_client
        self._wall_ms = wall_ms

    async def happened(self, rules: RulesInForce, event: Happening, notifications: Sequence[Notification], tenant: str) -> Followers:
        """Record at the shards what some rule will refer to. Returns the timers that follow users.

        Raises:
            Problem: 503, not everything is durable.
        """
        follow: dict[str, dict[str, str]] = {}
        for notification in notifications:
            if _follows(notification):
                key = mailbox_key(tenant, notification.user)
                follow.setdefault(notification.user, {})[notification.rule] = timer_id(key, self._shard_client.new_timer_name())
        noticed = event if event.name in rules.events_asked else msgspec.structs.replace(event, name="")
        if noticed.name or rules.activity_asked:
            follow.setdefault(event.user, {})
        recorded = await asyncio.gather(
            *(
                self._record(mailbox_key(tenant, user), noticed if user == event.user else _NOTHING, timers)
                for user, timers in follow.items()
            )
        )
        return {(user, rule): sid for user, timers in zip(follow, recorded, strict=True) for rule, sid in timers.items()}

    async def _record(self, key: str, event: Happening, follow: dict[str, str], ended: Sequence[str] = ()) -> dict[str, str]:
        answer = await self._shard_client.ask(
            Followed, lambda ref: Happened(ref, key, event.at_ms, event.name, follow, list(ended), event.delivery)
        )
        if answer.status != OK:
            raise unavailable("durable storage did not answer", RETRY_AFTER_S)
        return follow | answer.timers

    async def arm(self, notification: Notification, draft: Draft, sid: str) -> ItemResult:
        """Schedule the timer that follows a user under this scheduled id, unless it is armed already.

        Raises:
            Problem: 503 or 429, it may not be armed.
        """
        for _ in range(_TRIES):
            answer = await self._shard_client.schedule(timer_of(draft, sid, self._wall_ms()))
            if answer.status != SCHEDULED:
                raise _refused(answer.status, answer.detail)
            if answer.detail != GONE:
                result = blank_result(draft)
                result.status = "scheduled"
                result.scheduled_id = sid
                result.scheduled_at = draft.due_ms
                for armed in answer.timers:  # perhaps by an earlier event, whose message it is
                    result.id, result.scheduled_at = armed.envelope.id, armed.due_ms
                return result
            rule = notification.rule
            sid = (await self._record(draft.key, _NOTHING, {rule: timer_id(draft.key, self._shard_client.new_timer_name())}, [sid]))[rule]
        raise unavailable("what follows this user is cancelled again and again", RETRY_AFTER_S)


def _follows(notification: Notification) -> bool:
    """Whether it is of an inactivity rule."""
    return notification.conditions is not None and notification.conditions.inactive_ms > 0


def split(notifications: Sequence[Notification], drafts: Sequence[Draft]) -> tuple[list[int], list[int]]:
    """The indices of drafts that are published, and of those whose timers follow users."""
    places = range(len(drafts))
    return (
        [place for place in places if not _follows(notifications[place])],
        [place for place in places if _follows(notifications[place])],
    )


def _refused(status: int, detail: str) -> Problem:
    if detail == USERS_FULL:
        return over_quota("tenant_users_max", detail, whole_seconds(USERS_FULL_RETRY_MS))
    if status == OVERLOADED:
        return too_many_requests(detail or "a limit is reached", RETRY_AFTER_S)
    return unavailable(detail or "durable storage did not answer", RETRY_AFTER_S)
