"""Compares what two versions of the rules make of an event, for a dry run: nothing is sent.

A notification of one version corresponds to that of the other for the same rule and recipient.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from engine.features.rules.core.cases import members
from engine.features.rules.core.rules import Notification, RulesOutcome

Table = dict[str, Any]


class ChangedNotification(Struct, frozen=True):
    """A notification that both versions make, and differently: the members that differ, as they are now and as they would be."""

    rule: str
    user: str
    topic: str | None
    now: Table
    then: Table


class OutcomeDifference(Struct, frozen=True):
    """How the outcome of an event would differ; all empty when it would not.

    Attributes:
        added: notifications that would be made and are not now.
        removed: those that are made now and would not be.
        changed: those that would be different.
        cancels: cancellations that would be made and are not now; `spares` the other way round.
    """

    added: list[Table]
    removed: list[Table]
    changed: list[ChangedNotification]
    cancels: list[Table]
    spares: list[Table]

    @property
    def any(self) -> bool:
        """Whether anything would differ."""
        return bool(self.added or self.removed or self.changed or self.cancels or self.spares)


def difference(now: RulesOutcome, then: RulesOutcome) -> OutcomeDifference:
    """How `then` differs from `now`."""
    before, after = _by_recipient(now.notifications), _by_recipient(then.notifications)
    return OutcomeDifference(
        [shown(made) for key, made in after.items() if key not in before],
        [shown(made) for key, made in before.items() if key not in after],
        [changed for key, made in after.items() if key in before and (changed := _changed(before[key], made)) is not None],
        [msgspec.to_builtins(one) for one in then.cancellations if one not in now.cancellations],
        [msgspec.to_builtins(one) for one in now.cancellations if one not in then.cancellations],
    )


def shown(notification: Notification) -> Table:
    """A notification as a table, without members that have no value."""
    return {name: value for name, value in members(notification).items() if value not in (None, "", 0, {})}


def _by_recipient(notifications: list[Notification]) -> dict[tuple[str, str, str | None], Notification]:
    return {(made.rule, made.user, made.topic): made for made in notifications}


def _changed(now: Notification, then: Notification) -> ChangedNotification | None:
    before, after = shown(now), shown(then)
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    if not names:
        return None
    return ChangedNotification(
        then.rule,
        then.user,
        then.topic,
        {name: before[name] for name in names if name in before},
        {name: after[name] for name in names if name in after},
    )
