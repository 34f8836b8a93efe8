"""The contact policy: decides for every notification whether to deliver, defer, digest or suppress it, or to put it into the inbox only,
and for which reasons.

Pure: a verdict follows from the message, the user's profile, the counters of what the user was sent lately, and the time. `evaluate`
changes nothing, so it answers dry runs too; `record` changes the counters, once the message is committed. The checks, in order; the
first that decides ends them:

    1  mute         the user does not want the type, the target or the category -> SUPPRESS. Not for a category that is `mandatory`
    2  interaction  the user has been active since the moment the message names -> SUPPRESS
    3  bypass       priority high, or a mandatory category -> DELIVER, without the checks below
    4  choice       the user wants the type or the category in the digest -> DIGEST, or in the inbox only -> INBOX; one that is not to be
                    retained -> SUPPRESS; where no inbox keeps messages of the type or category, the choice is as ON. So is the digest
                    for what would open one and expire before its end, and for a question: it has a deadline, and a summary has no buttons
    5  quiet hours  of the category, else of the user -> DEFER until they end, then `evaluate` again: the checks below are made at delivery
    6  same type    the user got this type less than `same_type_ms` ago -> SUPPRESS
    7  cap          the user got `cap` of this category in the last `cap_ms`, a rolling window -> SUPPRESS
    8  total        the user got `total_cap` of all categories that have one in the last `total_ms`, likewise -> SUPPRESS

What goes into the inbox only is not sent to the user, so it waits for no quiet hours and counts against no cap. A broadcast has no number
in quiet hours, whatever is wanted of it, and enters the inbox when they end (`engine.core.commit.broadcast_step`).

A preference of the user takes precedence over the urgency of a message, and urgency over caps.

What a user wants of a message (`chosen`), the first that is there:

    off for the type or the target, off for the category: whoever turned a category off gets nothing of it, whatever else they chose
    the choice for the type (of several entries, the most specific one)
    the choice for the category
    the default of the category, which the message carries

A choice that the category does not leave to the user (`Category.user_may`) is none. It is compared when a message is decided, so what the
application no longer allows has no effect from then on, also where it was chosen before.

Counters are bounded: per category its last `cap` times, and the last time of a type, at most `counted_max` of each. With more than that,
the one not sent for longest is dropped, and may be sent again early. A type or category without limits is not counted at all.
When clocks disagree, a time in the future counts like now. Limits come with each message; what was counted under one limit is
kept for as long as that looked back, so a limit that is made longer counts fully only after that time.

Recovery. `record` is a function of the journalled message alone (its category, type and time), so replay gives the same counters; a
page has them as they are. Recording a message twice would count it twice: replay skips numbers the page covers, as everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from enum import IntEnum
from typing import Any, Final

from msgspec import Struct

from engine.core.model.category import DIGEST, INBOX, OFF, ON, Category
from engine.core.model.constants import HIGH
from engine.core.model.step import ChannelStep
from engine.core.policy.profile import NO_PROFILE, UNCHOSEN, Profile
from engine.core.policy.user_state import Counters, Recent
from engine.features.policy.core.choices import channel_choice, type_choice
from engine.features.policy.core.local_times import quiet_until


class Decision(IntEnum):
    """The outcome for a notification."""

    DELIVER = 0
    DEFER = 1
    DIGEST = 2
    SUPPRESS = 3
    INBOX = 4


UNLIMITED: Final = Category()

TOTAL: Final = "*"
"""In place of a category's name, what is counted of all that have a `total_cap`; no category can have this name."""


class Facts(Struct, frozen=True, kw_only=True):
    """The properties of a message that the policy depends on.

    Args:
        type: its event type.
        category: the name under which it is counted.
        limits: of that category.
        priority: HIGH, NORMAL or LOW.
        targets: how its target can be muted, see `engine.features.policy.core.choices.target_names`.
        unless_active_since_ms: suppress it when the user has been active after this; 0 for no such condition.
        retain: whether it is kept for a user without a connection, and so may be in the inbox.
        asks: whether it is a question.
    """

    type: str
    category: str = ""
    limits: Category = UNLIMITED
    priority: int = 1
    targets: tuple[str, ...] = ()
    unless_active_since_ms: int = 0
    retain: bool = True
    asks: bool = False


NONE_YET: Final = Counters()
"""The counters of a user without any. Never changed."""


class Reason(Struct, frozen=True):
    """Why: a word for programs and a sentence for people."""

    code: str
    detail: str


class Verdict(Struct, frozen=True):
    """The decision. `until_ms` is 0 unless it is DEFER; the last reason is the one that decided."""

    decision: Decision
    reasons: tuple[Reason, ...]
    until_ms: int = 0


