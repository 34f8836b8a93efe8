"""How hard a shard is pressed.

The level is a pure function of what is measured, with hysteresis:

    level   lag: oldest waiting post   memory, waiting posts   what happens
    1       pressure_lag_ms            50 % of their limit     low-priority messages are not pushed; where memory is short they go to the
                                                               offline streams first, and with them whatever nobody is sent soon
    2       twice that                 70 %                    low-priority posts are refused
    3       four times that            85 %                    normal ones too
            -                          100 %                   everything is refused

It rises at once and falls by one after everything has stayed below 70 % of its threshold for `calm_ms`: a shard at the edge must not flap,
because each turn spills and reads the same messages again. The limit itself is checked at every post, the levels at every `measure`.

A refused publisher is told when to come back: after the lag, or the time the excess takes to leave at the rate things have left lately.
`engine.publish` has the table of who refuses what under load.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

SHARES: Final = (0.5, 0.7, 0.85)
"""Of a limit, at which levels 1, 2 and 3 begin."""

LAG_FACTORS: Final = (1, 2, 4)
"""Of `lag_ms`, likewise."""

CALM: Final = 0.7
"""Of a threshold, below which a level ends."""

_GAIN: Final = 0.2
_RETRY_MS_MAX: Final = 60_000


class PressureLimits(Struct, frozen=True):
    """See the module's text. Times in milliseconds."""

    lag_ms: int
    calm_ms: int
    memory_bytes_max: int
    memory_messages_max: int
    posts_pending_max: int


class Load(Struct, frozen=True):
    """What is measured: the age of the oldest waiting post, posts waiting, and what is in memory, waiting posts included."""

    lag_ms: int
    posts: int
    messages: int
    bytes: int
    freed_bytes: int


class Pressure:
    """The level of one shard, 0 when it is calm. `tight`: memory has its part in it."""

    def __init__(self, limits: PressureLimits) -> None:
        self.level = 0
        self.tight = False
        self._limits = limits
        self._calm_since_ms = -1
        self._measured_ms = -1
        self._freed_bytes = 0
        self._freed_per_ms = 0.0
        self._load = Load(0, 0, 0, 0, 0)

    def measure(self, load: Load, now_ms: int) -> int:
        """Take a measurement; returns the level."""
        elapsed_ms = now_ms - self._measured_ms
        if self._measured_ms >= 0 and elapsed_ms > 0:
            freed = max(load.freed_bytes - self._freed_bytes, 0) / elapsed_ms
            self._freed_per_ms += (freed - self._freed_per_ms) * _GAIN
        self._load, self._measured_ms, self._freed_bytes = load, now_ms, load.freed_bytes
        lag, memory, posts = self._ratios()
        wanted = max(_level(lag, LAG_FACTORS), _level(memory, SHARES), _level(posts, SHARES))
        if wanted >= self.level:
            self.level = wanted
            self._calm_since_ms = -1
        elif not self._is_calm(lag, memory, posts):
            self._calm_since_ms = -1
        elif self._calm_since_ms < 0:
            self._calm_since_ms = now_ms
        elif now_ms - self._calm_since_ms >= self._limits.calm_ms:
            self.level -= 1
            self._calm_since_ms = now_ms
        self.tight = self.level > 0 and memory >= SHARES[0] * CALM
        return self.level

    def _ratios(self) -> tuple[float, float, float]:
        limits, load = self._limits, self._load
        memory = max(load.messages / limits.memory_messages_max, load.bytes / limits.memory_bytes_max)
        return load.lag_ms / limits.lag_ms, memory, load.posts / limits.posts_pending_max

    def _is_calm(self, lag: float, memory: float, posts: float) -> bool:
        share = SHARES[self.level - 1] * CALM
        return lag < LAG_FACTORS[self.level - 1] * CALM and memory < share and posts < share

    def refuses(self, priority: int) -> bool:
        """Are posts of this priority refused? The highest (0) only ever by the limits themselves."""
        return self.level >= 2 and 0 < priority >= 4 - self.level

    def retry_ms(self) -> int:
        """When a refused publisher may come back."""
        excess = self._load.bytes - SHARES[0] * CALM * self._limits.memory_bytes_max
        drain_ms = excess / max(self._freed_per_ms, 1.0) if self.tight else 0.0
        return int(min(max(self._load.lag_ms, drain_ms, self._limits.calm_ms), _RETRY_MS_MAX))


def _level(ratio: float, thresholds: tuple[float, ...]) -> int:
    return sum(ratio >= threshold for threshold in thresholds)
