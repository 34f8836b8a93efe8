"""The rules in force: one version for everyone, or another one for a share of the users.

An event is handled by one `RulesInForce` throughout, so it never meets a mixture of before and after a change. While a version is staged,
both are applied to each event, and each user gets what their version makes of it. The share is stable (a user included at 10 % is included
at 20 %) and another one for each version, so that not the same users try every change. What has no user (topics, everyone) is of the
active version alone. Cancellations are of both: a timer may have been armed under either. What a timer was armed with stays, its conditions
too: shards go on recording what these refer to when its rules are in force no more.

Rules that come with a feature are beside these versions, for the tenant of the feature. For an event that a rule of a version in force
names, they do nothing but cancel: the version takes their place. A rule for `*` names no event.

The rules of a tenant's own are beside them too, with versions of their own; they notify at once only users whom no other rule does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from engine.features.rules.core.delay import Rollout
from engine.features.rules.core.rules import Plan, Rules, RulesOutcome, UserFacts
from engine.features.rules.core.versions import NOTHING_ASKED, AskedByRules


class AppliedRules(Struct, frozen=True):
    """What one version made of an event, for its users."""

    version: int
    rules: Rules
    outcome: RulesOutcome


class ShippedRules(Struct, frozen=True):
    """Rules that come with a feature, for one tenant."""

    rules: Rules
    tenant: str


class RulesInForce(Struct, frozen=True):
    """The versions in force, `share`, for how many of the users the staged one is, and what is beside them."""

    active: Rules
    version: int = 0
    staged: Rules | None = None
    staged_version: int = 0
    share: float = 0.0
    shipped: ShippedRules | None = None
    own: RulesInForce | None = None
    asked_before: AskedByRules = NOTHING_ASKED

    @property
    def events_asked(self) -> frozenset[str]:
        """The events that some condition refers to, see `Rules`; also one of rules before, whose timers may still wait."""
        asked = self.active.events_asked | self.asked_before.events
        return asked if self.staged is None else asked | self.staged.events_asked

    @property
    def activity_asked(self) -> bool:
        """Whether some condition refers to a user's last activity, likewise."""
        return self.active.activity_asked or self.asked_before.activity or (self.staged is not None and self.staged.activity_asked)

    def apply(
        self, event: str, payload: Mapping[str, Any], delivery: str, *, tenant: str, now_ms: int, user_facts: UserFacts
    ) -> list[AppliedRules]:
        """Apply the rules to one event; arguments as of `Rules.apply`."""
        return [
            AppliedRules(
                version,
                rules,
                plan.outcome([rules.make(one, tenant=tenant, now_ms=now_ms, user_facts=user_facts) for one in plan.planned]),
            )
            for version, rules, plan in self.plan(event, payload, delivery, tenant=tenant)
        ]

    def plan(self, event: str, payload: Mapping[str, Any], delivery: str, *, tenant: str) -> list[tuple[int, Rules, Plan]]:
        """What each version, by its number, is to make of one event for its users; arguments as of `Rules.apply`."""
        shipped = self.shipped
        plans = self._plan_versions(event, payload, delivery, tenant)
        if shipped is not None and shipped.tenant == tenant:
            plan = shipped.rules.plan(event, payload, delivery, tenant=tenant)
            if any(rules.names(event) for _, rules, _ in plans):
                plan = Plan([], [], [], plan.cancellations)
            plans.append((self.version, shipped.rules, plan))
        if self.own is not None:
            told = frozenset(one.user for _, _, plan in plans for one in plan.planned if one.user and one.rule.immediate)
            plans += self.own._plan_versions(event, payload, delivery, tenant, told)
        return plans

    def _plan_versions(
        self, event: str, payload: Mapping[str, Any], delivery: str, tenant: str, told: frozenset[str] = frozenset()
    ) -> list[tuple[int, Rules, Plan]]:
        """`told`: users whom other rules notify at once."""
        active, staged = self.active, self.staged
        if staged is None:
            return [(self.version, active, active.plan(event, payload, delivery, tenant=tenant, told=told))]
        others = active.plan(event, payload, delivery, tenant=tenant, told=told, concerns=lambda user: not self.stages(tenant, user))
        tried = staged.plan(event, payload, delivery, tenant=tenant, told=told, concerns=lambda user: self.stages(tenant, user))
        return [(self.version, active, others), (self.staged_version, staged, tried)]

    def stages(self, tenant: str, user: str) -> bool:
        """Whether the staged version is in force for a user."""
        return bool(user) and Rollout(self.share).includes(f"version {self.staged_version}", tenant, user)
