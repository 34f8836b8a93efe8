"""The level of pressure on a shard.

The level is a function of the measurements alone, with hysteresis:

    level   lag: oldest waiting post   memory, waiting posts   what happens
    1       pressure_lag_ms            50 % of their limit     low-priority messages are not pushed; where memory is short they go to the
                                                               offline streams first, with all messages that are not sent soon
    2       twice that                 70 %                    low-priority posts are refused
    3       four times that            85 %                    normal ones too
            -                          100 %                   everything is refused; for memory, all but what frees it

It rises at once and falls by one after everything has stayed below 70 % of its threshold for `pressure_calm_ms`: a shard at a threshold
must not oscillate, because each turn spills and reads the same messages again. Where memory has no part in it, that is no reason: once no
post waits any more, it falls by one with every `measure`. Storage that stood still for a second would otherwise close the shard for another
one. The limit itself is checked at every post, the levels at every `measure`.

The answer to a refused publisher has the time to retry after: the lag, or the time to free the excess at the recent rate.
`engine.publish` has the table of what each component refuses under load.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from msgspec import Struct

from engine.config import Config

SHARES: Final = (0.5, 0.7, 0.85)
"""Shares of a limit at which levels 1, 2 and 3 begin."""

LAG_FACTORS: Final = (1, 2, 4)
"""Multiples of `pressure_lag_ms` at which levels 1, 2 and 3 begin."""

CALM: Final = 0.7
"""Share of a threshold below which a level ends."""

_GAIN: Final = 0.2
_RETRY_MS_MAX: Final = 60_000


class Load(Struct, frozen=True):
    """One measurement: age of the oldest waiting post, waiting posts, and messages and bytes in memory, waiting posts included."""

    lag_ms: int
    posts: int
    messages: int
    bytes: int
    freed_bytes: int


class Pressure:
    """The level of one shard, 0 to 3; 0 is calm. `tight`: memory contributes to the level. `calm_bytes`: so much memory ends level 1."""

    def __init__(self, config: Config) -> None:
        self.level = 0
        self.tight = False
        self.calm_bytes = int(SHARES[0] * CALM * config.shard_memory_bytes_max)
        self._config = config
        self._of_memory = False  # it was short since the level was 0
        self._calm_since_ms = -1
        self._measured_ms = -1
        self._freed_bytes = 0
        self._freed_per_ms = 0.0
        self._load = Load(0, 0, 0, 0, 0)

    def measure(self, load: Load, now_ms: int) -> int:
        """Apply a measurement and return the new level."""
        elapsed_ms = now_ms - self._measured_ms
        if self._measured_ms >= 0 and elapsed_ms > 0:
            freed = max(load.freed_bytes - self._freed_bytes, 0) / elapsed_ms
            self._freed_per_ms += (freed - self._freed_per_ms) * _GAIN
        self._load, self._measured_ms, self._freed_bytes = load, now_ms, load.freed_bytes
        lag, memory, posts = self._ratios()
        self._of_memory = memory >= SHARES[0] * CALM or (self._of_memory and self.level > 0)
        wanted = max(bisect_right(LAG_FACTORS, lag), bisect_right(SHARES, memory), bisect_right(SHARES, posts))
        if wanted >= self.level:
            self.level = wanted
            self._calm_since_ms = -1
        elif not load.posts and not self._of_memory:
            self.level -= 1
            self._calm_since_ms = -1
        elif not self._is_calm(lag, memory, posts):
            self._calm_since_ms = -1
        elif self._calm_since_ms < 0:
            self._calm_since_ms = now_ms
        elif now_ms - self._calm_since_ms >= self._config.pressure_calm_ms:
            self.level -= 1
            self._calm_since_ms = now_ms
        self.tight = self.level > 0 and memory >= SHARES[0] * CALM
        return self.level

    def _ratios(self) -> tuple[float, float, float]:
        config, load = self._config, self._load
        memory = max(load.messages / config.shard_memory_messages_max, load.bytes / config.shard_memory_bytes_max)
        return load.lag_ms / config.pressure_lag_ms, memory, load.posts / config.posts_pending_max

    def _is_calm(self, lag: float, memory: float, posts: float) -> bool:
        share = SHARES[self.level - 1] * CALM
        return lag < LAG_FACTORS[self.level - 1] * CALM and memory < share and posts < share

    def refuses(self, priority: int) -> bool:
        """Whether the level refuses posts of this priority. Only the limits themselves refuse the highest (0)."""
        return self.level >= 2 and 0 < priority >= 4 - self.level

    def retry_ms(self) -> int:
        """Time in milliseconds after which a refused publisher may retry, at most 60 seconds."""
        drain_ms = max(self._load.bytes - self.calm_bytes, 0) / max(self._freed_per_ms, 1.0) if self.tight else 0.0
        return int(min(max(self._load.lag_ms, drain_ms, self._config.pressure_calm_ms), _RETRY_MS_MAX))
