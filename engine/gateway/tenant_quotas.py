"""The quotas of tenants at one edge: which request of a tenant is refused, so that others who share the engine are not slowed down.

A refusal is a 429 whose member `quota` is the name of the setting. A quota of 0 is none.

Requests: a token bucket per tenant and edge. The limit is of one edge, as those of connections are: it protects the event loop of this
process, a publisher keeps to one edge for as long as its connection lasts, and edges need not agree about anything. Handshakes have
limits of their own (`engine.core.edge.connection_admission`), and operators have none.

What a tenant has in storage is counted there (`engine.store.tenant_usage`), of the whole engine. An edge asks once a second which tenants
have used a quota up, and looks a tenant up among them. So a quota is exceeded by what arrives within a second and a checkpoint, and costs
a request nothing while it is not used up. While storage does not answer, the last answer holds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from engine.auth.tokens import OPERATOR, Principal
from engine.config import Config
from engine.core.edge.token_bucket import TokenBucket, TokenBuckets
from engine.core.model.period import until_next
from engine.errors import StorageUnavailable
from engine.http.problems import over_quota, whole_seconds
from engine.store.tenant_usage import TenantUsage, UsageFigure

log = logging.getLogger(__name__)

BURST_S: Final = 2
"""A tenant's bucket holds the requests of so many seconds: programs send in bursts, and batches of a second are common."""

_TENANTS_MAX: Final = 10_000
"""Tenants with a bucket, some 3 MB: those who have sent a request in the last `BURST_S`."""


_ASK_S: Final = 1.0
_SETTINGS: Final[Mapping[UsageFigure, str]] = {
    "users": "tenant_users_max",  # shards refuse: only they know who is new
    "stored_bytes": "tenant_stored_bytes_max",
    "topics": "tenant_topics_max",
    "signal_names": "tenant_signal_names_max",
}
_FULL_RETRY_S: Final = 10  # messages are acknowledged, subscriptions ended


def quotas_of(config: Config) -> dict[str, int]:
    """The quotas that are in force, by the names of their settings."""
    settings = ("tenant_requests_per_s", *_SETTINGS.values())
    return {setting: limit for setting in settings if (limit := getattr(config, setting))}


class TenantQuotas:
    """The quotas of one edge.

    Args:
        clock: milliseconds that never step.
    """

    def __init__(self, config: Config, clock: Callable[[], int]) -> None:
        self._config = config
        self._clock = clock
        self._limits = {figure: limit for figure, setting in _SETTINGS.items() if (limit := getattr(config, setting))}
        self._full: Mapping[UsageFigure, frozenset[str]] = {}
        self._usage: TenantUsage
        rate = config.tenant_requests_per_s
        self._requests = TokenBuckets(lambda now_ms: TokenBucket(rate, rate * BURST_S, now_ms), _TENANTS_MAX) if rate else None

    def check_request(self, principal: Principal) -> None:
        """Count a request of the bearer's tenant.

        Raises:
            Problem: 429, the tenant sends more than `tenant_requests_per_s`.
        """
        if self._requests is None or OPERATOR in principal.scopes:
            return
        now_ms = self._clock()
        bucket = self._requests.of(principal.tenant, now_ms)
        if not bucket.take(now_ms):
            rate = self._config.tenant_requests_per_s
            detail = f"this tenant sends more than {rate} requests a second to this edge"
            raise over_quota("tenant_requests_per_s", detail, whole_seconds(bucket.wait_ms(now_ms)))

    def is_full(self, figure: UsageFigure, tenant: str) -> bool:
        """Whether the tenant had used this quota up when storage was last asked."""
        return tenant in self._full.get(figure, ())

    def check_bytes(self, tenant: str) -> None:
        """Raise Problem, 429, when the tenant has stored as many bytes as it may."""
        if self._full and self.is_full("stored_bytes", tenant):
            detail = (
                f"this tenant has {self._config.tenant_stored_bytes_max} bytes in storage, as many as it may, until messages are handled"
            )
            raise over_quota("tenant_stored_bytes_max", detail, _FULL_RETRY_S)

    async def check_topics(self, tenant: str, topics: Sequence[str]) -> None:
        """Check that the tenant may have these topics: while it is full, those that some user of it is subscribed to already.

        Raises:
            Problem: 429, one would be new.
            StorageUnavailable: storage does not tell.
        """
        new = set(topics) - await self._usage.known_topics(tenant, topics)
        if new:
            detail = f"this tenant has {self._config.tenant_topics_max} topics, as many as it may: {min(new)} would be a new one"
            raise over_quota("tenant_topics_max", detail, _FULL_RETRY_S)

    async def read(self) -> None:
        """Ask storage who is full."""
        try:
            self._full = await self._usage.full(self._limits)
        except StorageUnavailable as error:
            log.info("%s", error)

    async def follow(self, usage: TenantUsage) -> None:
        """Ask for ever, if there is a quota to ask about. Called once, before the edge serves."""
        self._usage = usage
        while self._limits:
            await self.read()
            await asyncio.sleep(until_next(time.monotonic(), _ASK_S))
