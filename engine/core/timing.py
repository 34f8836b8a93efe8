"""When a rule's notification is sent, and whether it still is when its time has come.

Delay: fixed, or by the user's level, and shorter for who has been active lately. `delay = "15m"`, or

    delay = { by = "$level", vip = "1h", normal = "2h", others = "24h", active_within = "24h", factor = 0.6 }

Conditions at fire time are judged by the shard that owns the user, from what it knows then: `at_fire` is that judgement, pure.
An inactivity rule is a timer that asks again: armed by an event, due `inactive` + `delay` after it; when it comes due and the user
has been active meanwhile it is moved behind that activity, so one timer follows a user however often they come.

Roll-out: a rule applies to a share of the users, or to named tenants. The share is stable: who is in at 10 % is in at 20 %; and
drawn for each rule by itself, so that the same users are not the first to try everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec
from msgspec import Struct

from engine.core.templates import Path, Scope

_SHARES: Final = 1 << 32
_DELAY_WORDS: Final = ("by", "others", "active_within", "factor")


class Delay(Struct, frozen=True):
    """How long after the event.

    Args:
        fixed_ms: for everyone whose level is not in `levels`.
        by: leads to the level.
        levels: milliseconds by level.
        active_within_ms: who has been active within this gets `factor` of it; 0 for nobody.
    """

    fixed_ms: int = 0
    by: Path | None = None
    levels: Mapping[str, int] = {}
    active_within_ms: int = 0
    factor: float = 1.0

    def of(self, scope: Scope, now_ms: int) -> int:
        """Milliseconds from `now_ms`. Of the scope's names `$active_ms` is when the user was last active, 0 for never."""
        level = next((str(value) for value in (self.by.values(scope) if self.by else ())), "")
        delay_ms = self.levels.get(level, self.fixed_ms)
        active_ms = scope.names.get("$active_ms") or 0
        if self.active_within_ms and active_ms and now_ms - active_ms < self.active_within_ms:
            return round(delay_ms * self.factor)
        return delay_ms


class Rollout(Struct, frozen=True):
    """To whom a rule applies: the users of named tenants, and a share of all others."""

    share: float = 1.0
    tenants: frozenset[str] = frozenset()

    def includes(self, rule: str, tenant: str, user: str) -> bool:
        """Does the rule of this name apply to this user?"""
        if self.share >= 1 or tenant in self.tenants:
            return True
        digest = blake2b(f"{rule}\n{tenant}:{user}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") < self.share * _SHARES


class Conditions(Struct, frozen=True, array_like=True):
    """What must hold when the time has come. Part of the timer.

    Args:
        since_ms: time of the event that armed it.
        unless_active: not when the user has been active since.
        unless_events: not when one of these events of the user has come since.
        member_of: only while the user is in this group; "" for no such condition.
        inactive_ms: only after so long without activity; then it is moved, not dropped. 0 for no such condition.
        delay_ms: after that.
    """

    since_ms: int
    unless_active: bool = False
    unless_events: tuple[str, ...] = ()
    member_of: str = ""
    inactive_ms: int = 0
    delay_ms: int = 0

    @property
    def any(self) -> bool:
        """Is there anything to judge?"""
        return self.unless_active or bool(self.unless_events) or bool(self.member_of) or self.inactive_ms > 0


class Known(Struct, frozen=True):
    """What the shard knows of a user at fire time: last activity, last time of each event that some rule asks for, groups."""

    active_ms: int = 0
    events: Mapping[str, int] = {}
    groups: frozenset[str] = frozenset()


class Go(Struct, frozen=True):
    """All conditions hold: send it."""


class Drop(Struct, frozen=True):
    """It is not sent: the timer has had its effect. `reason` is a word for programs, `detail` for people."""

    reason: str
    detail: str


class Again(Struct, frozen=True):
    """Not yet: the timer is moved to `at_ms`, and counts from `since_ms` then."""

    at_ms: int
    since_ms: int


def at_fire(conditions: Conditions, known: Known, now_ms: int) -> Go | Drop | Again:
    """Is what a rule armed sent, now that its time has come? Changes nothing; the same input gives the same answer."""
    if conditions.member_of and conditions.member_of not in known.groups:
        return Drop("not_member", f"the user is not in {conditions.member_of} any more")
    opposite = next((name for name in conditions.unless_events if known.events.get(name, 0) > conditions.since_ms), None)
    if opposite is not None:
        return Drop("opposite_event", f"{opposite} has come since")
    if conditions.unless_active and known.active_ms > conditions.since_ms:
        return Drop("interacted", "the user has been active since")
    due_ms = known.active_ms + conditions.inactive_ms + conditions.delay_ms
    if conditions.inactive_ms and due_ms > now_ms:
        return Again(due_ms, known.active_ms)
    return Go()


_conditions: Final = msgspec.msgpack.Decoder(Conditions)
encode_conditions: Final = msgspec.msgpack.Encoder().encode
"""Conditions as a timer keeps them."""


def decode_conditions(blob: bytes) -> Conditions:
    """Conditions as a timer keeps them. Raises what `engine.core.batch.UNREADABLE` lists when they are corrupt."""
    return _conditions.decode(blob)


def level_names(table: Mapping[str, Any]) -> list[str]:
    """The levels of a delay table as it is written: every member that is not a word of the language."""
    return [name for name in table if name not in _DELAY_WORDS]
