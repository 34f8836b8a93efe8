"""Decides whether the message of a timer that a rule armed is still sent when the timer fires.

Conditions travel with the timer. The shard that owns the user evaluates them with `at_fire` when it fires, from:

    activity   when the user last connected, acknowledged something, or had an event of their own. Events are journalled before their
               publisher is answered; of the rest, a crash may lose what is younger than the page
    events     when each event that some rule refers to last came; journalled likewise (`checkpoint.Noticed`)
    groups     the topics the user is subscribed to
    progress   how far the user has come with one message, for the timer of a step (`engine.core.model.step`)

An inactivity rule is a timer that may be moved: armed by an event, due `inactive` + `delay` after it. When it comes due and the user
has been active meanwhile it is moved behind that activity, so one timer follows a user however often they come. Clocks: an activity
that lies in the future, because a clock was set back, counts like one of now.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

from msgspec import Struct

from engine.core.model.category import Instant, Span
from engine.core.model.step import GONE, NEVER_CAME, PENDING, StepTerms

_LOOK_MS: Final = 60_000
"""At least so long between looks for the message of a step that was delayed, and moved or put off since."""

_HAS: Final = ("", "received", "seen", "read", "dealt with")
"""How far a user has come, in words, by code of `engine.core.model.step`."""


class Conditions(Struct, frozen=True, array_like=True, omit_defaults=True):
    """What must hold when the timer fires. Part of the timer.

    Args:
        since_ms: time of the event that armed it.
        unless_active: not when the user has been active since.
        unless_events: not when one of these events of the user has come since.
        member_of: only while the user is in this group; "" for no such condition.
        inactive_ms: only after so long without activity; until then it is moved, not dropped. 0 for no such condition.
        delay_ms: after that.
        step: it is a step of a message: what it needs to know of it.
    """

    since_ms: Instant
    unless_active: bool = False
    unless_events: tuple[str, ...] = ()
    member_of: str = ""
    inactive_ms: Span = 0
    delay_ms: Span = 0
    step: StepTerms | None = None

    @property
    def any(self) -> bool:
        return self.unless_active or bool(self.unless_events) or bool(self.member_of) or self.inactive_ms > 0


class Known(Struct, frozen=True):
    """What the shard has of a user at fire time: last activity, last time of each event that some rule refers to, groups.

    Of the message of a step: how far the user has come with it, why the user does not want it ("" when it is wanted), and when the user's
    quiet hours end, 0 outside of them. Of a message that has not come: when those end that it was due in. `sought`: storage was asked for
    the number of a message that the mailbox does not know.
    """

    active_ms: int = 0
    events: Mapping[str, int] = {}
    groups: Container[str] = ()
    progress: int = PENDING
    unwanted: str = ""
    quiet_until_ms: int = 0
    sought: bool = True


class Go(Struct, frozen=True):
    """All conditions hold: send it."""


class Drop(Struct, frozen=True):
    """It is not sent: the timer has had its effect. `reason` is a word for programs, `detail` for people.

    `of_step`: it was a step of a message, not the message itself.
    """

    reason: str
    detail: str
    of_step: bool = False


class Again(Struct, frozen=True):
    """Not yet: the timer is moved to `at_ms`."""

    at_ms: int


def at_fire(conditions: Conditions, known: Known, now_ms: int) -> Go | Drop | Again:
    """Evaluate the conditions of a timer that fires now. Pure."""
    if conditions.step is not None:
        return _at_step(conditions.step, conditions.since_ms, known, now_ms)
    if conditions.member_of and conditions.member_of not in known.groups:
        return Drop("not_member", f"the user is not in {conditions.member_of} any more")
    opposite = next((name for name in conditions.unless_events if known.events.get(name, 0) > conditions.since_ms), None)
    if opposite is not None:
        return Drop("opposite_event", f"{opposite} has come since")
    if conditions.unless_active and known.active_ms > conditions.since_ms:
        return Drop("interacted", "the user has been active since")
    due_ms = known.active_ms + conditions.inactive_ms + conditions.delay_ms
    if conditions.inactive_ms and due_ms > now_ms:
        return Again(due_ms)
    return Go()


def _at_step(terms: StepTerms, due_ms: int, known: Known, now_ms: int) -> Go | Drop | Again:
    """Decide about a step. A message that is put off to the end of quiet hours comes then: its steps count from there.

    Args:
        due_ms: when its message was due.
    """
    step = terms.step
    if known.progress == NEVER_CAME:
        if known.quiet_until_ms + step.after_ms > now_ms:
            return Again(known.quiet_until_ms + step.after_ms)
        if now_ms < terms.until_ms + max(known.quiet_until_ms - due_ms, 0):
            return Again(now_ms + max(step.after_ms, _LOOK_MS))
        if not known.sought:
            return Again(now_ms)
        return Drop("no_message", f"{step.channel}: the message did not come", True)
    if known.progress == GONE:
        return Drop("gone", f"{step.channel}: the message expired, or another one replaced it", True)
    if step.unless and known.progress >= step.unless:
        return Drop("reached", f"{step.channel}: the user has {_HAS[known.progress]} it", True)
    if known.unwanted:
        return Drop("unwanted", f"{step.channel}: {known.unwanted}", True)
    if known.quiet_until_ms and not step.mandatory:
        return Again(known.quiet_until_ms + (0 if terms.seq else step.after_ms))
    return Go()
