"""The quotas of tenants at one edge: which request of a tenant is refused, so that others who share the engine are not slowed down.

A refusal is a 429 whose member `quota` is the name of the setting. A quota of 0 is none.

Requests: a token bucket per tenant and edge. The limit is of one edge, as those of connections are: it protects the event loop of this
process, a publisher keeps to one edge for as long as its connection lasts, and edges need not agree about anything. WebSocket handshakes
have limits of their own (`engine.core.edge.connection_admission`), and operators have none.

What a tenant has in storage is counted there (`engine.store.tenant_usage`), of the whole engine. An edge asks once a second which tenants
have used a quota up, and looks a tenant up among them. So a quota is exceeded by what arrives within a second and a checkpoint, and costs
a request nothing while it is not used up. While storage does not answer, the last answer holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from engine.auth.tokens import OPERATOR, Principal
from engine.config import Config
from engine.core.edge.token_bucket import TokenBucket, TokenBuckets
from engine.errors import StorageUnavailable
from engine.http.problems import over_quota, whole_seconds
from engine.store.tenant_usage import Figure

log = logging.getLogger(__name__)

BURST_S: Final = 2
"""A tenant's bucket holds the requests of so many seconds: programs send in bursts, and batches of a second are common."""

_TENANTS_MAX: Final = 10_000
"""Tenants with a bucket, some 3 MB: those who have sent a request in the last `BURST_S`."""


_ASK_S: Final = 1.0
_SETTINGS: Final[Mapping[Figure, str]] = {"signal_names": "tenant_signal_names_max"}


class UsageStore(Protocol):
    """The figures in storage, see `engine.store.tenant_usage`."""

    async def of(self, tenant: str) -> dict[Figure, int]: ...

    async def full(self, limits: Mapping[Figure, int]) -> dict[Figure, frozenset[str]]: ...


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
        self._full: Mapping[Figure, frozenset[str]] = {}
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

    def is_full(self, figure: Figure, tenant: str) -> bool:
        """Whether the tenant had used this quota up when storage was last asked."""
        return tenant in self._full.get(figure, ())

    async def read(self, usage: UsageStore) -> None:
        """Ask storage who is full."""
        try:
            self._full = await usage.full(self._limits)
        except StorageUnavailable as error:
            log.info("%s", error)

    async def follow(self, usage: UsageStore) -> None:
        """Ask for ever, if there is a quota to ask about."""
        while self._limits:
            await self.read(usage)
            await asyncio.sleep(_ASK_S)
