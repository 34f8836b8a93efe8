"""The one judgement of every notification: deliver, defer, put into the digest, or suppress; each with its reasons.

Pure: what is known of the message, the user's profile, what the user got lately, and the time, give a verdict. The same call
answers a dry run ("what would happen, and why"), for it changes nothing; `record` is what changes the counters, once the
message is certain. The order of the questions, the first one that decides ends them:

    1  mute         the user has muted the type or the target -> SUPPRESS. Not for a category that is `mandatory`
    2  interaction  the user has been active since the moment the message names -> SUPPRESS
    3  bypass       priority high, or a mandatory category -> DELIVER, whatever comes below
    4  digest       the user wants this type in the digest -> DIGEST
    5  quiet hours  in the user's zone -> DEFER until they end, then it is judged again: what comes below is judged at delivery
    6  same type    the user got this type less than `same_type_ms` ago -> SUPPRESS
    7  cap          the user got `cap` of this category in the last `cap_ms`, a rolling window -> SUPPRESS

A wish of the user stands above an urgency of the sender, and an urgency above what protects from too much.

Counters are bounded: per category its last `cap` times, and the last time of at most `types_max` types. With more types than that,
the one not sent for longest is forgotten, and may come again early. A type or category nobody limits is not counted at all.
Two clocks that disagree: a time in the future counts like now.

Recovery. `record` is a function of the journalled message alone (its category, type and time), so replay gives the same counters; a
page has them as they are. Recording a message twice would count it twice: replay skips numbers the page covers, as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from enum import IntEnum
from typing import Final

import msgspec
from msgspec import Struct

from engine.core.batch import HIGH
from engine.core.profile import Profile, matches
from engine.core.quiet import quiet_until

DAY_MS: Final = 86_400_000
CAP_MAX: Final = 100


class Decision(IntEnum):
    """What becomes of a notification."""

    DELIVER = 0
    DEFER = 1
    DIGEST = 2
    SUPPRESS = 3


class Category(Struct, frozen=True, kw_only=True):
    """What a category of notifications may do to a user. The defaults limit nothing.

    Args:
        cap: at most so many per user within `cap_ms`, up to CAP_MAX; 0 for no cap.
        cap_ms: the rolling window of the cap.
        same_type_ms: the same type comes at most once in this time; 0 for always.
        quiet: do quiet hours hold it back.
        mandatory: neither mutes nor anything else hold it back: what a user must be told.
    """

    cap: int = 0
    cap_ms: int = DAY_MS
    same_type_ms: int = 0
    quiet: bool = True
    mandatory: bool = False


UNLIMITED: Final = Category()

TOUCH: Final = Category(cap=3, cap_ms=DAY_MS, same_type_ms=3 * DAY_MS)
"""For messages meant to bring a user back: three a day, each type once in three days."""


class Facts(Struct, frozen=True, kw_only=True):
    """What the judgement has to know of a message.

    Args:
        type: its event type.
        category: by which its limits are found; one that is not defined has none.
        priority: HIGH, NORMAL or LOW.
        targets: how its target can be muted, see `engine.core.profile.target_names`.
        unless_active_since_ms: suppress it when the user has been active after this; 0 for no such condition.
    """

    type: str
    category: str = ""
    priority: int = 1
    targets: tuple[str, ...] = ()
    unless_active_since_ms: int = 0


class Counters(Struct, array_like=True):
    """What a user got lately, as far as somebody limits it, and when the user was last active. Part of the user's page."""

    sent: dict[str, list[int]] = {}  # category -> times, ascending, at most its cap
    last: dict[str, int] = {}  # type -> time, the longest ago first
    active_ms: int = 0


class Reason(Struct, frozen=True):
    """Why: a word for programs and a sentence for people."""

    code: str
    detail: str


class Verdict(Struct, frozen=True):
    """The decision. `until_ms` is 0 unless it is DEFER; the last reason is the one that decided."""

    decision: Decision
    reasons: tuple[Reason, ...]
    until_ms: int = 0


