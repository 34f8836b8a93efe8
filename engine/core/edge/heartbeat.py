"""When to ping a connection, and when to consider it dead.

    idle      --interval over-->            pinging   (send a ping)
    pinging   --pong, or other traffic-->   idle
    pinging   --timeout, first-->           pinging   (send another ping at once: a lost pong must not wait for the next interval)
    pinging   --timeout, last-->            dead      (close 4408)

The interval adapts to the network. A miss that recovers, or a round trip far from the smoothed one, doubles it up to a
maximum: a jittery path is pinged less often, since every ping there may lead to a wrong decision. A few calm pongs
halve it again, down to the configured one. The estimator is the one of RFC 6298, section 2 (alpha 1/8).

Time is an argument, in milliseconds; the caller promises only that it never goes back.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from engine.config import Config

MISSES_MAX: Final = 2
"""Pings in a row without an answer that end the connection."""

CALM_PONGS: Final = 3
"""Pongs in a row near the smoothed round trip that halve a stretched interval."""

JITTER_FLOOR_MS: Final = 100
"""Round trips that differ by less are calm whatever their ratio: a scheduler's noise is not the network's."""


class HeartbeatAction(Enum):
    """What the caller must do now."""

    WAIT = 0
    PING = 1
    DEAD = 2


class Heartbeat:
    """The heartbeat of one connection. Call `check` at `due_ms`, and report pongs and other traffic."""

    __slots__ = ("_calm", "_config", "_sent_ms", "_srtt_ms", "due_ms", "interval_ms", "misses")

    def __init__(self, config: Config, now_ms: int) -> None:
        self._config = config
        self._sent_ms = 0  # when the unanswered ping was sent; 0: there is none
        self._srtt_ms = 0.0
        self._calm = 0
        self.interval_ms = config.heartbeat_ms
        self.misses = 0
        self.due_ms = now_ms + config.heartbeat_ms

    @property
    def payload(self) -> bytes:
        """The payload of the unanswered ping, which distinguishes its pong from a late one."""
        return b"%x" % self._sent_ms

    def check(self, now_ms: int) -> HeartbeatAction:
        """The decision at `now_ms`. After `PING` the caller sends a ping with `payload`; after `DEAD` it closes."""
        if now_ms < self.due_ms:
            return HeartbeatAction.WAIT
        if self._sent_ms:
            self.misses += 1
            if self.misses >= MISSES_MAX:
                return HeartbeatAction.DEAD
        self._sent_ms = now_ms
        self.due_ms = now_ms + self._config.pong_timeout_ms
        return HeartbeatAction.PING

    def pong(self, payload: bytes, now_ms: int) -> None:
        """A pong arrived. One that answers an earlier ping counts as traffic, but is no measure of the round trip."""
        if not self._sent_ms:
            return
        if payload != self.payload:
            self.alive()
            return
        rtt_ms = now_ms - self._sent_ms
        jitter = self.misses > 0 or (self._srtt_ms > 0 and abs(rtt_ms - self._srtt_ms) > max(self._srtt_ms, JITTER_FLOOR_MS))
        self._srtt_ms = rtt_ms if self._srtt_ms == 0 else self._srtt_ms + (rtt_ms - self._srtt_ms) / 8
        self._settle(jitter=jitter)

    def alive(self) -> None:
        """Other traffic arrived from the peer: an unanswered ping counts as answered."""
        if self._sent_ms:
            self._settle(jitter=self.misses > 0)

    def _settle(self, *, jitter: bool) -> None:
        if jitter:
            self._calm = 0
            self.interval_ms = min(self.interval_ms * 2, max(self._config.heartbeat_max_ms, self._config.heartbeat_ms))
        else:
            self._calm += 1
            if self._calm >= CALM_PONGS and self.interval_ms > self._config.heartbeat_ms:
                self._calm = 0
                self.interval_ms = max(self.interval_ms // 2, self._config.heartbeat_ms)
        self.misses = 0
        self.due_ms = self._sent_ms + self.interval_ms
        self._sent_ms = 0
