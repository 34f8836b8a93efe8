"""When an unacknowledged message is sent again.

The round trip of a connection is smoothed as in RFC 6298 section 2 (gain 1/8), samples of repeated messages are left out
(Karn's algorithm, section 3), and the timeout is 1.8 x the estimate (requirement D4), between 100 ms and 2 s, doubling
with every further try.
"""

from __future__ import annotations

from msgspec import Struct


class RetryPolicy(Struct, frozen=True):
    """How long to wait for an ACK. Times in milliseconds; `tries` counts sends of one message on one connection."""

    rtt_initial_ms: float
    factor: float
    first_ms: float
    cap_ms: float
    tries: int

    def smooth(self, rtt_ms: float, sample_ms: float) -> float:
        """The new estimate after one more measured round trip; `rtt_ms` 0 means none was measured before."""
        if rtt_ms == 0:
            return max(sample_ms, 0.001)
        return rtt_ms + (sample_ms - rtt_ms) / 8

    def wait_ms(self, rtt_ms: float, tries: int) -> float:
        """How long to wait for the ACK of a message that was sent `tries` times."""
        base = max(self.factor * (rtt_ms or self.rtt_initial_ms), self.first_ms)
        return min(base * (1 << (tries - 1)), self.cap_ms)
