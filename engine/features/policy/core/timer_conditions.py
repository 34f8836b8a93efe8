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

from engine.core.inbox.inbox import ARCHIVED, READ, SEEN
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model import step as steps
from engine.core.model.step import StepTerms
from engine.core.policy.conditions import GO, Again, Conditions, Drop, Go

_LOOK_MS: Final = 60_000
"""At least so long between looks for the message of a step that was delayed, and moved or put off since."""

_HAS: Final = ("", "received", "seen", "read", "dealt with")
"""How far a user has come, in words, by code of `engine.core.model.step`."""


class Known(Struct, frozen=True):
    """What the shard has of a user at fire time: last activity, last time of each event that some rule refers to, groups.

    Of the message of a step: how far the user has come with it, why the user does not want it ("" when it is wanted), and when the user's
    quiet hours end, 0 outside of them. Of a delayed one: `put_off_ms`, when those end that it was due in. `sought`: storage was asked for
    the number of a message that the mailbox does not know.
    """

    active_ms: int = 0
    events: Mapping[str, int] = {}
    groups: Container[str] = ()
    progress: int = steps.PENDING
    unwanted: str = ""
    quiet_until_ms: int = 0
    put_off_ms: int = 0
    sought: bool = True


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
    return GO


def _at_step(terms: StepTerms, due_ms: int, known: Known, now_ms: int) -> Go | Drop | Again:
    """Decide about a step. A message that is put off to the end of quiet hours comes then: its steps count from there.

    Args:
        due_ms: when its message was due.
    """
    step = terms.step
    begins_ms = known.put_off_ms + step.after_ms
    if known.progress == steps.NEVER_CAME:
        if begins_ms > now_ms:
            return Again(begins_ms)
        if now_ms < terms.until_ms + max(known.put_off_ms - due_ms, 0):
            return Again(now_ms + max(step.after_ms, _LOOK_MS))
        if not known.sought:
            return Again(now_ms)
        return Drop("no_message", f"{step.channel}: the message did not come", True)
    if known.progress == steps.GONE:
        return Drop("gone", f"{step.channel}: the message expired, or another one replaced it", True)
    if step.unless and known.progress >= step.unless:
        return Drop("reached", f"{step.channel}: the user has {_HAS[known.progress]} it", True)
    if known.unwanted:
        return Drop("unwanted", f"{step.channel}: {known.unwanted}", True)
    wait_ms = max(begins_ms, 0 if step.mandatory else known.quiet_until_ms)
    return Again(wait_ms) if wait_ms > now_ms else GO


def progress(mailbox: Mailbox, terms: StepTerms, looked_up: int = 0) -> int:
    """How far the user has come with the message of a step. `looked_up`: the number that storage has for it, 0 for none.

    An acknowledged message that is not in the inbox has been dealt with: nothing is left of it that the user could read later.
    """
    seq = terms.seq or looked_up or mailbox.recent.get(terms.id, (0, b""))[0]
    if not 0 < seq <= mailbox.head:
        return steps.GONE if seq < 0 else steps.NEVER_CAME
    pending = mailbox.is_pending(seq)
    if mailbox.inbox is None or not mailbox.inbox.holds(seq):
        return steps.GONE if mailbox.gap_at(seq) else steps.PENDING if pending else steps.ACTED
    flags = mailbox.inbox.flags(seq)
    if flags & ARCHIVED:
        return steps.ACTED
    if flags & (READ | SEEN):
        return steps.READ if flags & READ else steps.SEEN
    return steps.PENDING if pending else steps.DELIVERED
