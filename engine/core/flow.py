"""How fast something works off what enters it, and so how long who enters now will wait: Little's law, L = lambda * W (Little 1961).

The rate is what leaves per millisecond. It is believed until it is disproved: a sample above it raises it at once, half of the way, for
nothing can leave faster than it is worked off; a sample below it counts only when there was enough to do all the time, for an idle server
is not a slow one.

How much to have under way at once is found as BBR does it (Cardwell et al. 2016): twice the rate times the shortest time an item has
taken lately. More would only wait elsewhere, where nobody can put a more important item before it."""

from __future__ import annotations

from typing import Final

_RISE: Final = 0.5
_FALL: Final = 0.25
_BUSY_MS: Final = 20.0
"""Work for this long, at the believed rate, waiting through a whole interval: then the interval tells what the rate is."""

_LATENCY_WINDOW_MS: Final = 10_000
_WINDOW_GAIN: Final = 2.0


class Flow:
    """Items on their way through something, counted by its owner.

    Args:
        rate_per_ms: what is believed before anything was measured.
        now_ms: the time it begins.
    """

    __slots__ = ("_low", "_passed", "_since_ms", "rate_per_ms", "waiting")

    def __init__(self, rate_per_ms: float, now_ms: int) -> None:
        self.rate_per_ms = rate_per_ms
        self.waiting = 0
        self._passed = 0
        self._low = 0
        self._since_ms = now_ms

    def enter(self, count: int) -> None:
        """So many more are on their way."""
        self.waiting += count

    def leave(self, count: int) -> None:
        """So many have passed."""
        self._passed += count
        self.drop(count)

    def drop(self, count: int) -> None:
        """So many will never pass."""
        self.waiting -= count
        self._low = min(self._low, self.waiting)

    @property
    def delay_ms(self) -> float:
        """How long who enters now will wait."""
        return self.waiting / self.rate_per_ms

    def look(self, now_ms: int) -> None:
        """Measure the interval since the last look. Call it some ten times a second."""
        elapsed_ms = now_ms - self._since_ms
        if elapsed_ms <= 0:
            return
        sample = self._passed / elapsed_ms
        if sample > self.rate_per_ms:
            self.rate_per_ms += (sample - self.rate_per_ms) * _RISE
        elif self._low >= self.rate_per_ms * _BUSY_MS:
            # Never to nothing: then no delay could be told, and nothing would ever be let in to measure it again.
            self.rate_per_ms += (max(sample, 1 / elapsed_ms) - self.rate_per_ms) * _FALL
        self._since_ms, self._passed, self._low = now_ms, 0, self.waiting


class Latency:
    """The shortest time an item has taken in the last ten to twenty seconds, of which one at a time is timed."""

    __slots__ = ("_best", "_previous", "_sent_ms", "_since_ms", "timed")

    def __init__(self, now_ms: int) -> None:
        self._best = self._previous = float("inf")
        self._since_ms = now_ms
        self.timed = -1  # the item that is timed now
        self._sent_ms = 0

    def sent(self, ref: int, now_ms: int) -> None:
        """An item leaves, and none is timed: time this one."""
        self.timed, self._sent_ms = ref, now_ms

    def over(self, now_ms: int, *, answered: bool) -> None:
        """The timed item was answered, or given up, or sent again: then nobody can tell what was answered (Karn's algorithm)."""
        self.timed = -1
        if now_ms - self._since_ms >= _LATENCY_WINDOW_MS:
            self._previous, self._best, self._since_ms = self._best, float("inf"), now_ms
        if answered:
            self._best = min(self._best, now_ms - self._sent_ms)

    def window(self, rate_per_ms: float, floor: int) -> int:
        """How many items to have under way at this rate; `floor` at least."""
        shortest_ms = min(self._best, self._previous)
        return floor if shortest_ms == float("inf") else max(floor, int(_WINDOW_GAIN * rate_per_ms * max(shortest_ms, 1)))