def evaluate(
    facts: Facts,
    profile: Profile,
    zone: tzinfo,
    counters: Counters,
    now_ms: int,
    active_ms: int = 0,
    *,
    digest: bool = True,
    inbox: bool = True,
) -> Verdict:
    """Decide about a message, now. Changes nothing.

    Args:
        active_ms: when the user was last active, 0 for never.
        digest, inbox: as of `wished`.
    """
    return wished(facts, profile, active_ms, digest=digest, inbox=inbox) or limited(facts, profile, zone, counters, now_ms)


def wished(facts: Facts, profile: Profile, active_ms: int, *, digest: bool = True, inbox: bool = True) -> Verdict | None:
    """Checks 1 to 4, which do not depend on the time: the verdict of the one that decides, None when none does.

    Args:
        digest: whether it may go into the digest; the digest itself may not, nor what would open one and expire before its end.
        inbox: whether there is an inbox.
    """
    mandatory = facts.limits.mandatory
    choice, reason = (ON, None) if mandatory else chosen(facts, profile)
    suppressed = reason if choice == OFF else _interacted(facts, active_ms)
    if suppressed is not None:
        return Verdict(Decision.SUPPRESS, (suppressed,))
    if mandatory:
        return Verdict(Decision.DELIVER, (Reason("mandatory", f"category {facts.category} is told to everyone"),))
    if facts.priority == HIGH:
        return Verdict(Decision.DELIVER, (Reason("priority", "high priority waits for nothing and counts against no cap"),))
    if reason is not None and choice == INBOX:
        if not inbox or not facts.limits.inbox_ms:
            return None  # as on: the application keeps none of these, and the user does not want to miss them
        if facts.retain:
            return Verdict(Decision.INBOX, (reason,))
        return Verdict(Decision.SUPPRESS, (Reason(reason.code, f"{reason.detail}, which does not keep it"),))
    if reason is not None and digest and not facts.asks:
        return Verdict(Decision.DIGEST, (reason,))
    return None


def unwanted_by(facts: Facts, profile: Profile, step: ChannelStep, *, inbox: bool) -> str:
    """Why the user does not want to be told of a message by a step; "" when they do. `inbox`: whether there is an inbox.

    What is off is told by no channel. Else the choice for category and channel holds; without one, what is wanted in the inbox or the
    digest only is not told. A recipient that the operator named is no channel of the user.
    """
    wish = wished(facts, profile, 0, inbox=inbox)
    choice = ON if facts.limits.mandatory else UNCHOSEN if step.to else channel_choice(profile, facts.category, step.channel)
    if choice in (OFF, DIGEST):
        return f"the user wants {facts.category} {'not by' if choice == OFF else 'in the digest by'} {step.channel}"
    if wish is None or wish.decision is Decision.DELIVER or (choice == ON and wish.decision is not Decision.SUPPRESS):
        return ""
    return wish.reasons[-1].detail


def limited(facts: Facts, profile: Profile, zone: tzinfo, counters: Counters, now_ms: int) -> Verdict:
    """Checks 5 to 8, for a message that checks 1 to 4 do not decide."""
    quiet = profile.quiet_for(facts.category) if facts.limits.quiet else ()
    until_ms = quiet_until(quiet, zone, now_ms) if quiet else 0
    if until_ms:
        return Verdict(
            Decision.DEFER, (Reason("quiet_hours", f"quiet hours in {profile.zone} for another {spoken(until_ms - now_ms)}"),), until_ms
        )
    limit = _same_type(facts, counters, now_ms) or _capped(facts, counters, now_ms) or _total_capped(facts, counters, now_ms)
    if limit is not None:
        return Verdict(Decision.SUPPRESS, (limit,))
    return Verdict(Decision.DELIVER, (Reason("allowed", "nothing speaks against it"),))


def record(counters: Counters, facts: Facts, now_ms: int, counted_max: int) -> None:
    """Count a delivered message, where a limit applies. High priority and mandatory messages are not counted.

    Args:
        counted_max: categories, and types, that are counted; the one not sent for longest is dropped beyond it.
    """
    limits = facts.limits
    if facts.priority == HIGH or limits.mandatory or not limits.counts:
        return
    forget_old(counters, now_ms)
    if limits.cap:
        _count(counters, facts.category, limits.cap, limits.cap_ms, now_ms)
    if limits.total_cap:
        _count(counters, TOTAL, limits.total_cap, limits.total_ms, now_ms)
    _make_room(counters.sent, counted_max)
    if limits.same_type_ms:
        _, until_ms = counters.last.pop(facts.type, (0, 0))
        counters.last[facts.type] = (now_ms, max(until_ms, now_ms + limits.same_type_ms))
        _make_room(counters.last, counted_max)


def _count(counters: Counters, name: str, cap: int, span_ms: int, now_ms: int) -> None:
    recent = counters.sent.pop(name, None)
    times = [] if recent is None else recent.times
    times.append(max(now_ms, times[-1]) if times else now_ms)
    counters.sent[name] = Recent(span_ms, times[-cap:])


