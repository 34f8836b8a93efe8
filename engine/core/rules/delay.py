"""When a rule's notification is sent, and to whom a rule applies.

Delay: fixed, or by the user's level, and shorter for who has been active lately. `delay = "15m"`, or

    delay = { by = "$level", vip = "1h", normal = "2h", others = "24h", active_within = "24h", factor = 0.6 }

What must hold when the time has come is in `engine.core.policy.conditions`.

Roll-out: a rule applies to a share of the users, or to named tenants. The share is stable: who is in at 10 % is in at 20 %; and
drawn for each rule by itself, so that the same users are not the first to try everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from msgspec import Struct

from engine.core.model.placeholders import EventPath, Scope

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
    by: EventPath | None = None
    levels: Mapping[str, int] = {}
    active_within_ms: int = 0
    factor: float = 1.0

    def of(self, scope: Scope, now_ms: int) -> int:
        """Milliseconds from `now_ms`. Of the scope's names `$active_ms` is when the user was last active, 0 for never."""
        level = next((str(value) for value in (self.by.values(scope) if self.by else ())), "")
        delay_ms = self.levels.get(level, self.fixed_ms)
        active_ms = (scope.names.get("$active_ms") or 0) if self.active_within_ms else 0
        if active_ms and now_ms - active_ms < self.active_within_ms:
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


def level_names(table: Mapping[str, Any]) -> list[str]:
    """The levels of a delay table as it is written: every member that is not a word of the language."""
    return [name for name in table if name not in _DELAY_WORDS]
