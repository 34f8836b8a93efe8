"""Token buckets: so many events a second on average, and a burst at once (RFC 2698 meters traffic with two of these).

Time is an argument, in milliseconds; a time before the last one counts as the last one.
"""

from __future__ import annotations

from collections.abc import Callable


class TokenBucket:
    """Holds at most `burst` tokens and gains `rate_per_s` of them a second. In any span of time no more than burst + rate x span are taken.

    Args:
        rate_per_s: tokens gained in a second.
        burst: tokens it holds at most.
        now_ms: the time.
        tokens: held at the start; None: `burst`.
    """

    __slots__ = ("_at_ms", "_burst", "_rate_per_ms", "_tokens")

    def __init__(self, rate_per_s: float, burst: float, now_ms: float, tokens: float | None = None) -> None:
        self._rate_per_ms = rate_per_s / 1000
        self._burst = burst
        self._tokens = burst if tokens is None else tokens
        self._at_ms = now_ms

    def take(self, now_ms: float, tokens: float = 1) -> bool:
        """Take tokens, if there are so many; otherwise take none and return false."""
        self._gain(now_ms)
        if self._tokens < tokens:
            return False
        self._tokens -= tokens
        return True

    def put(self, tokens: float) -> None:
        """Add tokens beside those gained by time, up to `burst`."""
        self._tokens = min(self._tokens + tokens, self._burst)

    def wait_ms(self, now_ms: float, tokens: float = 1) -> float:
        """After how long so many tokens are there, if nobody takes any; 0 when they are."""
        self._gain(now_ms)
        return max(tokens - self._tokens, 0.0) / self._rate_per_ms

    def full(self, now_ms: float) -> bool:
        """Whether it holds `burst` tokens, and is therefore as good as a new one."""
        self._gain(now_ms)
        return self._tokens >= self._burst

    def _gain(self, now_ms: float) -> None:
        if now_ms > self._at_ms:
            self._tokens = min(self._tokens + (now_ms - self._at_ms) * self._rate_per_ms, self._burst)
            self._at_ms = now_ms


class TokenBuckets:
    """A bucket for each key that has taken tokens lately: a full one is as good as none, and is forgotten.

    Args:
        make: a full bucket at this time.
        keys_max: buckets at most; beyond it the one asked for least recently is forgotten.
    """

    __slots__ = ("_buckets", "_keys_max", "_make")

    def __init__(self, make: Callable[[float], TokenBucket], keys_max: int) -> None:
        self._make = make
        self._keys_max = keys_max
        self._buckets: dict[str, TokenBucket] = {}  # least recent first

    def __len__(self) -> int:
        return len(self._buckets)

    def of(self, key: str, now_ms: float) -> TokenBucket:
        buckets = self._buckets
        bucket = buckets.pop(key, None)
        if bucket is None:
            bucket = self._make(now_ms)
        while buckets:
            oldest = next(iter(buckets))
            if len(buckets) < self._keys_max and not buckets[oldest].full(now_ms):
                break
            del buckets[oldest]
        buckets[key] = bucket
        return bucket
