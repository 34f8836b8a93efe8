"""The rules of tenants' own on an edge: one `RulesEndpoint` for each tenant that has some, beside the operator's.

    index in Redis (tenant -> stamp) --read every rules_poll_ms--> follower of each tenant whose stamp is another one

Versions, staging, dry runs and rolling back are those of `engine.features.rules.rules_endpoint`, of keys of the tenant. What one tenant
stores is in force for its events alone; one whose rules cannot be used here has 503 for its events, and no other tenant has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import msgspec

from engine.config import Config
from engine.features.rules.core.own_rules import OwnLimits, parse_own
from engine.features.rules.core.rules import Rules
from engine.features.rules.rule_book import check_by_config
from engine.features.rules.rules_endpoint import RulesEndpoint
from engine.features.rules.rules_follower import follow
from engine.features.rules.rules_store import RulesStore
from engine.http.problems import not_found

StoreOf = Callable[[str], RulesStore]
"""The versions of a tenant."""

Stamps = Callable[[], Awaitable[Mapping[str, str]]]
"""The stamp of each tenant that has stored something. Raises StorageUnavailable."""


def parse_own_version(tenant: str, text: str, version: int, config: Config) -> Rules:
    """As `engine.features.rules.rule_book.parse_version`, within the operator's limits for tenants. Raises RulesError."""
    source = f"version {version}" if version else "rules"
    limits = OwnLimits(config.tenant_rules_max, config.tenant_channels, config.tenant_hosts, config.tenant_cap_max)
    rules = parse_own(text, source, tenant, limits)
    check_by_config(rules, config, source)
    return rules


class TenantRules:
    """The rules of all tenants on one edge. `operator`: the operator's."""

    def __init__(self, config: Config, operator: RulesEndpoint, store_of: StoreOf, stamps: Stamps) -> None:
        self._config = msgspec.structs.replace(config, rules_path="", ray_events="")  # which are the operator's
        self._operator = operator
        self._store_of = store_of
        self._stamps = stamps
        self._followed: dict[str, str] = {}
        self._endpoints: dict[str, RulesEndpoint] = {}

    def of(self, tenant: str) -> RulesEndpoint:
        """The rules of a tenant. Raises Problem: 404, the operator allows none."""
        if not self._config.tenant_rules_max:
            raise not_found("tenants have no rules of their own here: the setting tenant_rules_max is 0")
        if tenant not in self._endpoints:
            made = self._operator.for_tenant(tenant, self._config, self._store_of(tenant), partial(parse_own_version, tenant))
            self._endpoints[tenant] = made
            self._operator.rule_book.own[tenant] = made.rule_book
        return self._endpoints[tenant]

    async def catch_up(self) -> None:
        """Put in force what storage says now. Raises StorageUnavailable."""
        if not self._config.tenant_rules_max:
            return
        stamps = await self._stamps()
        for tenant in stamps.keys() | self._endpoints.keys():
            stamp = stamps.get(tenant, "")
            if self._followed.get(tenant) != stamp:
                await self.of(tenant).follower.catch_up()
                self._followed[tenant] = stamp

    async def run(self) -> None:
        """Follow storage until cancelled."""
        await follow(self.catch_up, self._config.rules_poll_ms)