def _make_room(table: dict[str, Any], count_max: int) -> None:
    while len(table) > count_max:
        del table[next(iter(table))]


def forget_old(counters: Counters, now_ms: int) -> None:
    """Drop counters that no limit depends on any more, so that pages stay small. Changes no verdict."""
    for name, recent in list(counters.sent.items()):
        times = [at_ms for at_ms in recent.times if at_ms > now_ms - recent.span_ms]
        if times:
            counters.sent[name] = Recent(recent.span_ms, times)
        else:
            del counters.sent[name]
    for type_ in [name for name, (_, until_ms) in counters.last.items() if until_ms <= now_ms]:
        del counters.last[type_]


def chosen(facts: Facts, profile: Profile) -> tuple[int, Reason | None]:
    """What the user wants of a message that is not mandatory: ON, DIGEST, OFF or INBOX, and why; None with ON."""
    limits, category = facts.limits, facts.category
    if profile is NO_PROFILE and limits.default == ON:  # nearly always
        return ON, None
    of_type, entry = type_choice(profile, facts.type)
    of_category = profile.categories.get(category, UNCHOSEN)
    if limits.allows(OFF):
        if of_type == OFF:
            return OFF, Reason("muted_type", f"the user has muted {entry}")
        target = next((target for target in facts.targets if target in profile.muted_targets), None)
        if target is not None:
            return OFF, Reason("muted_target", f"the user has muted {target}")
        if of_category == OFF:
            return OFF, Reason("muted_category", f"the user has turned {category} off")
    for choice, name in ((of_type, entry), (of_category, category)):
        if choice in (ON, DIGEST, INBOX) and limits.allows(choice):
            return choice, _wish(choice, f"the user wants {name}")
    if limits.default == OFF:
        return OFF, Reason("not_chosen", f"{category} is for users who turn it on")
    return limits.default, _wish(limits.default, f"{category} is, for users who want nothing else,")


def _wish(choice: int, said: str) -> Reason | None:
    if choice == ON:
        return None
    return Reason("digest", f"{said} in the digest") if choice == DIGEST else Reason("inbox", f"{said} in the inbox only")


def muted(facts: Facts, profile: Profile) -> Reason | None:
    """Check 1: the reason why the user does not want it, else None."""
    choice, reason = chosen(facts, profile)
    return reason if choice == OFF else None


def _interacted(facts: Facts, active_ms: int) -> Reason | None:
    if not facts.unless_active_since_ms or active_ms <= facts.unless_active_since_ms:
        return None
    return Reason("interacted", "the user has been active since")


def _same_type(facts: Facts, counters: Counters, now_ms: int) -> Reason | None:
    same_type_ms = facts.limits.same_type_ms
    last_ms, until_ms = counters.last.get(facts.type, (0, 0))
    if not same_type_ms or min(until_ms, last_ms + same_type_ms) <= now_ms:
        return None
    return Reason("same_type", f"the user got {facts.type} {spoken(now_ms - last_ms)} ago; once per {spoken(same_type_ms)} is allowed")


def _capped(facts: Facts, counters: Counters, now_ms: int) -> Reason | None:
    limits = facts.limits
    recent = _recent(counters, facts.category, limits.cap, limits.cap_ms, now_ms)
    if not recent:
        return None
    return Reason("cap", f"the user got {recent} of {facts.category} in {spoken(limits.cap_ms)}; {limits.cap} are allowed")


def _total_capped(facts: Facts, counters: Counters, now_ms: int) -> Reason | None:
    limits = facts.limits
    recent = _recent(counters, TOTAL, limits.total_cap, limits.total_ms, now_ms)
    if not recent:
        return None
    return Reason("total", f"the user got {recent} of all categories in {spoken(limits.total_ms)}; {limits.total_cap} are allowed")


def _recent(counters: Counters, name: str, cap: int, span_ms: int, now_ms: int) -> int:
    """How many were delivered lately, where that is as many as allowed, else 0."""
    counted = counters.sent.get(name)
    if not cap or counted is None:
        return 0
    recent = _count_after(counted.times, now_ms - min(span_ms, counted.span_ms))
    return recent if recent >= cap else 0


def _count_after(times: Sequence[int], after_ms: int) -> int:
    return sum(at_ms > after_ms for at_ms in times)


def spoken(duration_ms: int) -> str:
    """A duration for people: its two largest units."""
    seconds = max(duration_ms, 0) // 1000
    parts = [(seconds // 86_400, "d"), (seconds % 86_400 // 3600, "h"), (seconds % 3600 // 60, "min"), (seconds % 60, "s")]
    said = [f"{number} {unit}" for number, unit in parts if number]
    return " ".join(said[:2]) or "0 s"