def judge(facts: Facts, profile: Profile, zone: tzinfo, counters: Counters, categories: Mapping[str, Category], now_ms: int) -> Verdict:
    """What is to become of a message, now. Changes nothing.

    Args:
        zone: of the profile.
        categories: by name.
    """
    category = categories.get(facts.category, UNLIMITED)
    wish = None if category.mandatory else _muted(facts, profile)
    if wish is None:
        wish = _interacted(facts, counters)
    if wish is not None:
        return Verdict(Decision.SUPPRESS, (wish,))
    if category.mandatory:
        return Verdict(Decision.DELIVER, (Reason("mandatory", f"category {facts.category} is told to everyone"),))
    if facts.priority == HIGH:
        return Verdict(Decision.DELIVER, (Reason("priority", "high priority waits for nothing and counts against no cap"),))
    pattern = matches(profile.digest_types, facts.type)
    if pattern:
        return Verdict(Decision.DIGEST, (Reason("digest", f"the user wants {pattern} in the digest"),))
    until_ms = quiet_until(profile.quiet, zone, now_ms) if category.quiet and profile.quiet else 0
    if until_ms:
        return Verdict(
            Decision.DEFER, (Reason("quiet_hours", f"quiet hours in {profile.zone} for another {_span(until_ms - now_ms)}"),), until_ms
        )
    limit = _same_type(facts, category, counters, now_ms) or _capped(facts, category, counters, now_ms)
    if limit is not None:
        return Verdict(Decision.SUPPRESS, (limit,))
    return Verdict(Decision.DELIVER, (Reason("allowed", "nothing speaks against it"),))


def record(counters: Counters, facts: Facts, categories: Mapping[str, Category], now_ms: int, types_max: int) -> None:
    """A message was delivered: count it, where somebody limits it. High priority and mandatory messages count against nobody."""
    category = categories.get(facts.category, UNLIMITED)
    if facts.priority == HIGH or category.mandatory:
        return
    if category.cap:
        times = counters.sent.setdefault(facts.category, [])
        times.append(max(now_ms, times[-1]) if times else now_ms)
        del times[: -category.cap]
    if category.same_type_ms:
        counters.last.pop(facts.type, None)
        counters.last[facts.type] = now_ms
        while len(counters.last) > types_max:
            del counters.last[next(iter(counters.last))]


def forget_old(counters: Counters, categories: Mapping[str, Category], now_ms: int) -> None:
    """Drop what no limit looks at any more, so that a page of a quiet user is small. Changes no verdict."""
    for name in list(counters.sent):
        category = categories.get(name, UNLIMITED)
        times = [at_ms for at_ms in counters.sent[name] if category.cap and at_ms > now_ms - category.cap_ms]
        if times:
            counters.sent[name] = times
        else:
            del counters.sent[name]
    longest_ms = max((category.same_type_ms for category in categories.values()), default=0)
    for type_ in [name for name, at_ms in counters.last.items() if at_ms <= now_ms - longest_ms]:
        del counters.last[type_]


def _muted(facts: Facts, profile: Profile) -> Reason | None:
    pattern = matches(profile.muted_types, facts.type)
    if pattern:
        return Reason("muted_type", f"the user has muted {pattern}")
    target = next((target for target in facts.targets if target in profile.muted_targets), None)
    return None if target is None else Reason("muted_target", f"the user has muted {target}")


def _interacted(facts: Facts, counters: Counters) -> Reason | None:
    if not facts.unless_active_since_ms or counters.active_ms <= facts.unless_active_since_ms:
        return None
    return Reason("interacted", "the user has been active since")


def _same_type(facts: Facts, category: Category, counters: Counters, now_ms: int) -> Reason | None:
    last_ms = counters.last.get(facts.type)
    if not category.same_type_ms or last_ms is None or last_ms <= now_ms - category.same_type_ms:
        return None
    return Reason(
        "same_type", f"the user got {facts.type} {_span(now_ms - last_ms)} ago; once per {_span(category.same_type_ms)} is allowed"
    )


def _capped(facts: Facts, category: Category, counters: Counters, now_ms: int) -> Reason | None:
    if not category.cap:
        return None
    recent = _count_after(counters.sent.get(facts.category, ()), now_ms - category.cap_ms)
    if recent < category.cap:
        return None
    return Reason("cap", f"the user got {recent} of {facts.category} in {_span(category.cap_ms)}; {category.cap} are allowed")


def _count_after(times: Sequence[int], after_ms: int) -> int:
    return sum(at_ms > after_ms for at_ms in times)


def _span(duration_ms: int) -> str:
    """A duration for people: its two largest units."""
    seconds = max(duration_ms, 0) // 1000
    parts = [(seconds // 86_400, "d"), (seconds % 86_400 // 3600, "h"), (seconds % 3600 // 60, "min"), (seconds % 60, "s")]
    said = [f"{number} {unit}" for number, unit in parts if number]
    return " ".join(said[:2]) or "0 s"


_counters: Final = msgspec.msgpack.Decoder(Counters)


def decode_counters(blob: bytes) -> Counters:
    """Counters as a page keeps them. Raises what `engine.core.batch.UNREADABLE` lists when they are corrupt."""
    return _counters.decode(blob)
