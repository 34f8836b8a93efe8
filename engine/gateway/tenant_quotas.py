"""The quotas of tenants at one edge: which request of a tenant is refused, so that others who share the engine are not slowed down.

A refusal is a 429 whose member `quota` is the name of the setting. A quota of 0 is none.

Requests: a token bucket per tenant and edge. The limit is of one edge, as those of connections are: it protects the event loop of this
process, a publisher keeps to one edge for as long as its connection lasts, and edges need not agree about anything. WebSocket handshakes
have limits of their own (`engine.core.edge.connection_admission`), and operators have none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from engine.auth.tokens import OPERATOR, Principal
from engine.config import Config
from engine.core.edge.token_bucket import TokenBucket, TokenBuckets
from engine.http.problems import over_quota, whole_seconds

BURST_S: Final = 2
"""A tenant's bucket holds the requests of so many seconds: programs send in bursts, and batches of a second are common."""

_TENANTS_MAX: Final = 10_000
"""Tenants with a bucket, some 3 MB: those who have sent a request in the last `BURST_S`."""


class TenantQuotas:
    """The quotas of one edge.

    Args:
        clock: milliseconds that never step.
    """

    def __init__(self, config: Config, clock: Callable[[], int]) -> None:
        self._config = config
        self._clock = clock
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
