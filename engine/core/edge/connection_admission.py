"""Which connections may begin at an edge now, and when a refused client should ask again.

A connection costs an edge and a shard some 300 us of CPU, a message a few tens. When thousands of clients come back at once, those
that stayed are protected by admitting `rate_per_s` of them, and by giving every other one a time of its own. An edge that has nobody to
protect admits `idle_rate_per_s`.

    refuse_unread --the edge's bucket is empty--> refused until the next free slot: slots follow each other at `rate_per_s`
                  --else------------------------> the request is read, its token verified, and then
    admit         --the user's bucket is empty--> refused until it has a token
                  --the edge's bucket is empty--> refused until the next free slot
                  --else------------------------> admitted

Buckets. The edge's holds `burst` tokens. A user's holds `user_burst`, so one who reconnects in a loop is refused before the others'
tokens are touched. A bucket that is full again is as good as none and is forgotten: only users of the last `user_burst / user_rate_per_s`
seconds have one, and `_USERS_MAX` at most.

Warm-up. A new process is slow: no token is verified yet, no page read, no code path warm. As in Guava's SmoothWarmingUp, the rate
rises linearly from a third of it to all of it within `warmup_ms`; as in Envoy's slow start only after the start, not after a pause. The
bucket is given a time of its own for this, which runs at a third of the speed first; it begins with a third of its burst.

Idle. An edge is idle while it has sent nobody a message and shards nothing but new connections for `_IDLE_MS`, and what waits at it takes
no more than `_CALM_MS`: the event loop, whose lag is counted, is on time. The owner says so in `look`. The next look may see otherwise:
those who were given a time by the higher rate are then refused again, with later ones.

Unread. Most of a crowd gets the same answer whoever it is, so it is given before a token is verified: that costs a third. A request without
a valid token takes a slot then, as any, though never a token of the bucket: a flood of them makes those who are refused meanwhile wait
longer, up to `connections_retry_s_max`, and nobody who comes later.

Slots. With one fixed Retry-After all refused clients would come back together, again and again. A slot reserves nothing: its client may
find the bucket empty and gets another one. Slots lie within `connections_retry_s_max`; when they are used up, they are given again from
its half on.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

from msgspec import Struct

from engine.config import Config
from engine.core.edge.token_bucket import TokenBucket, TokenBuckets

_COLD: Final = 1 / 3
"""The part of the rate and of the burst that a new edge has: Guava's cold factor is 3."""

_IDLE_MS: Final = 1000
_CALM_MS: Final = 20.0
_LOOK_MS: Final = 200.0  # between two looks; after a longer pause the time before counts as little

_USERS_MAX: Final = 50_000
"""Users with a bucket at most, some 15 MB; beyond it the one that asked least recently is forgotten."""


class NotAdmitted(Struct, frozen=True):
    """The connection may not begin: its client should ask again after `retry_ms`. `by_user`: it is this user who connects too often."""

    retry_ms: float
    by_user: bool


class ConnectionAdmission:
    """The connection admission of one edge; see the module. The edge starts at `now_ms`."""

    def __init__(self, config: Config, now_ms: float) -> None:
        self._warmup_ms = config.connections_warmup_ms
        self._retry_max_ms = config.connections_retry_s_max * 1000
        self._per_s = config.connections_per_s
        self._started_ms = now_ms
        burst = self._per_s * config.connections_burst_s
        self._bucket = TokenBucket(self._per_s, burst, 0.0, burst * _COLD)
        user_per_s, user_burst = config.connections_of_user_per_s, config.connections_of_user_burst
        self._users = TokenBuckets(lambda now_ms: TokenBucket(user_per_s, user_burst, now_ms), _USERS_MAX)
        self._next_slot_ms = now_ms  # of the client that is refused next
        self._extra_per_s = max(config.connections_idle_per_s - self._per_s, 0)  # while it is idle
        self._served = 0
        self._served_ms = self._looked_ms = now_ms
        self._idle = False

    def look(self, served: int, delay_ms: float, now_ms: float) -> None:
        """See whether the edge is idle; to be called some ten times a second while connections begin.

        Args:
            served: messages that the edge has sent to clients, and requests to shards and schedulers, so far.
            delay_ms: how long what waits at the edge takes.
        """
        if served != self._served:
            self._served, self._served_ms = served, now_ms
        warm = now_ms - self._started_ms >= self._warmup_ms
        self._idle = warm and delay_ms <= _CALM_MS and now_ms - self._served_ms >= _IDLE_MS
        if self._idle:
            self._bucket.put(self._extra_per_s * min(now_ms - self._looked_ms, _LOOK_MS) / 1000)
        self._looked_ms = now_ms

    def admit(self, user: str, now_ms: float) -> NotAdmitted | None:
        """Whether a connection of this user may begin: None when it may."""
        bucket = self._users.of(user, now_ms)
        if not bucket.take(now_ms):
            return NotAdmitted(bucket.wait_ms(now_ms), by_user=True)
        warm_ms = self._warm_ms(now_ms)
        return None if self._bucket.take(warm_ms) else self._until_next_slot(warm_ms, now_ms)

    def refuse_unread(self, now_ms: float) -> NotAdmitted | None:
        """What `admit` would answer to a user whose bucket is not empty, without knowing the user; takes no token."""
        warm_ms = self._warm_ms(now_ms)
        return self._until_next_slot(warm_ms, now_ms) if self._bucket.wait_ms(warm_ms) else None

    def _until_next_slot(self, warm_ms: float, now_ms: float) -> NotAdmitted:
        """The refusal of a client now, with the next slot."""
        free_ms = self._cold_ms(warm_ms + self._bucket.wait_ms(warm_ms))
        slot_ms = max(self._next_slot_ms, free_ms)
        if slot_ms - now_ms > self._retry_max_ms:
            slot_ms = max(now_ms + self._retry_max_ms / 2, free_ms)
        self._next_slot_ms = slot_ms + 1000 / (self._per_s + self._extra_per_s * self._idle)
        return NotAdmitted(slot_ms - now_ms, by_user=False)

    @property
    def users(self) -> int:
        """Users with a bucket."""
        return len(self._users)

    def _warm_ms(self, now_ms: float) -> float:
        """The bucket's own time: the integral of the part of the rate that applies, from the start."""
        since_ms, warmup_ms = now_ms - self._started_ms, self._warmup_ms
        if since_ms >= warmup_ms:
            return since_ms - warmup_ms * (1 - _COLD) / 2
        return since_ms * _COLD + since_ms * since_ms * (1 - _COLD) / (2 * warmup_ms)

    def _cold_ms(self, warm_ms: float) -> float:
        """The time at which the bucket's own time is `warm_ms`: the inverse of `_warm_ms`."""
        warmup_ms = self._warmup_ms
        if warm_ms >= warmup_ms * (1 + _COLD) / 2:
            return self._started_ms + warm_ms + warmup_ms * (1 - _COLD) / 2
        slope = (1 - _COLD) / warmup_ms
        return self._started_ms + (sqrt(_COLD * _COLD + 2 * slope * warm_ms) - _COLD) / slope
