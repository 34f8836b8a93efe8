"""Retry timeouts of unacknowledged messages.

The round trip of a connection is smoothed as in RFC 6298 section 2 (gain 1/8), and the timeout is 1.8 x the estimate (requirement D4),
between 100 ms and 2 s, doubling with every further try.

Two rules limit the effect of one fast ACK. The estimate starts at a conservative initial value and is smoothed from there, instead of
being set to the first sample. And a retried message gives no round-trip sample (Karn's algorithm), but its last timeout is kept (RFC 6298,
section 5.5; Karn and Partridge 1987): the estimate rises to it, and falls again with the next valid samples. Otherwise a client that has
become slow would never be measured, and each message would be retried.

The shared estimate of the connections of one edge (`EdgeRoundTrip`) is a lower bound for each of them: when thousands reconnect at once,
none has a sample, and all wait in the same queues. Sharing an estimate between connections over the same path is TCP's control block
sharing (RFC 9040). A first timeout is a sample too, "no answer within": after a mass reconnect the first ACKs come when all timers are due.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from engine.config import Config

PATH_MEMORY_MS: Final = 4000
"""Lifetime of a path's estimate without a new sample, ACK or timeout: twice the longest timeout."""


class RetryPolicy(Struct, frozen=True):
    """Timeouts for an ACK. Times in milliseconds; `tries` counts sends of one message on one connection."""

    rtt_initial_ms: float
    factor: float
    first_ms: float
    cap_ms: float
    tries: int

    @staticmethod
    def of(config: Config) -> RetryPolicy:
        return RetryPolicy(
            config.ack_rtt_initial_ms, config.ack_timeout_factor, config.retry_first_ms, config.retry_cap_ms, config.retry_tries
        )

    def smooth(self, rtt_ms: float, sample_ms: float) -> float:
        """Return the estimate after one more measured round trip; `rtt_ms` 0 means no earlier sample."""
        rtt_ms = rtt_ms or self.rtt_initial_ms
        return rtt_ms + (sample_ms - rtt_ms) / 8

    def backed_off(self, rtt_ms: float, tries: int) -> float:
        """Return the estimate after a message that was sent `tries` times: its last timeout is the first of the next message."""
        return max(rtt_ms, self.wait_ms(rtt_ms, tries) / self.factor)

    def wait_ms(self, rtt_ms: float, tries: int, path_ms: float = 0.0) -> float:
        """Return the timeout of a message that was sent `tries` times; `path_ms` is the estimate of its path, 0 for none."""
        base = max(self.factor * max(rtt_ms or self.rtt_initial_ms, path_ms), self.first_ms)
        return min(base * (1 << (tries - 1)), self.cap_ms)


class EdgeRoundTrip:
    """The shared round-trip estimate of all connections of one edge, smoothed with gain 1/8; expires after `PATH_MEMORY_MS`.

    It starts at 0, so that a few clients that do not acknowledge do not delay the others.
    """

    __slots__ = ("sampled_ms", "smoothed_ms")

    def __init__(self) -> None:
        self.smoothed_ms = 0.0
        self.sampled_ms = 0

    def rtt_ms(self, now_ms: int) -> float:
        """Return the estimate; 0 without a sample in the last `PATH_MEMORY_MS`."""
        return self.smoothed_ms if now_ms - self.sampled_ms < PATH_MEMORY_MS else 0.0

    def sample(self, rtt_ms: float, now_ms: int) -> None:
        """Add one round trip, or one wait that ended without an ACK."""
        known_ms = self.smoothed_ms if now_ms - self.sampled_ms < PATH_MEMORY_MS else 0.0  # as in `rtt_ms`
        self.smoothed_ms = known_ms + (rtt_ms - known_ms) / 8
        self.sampled_ms = now_ms
