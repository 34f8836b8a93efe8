"""When a rule's notification is sent, and to whom a rule applies.

Delay: fixed, or by the user's level, and shorter for recently active users. `delay = "15m"`, or

    delay = { by = "$level", vip = "1h", normal = "2h", others = "24h", active_within = "24h", factor = 0.6 }

Conditions that are evaluated when the notification is due: `engine.features.policy.core.timer_conditions`.

Roll-out: a rule applies to a share of the users, or to named tenants. The share is stable (a user included at 10 % is included at 20 %)
and independent per rule, so that not the same users are the first for every rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from msgspec import Struct

from engine.core.model.placeholders import EventPath, Scope

_SHARES: Final = 1 << 32
_DELAY_KEYWORDS: Final = ("by", "others", "active_within", "factor")


class Delay(Struct, frozen=True):
    """The time between an event and its notification.

    Args:
        fixed_ms: for users whose level is not in `levels`.
        by: the path of the level.
        levels: milliseconds by level.
        active_within_ms: users active within this time get `factor` of the delay; 0: nobody does.
        factor: above 0, at most 1.
    """

    fixed_ms: int = 0
    by: EventPath | None = None
    levels: Mapping[str, int] = {}
    active_within_ms: int = 0
    factor: float = 1.0

    def of(self, scope: Scope, now_ms: int) -> int:
        """The delay in milliseconds. `$active_ms` of the scope's names is when the user was last active, 0 for never."""
        level = next((str(value) for value in (self.by.values(scope) if self.by else ())), "")
        delay_ms = self.levels.get(level, self.fixed_ms)
        active_ms = (scope.names.get("$active_ms") or 0) if self.active_within_ms else 0
        if active_ms and now_ms - active_ms < self.active_within_ms:
            return round(delay_ms * self.factor)
        return delay_ms


class Rollout(Struct, frozen=True):
    """The users a rule applies to: those of named tenants, and a share of all others."""

    share: float = 1.0
    tenants: frozenset[str] = frozenset()

    def includes(self, rule: str, tenant: str, user: str) -> bool:
        """Does the rule of this name apply to this user?"""
        if self.share >= 1 or tenant in self.tenants:
            return True
        digest = blake2b(f"{rule}\n{tenant}:{user}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") < self.share * _SHARES


def level_names(table: Mapping[str, Any]) -> list[str]:
    """The levels in a delay table of a rules file: every key that is not a keyword."""
    return [name for name in table if name not in _DELAY_KEYWORDS]
