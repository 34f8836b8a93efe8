"""A circuit breaker: requests to a peer that does not answer are refused at once, instead of after their time-out (Nygard 2007).

    state        what passes                          ends
    closed       everything                           open, when at least `calls_min` requests of the last `window_ms` have ended, and
                                                      `error_ratio` of them or more failed
    open         nothing                              half-open after `open_ms`, or at once when a new session with the peer works
    half-open    while fewer than `probes` requests   closed or open by the ratio of the failures, when `probes` requests have ended
                 are unanswered

A failure is a request that had no answer in time, or was lost with the session twice. Any answer is a success, also one that refuses: a
peer that answers "storage is away" refuses faster than a breaker could, and knows by itself when that is over. Counting it would make an
outage of a second last for `open_ms`, and let a publisher of a record in quarantine close a shard to everybody.

A request that is lost with the session once is sent again in the next session, and is no failure: a peer that crashes is back in a second
or two, and has answered everything by then. So is a session itself the best evidence that the peer is back, and `open_ms` bounds only how
long one is avoided whose session lives and which answers nothing. Failures of requests that began before the newest session, or before
the breaker last closed or let probes through, tell nothing about the peer since, and are not counted.

Times are milliseconds of a clock that never steps. Nothing here costs more than an addition per batch of answers: the state changes in
`look`.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Final

from msgspec import Struct

_BUCKETS: Final = 10
"""Parts of the window: the oldest leaves it at once."""


class BreakerState(IntEnum):
    """The state of a breaker, with the number by which metrics show it."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class BreakerLimits(Struct, frozen=True):
    """`error_ratio` is a share from 0 to 1; `calls_min` and `probes` count requests."""

    error_ratio: float
    window_ms: int
    calls_min: int
    open_ms: int
    probes: int


class CircuitBreaker:
    """The breaker of one peer. The owner reports how every request ends, and asks `admits` before it sends one."""

    def __init__(self, limits: BreakerLimits, now_ms: int) -> None:
        self.state = BreakerState.CLOSED
        self._limits = limits
        self._since_ms = now_ms  # failures of requests that began earlier do not count
        self._opened_ms = 0
        self._buckets: deque[tuple[int, int]] = deque(maxlen=_BUCKETS - 1)  # (successes, failures), complete ones
        self._bucket_ms = now_ms
        self._successes = self._failures = 0  # of the newest bucket; while half-open, of the probes

    def admits(self, unanswered: int) -> bool:
        """Whether a request passes while so many requests to this peer are unanswered."""
        if self.state is BreakerState.CLOSED:
            return True
        return self.state is BreakerState.HALF_OPEN and unanswered < self._limits.probes

    def succeeded(self, count: int) -> None:
        """So many requests were answered."""
        self._successes += count

    def failed(self, began_ms: int) -> None:
        """A request that began at this time had no answer in time."""
        if began_ms >= self._since_ms:
            self._failures += 1

    def lost(self, count: int, now_ms: int) -> None:
        """The peer's session ended, and with it for the second time `count` requests that will be sent again."""
        self._failures += count
        self.look(now_ms)

    def session_works(self, now_ms: int) -> None:
        """The peer has answered in a new session: let probes through."""
        self._begin(BreakerState.CLOSED if self.state is BreakerState.CLOSED else BreakerState.HALF_OPEN, now_ms)

    def look(self, now_ms: int) -> None:
        """Change the state if it is time to. To be called some ten times a second."""
        if self.state is BreakerState.OPEN:
            if now_ms - self._opened_ms >= self._limits.open_ms:
                self._begin(BreakerState.HALF_OPEN, now_ms)
        elif self.state is BreakerState.HALF_OPEN:
            if self._successes + self._failures >= self._limits.probes:
                self._judge(self._successes, self._failures, now_ms, passed=BreakerState.CLOSED)
        else:
            self._look_at_window(now_ms)

    def _look_at_window(self, now_ms: int) -> None:
        passed = (now_ms - self._bucket_ms) * _BUCKETS // self._limits.window_ms
        if passed > 0:
            self._buckets.append((self._successes, self._failures))
            self._buckets.extend([(0, 0)] * min(passed - 1, _BUCKETS))
            self._bucket_ms, self._successes, self._failures = now_ms, 0, 0
        successes, failures = map(sum, zip((self._successes, self._failures), *self._buckets, strict=True))
        if successes + failures >= self._limits.calls_min:
            self._judge(successes, failures, now_ms)

    def _judge(self, successes: int, failures: int, now_ms: int, passed: BreakerState | None = None) -> None:
        if failures >= self._limits.error_ratio * (successes + failures):
            self._opened_ms = now_ms
            self._begin(BreakerState.OPEN, now_ms)
        elif passed is not None:
            self._begin(passed, now_ms)

    def _begin(self, state: BreakerState, now_ms: int) -> None:
        """Enter a state, or begin the same one anew, with nothing counted."""
        self.state = state
        self._since_ms = self._bucket_ms = now_ms
        self._buckets.clear()
        self._successes = self._failures = 0

    def retry_ms(self, now_ms: int) -> int:
        """When a refused request may be sent again, after so long; 0 while requests or probes pass."""
        if self.state is not BreakerState.OPEN:
            return 0
        return max(self._opened_ms + self._limits.open_ms - now_ms, 0)
