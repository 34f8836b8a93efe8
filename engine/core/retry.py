"""When an unacknowledged message is sent again.

The round trip of a connection is smoothed as in RFC 6298 section 2 (gain 1/8), and the timeout is 1.8 x the estimate (requirement D4),
between 100 ms and 2 s, doubling with every further try.

Two things keep one quick answer from deciding about all that follow. The estimate begins at a careful guess and slides from there, instead
of being whatever the first sample says. And what had to be sent more than once says nothing about the round trip (Karn's algorithm),
but the timeout that it took in the end is kept (RFC 6298, section 5.5; Karn and Partridge 1987): the estimate moves up to it, and slides
down again with the next good samples. Otherwise a client that has become slow would never be measured, and each message be repeated.
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
        rtt_ms = rtt_ms or self.rtt_initial_ms
        return rtt_ms + (sample_ms - rtt_ms) / 8

    def backed_off(self, rtt_ms: float, tries: int) -> float:
        """The new estimate after a message that was sent `tries` times: its last timeout is the next one's first."""
        return max(rtt_ms, self.wait_ms(rtt_ms, tries) / self.factor)

    def wait_ms(self, rtt_ms: float, tries: int) -> float:
        """How long to wait for the ACK of a message that was sent `tries` times."""
        base = max(self.factor * (rtt_ms or self.rtt_initial_ms), self.first_ms)
        return min(base * (1 << (tries - 1)), self.cap_ms)
