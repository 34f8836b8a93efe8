"""When an unacknowledged message is sent again.

The round trip of a connection is smoothed as in RFC 6298 section 2 (gain 1/8), and the timeout is 1.8 x the estimate (requirement D4),
between 100 ms and 2 s, doubling with every further try.

Two things keep one quick answer from deciding about all that follow. The estimate begins at a careful guess and slides from there, instead
of being whatever the first sample says. And what had to be sent more than once says nothing about the round trip (Karn's algorithm),
but the timeout that it took in the end is kept (RFC 6298, section 5.5; Karn and Partridge 1987): the estimate moves up to it, and slides
down again with the next good samples. Otherwise a client that has become slow would never be measured, and each message be repeated.

What the connections of one edge see together (`EdgeRoundTrip`) is a lower bound for each of them: when thousands return at once, nothing
is known
of any, and all wait in the same queues. Sharing an estimate between connections over the same path is TCP's control block sharing (RFC
9040). A first timeout is a sample too, "no answer within": in such a moment the first answers come when all timers are due.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

PATH_MEMORY_MS: Final = 4000
"""Twice the longest timeout: when nobody has answered, nor was waited for, for so long, nothing is known of a path any more."""


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

    def wait_ms(self, rtt_ms: float, tries: int, path_ms: float = 0.0) -> float:
        """How long to wait for the ACK of a message that was sent `tries` times, on a path of which `path_ms` is known."""
        base = max(self.factor * max(rtt_ms or self.rtt_initial_ms, path_ms), self.first_ms)
        return min(base * (1 << (tries - 1)), self.cap_ms)


class EdgeRoundTrip(Struct):
    """The way to one edge and back, as all its connections see it: their round trips, smoothed alike, of the last `PATH_MEMORY_MS`.

    It begins at 0, so that a few clients that do not answer make nobody else wait.
    """

    smoothed_ms: float = 0.0
    sampled_ms: int = 0

    def rtt_ms(self, now_ms: int) -> float:
        """The estimate; 0 when nothing is known."""
        return self.smoothed_ms if now_ms - self.sampled_ms < PATH_MEMORY_MS else 0.0

    def sample(self, rtt_ms: float, now_ms: int) -> None:
        """One round trip, or one wait that ended without an answer."""
        known_ms = self.rtt_ms(now_ms)
        self.smoothed_ms = known_ms + (rtt_ms - known_ms) / 8
        self.sampled_ms = now_ms
