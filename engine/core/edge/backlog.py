"""The service rate of a queue, and the delay of an item that enters it now: Little's law, L = lambda * W (Little 1961).

The rate is the number of items that leave per millisecond. A sample above the estimate raises it at once, by half of the difference, for
nothing can leave faster than it is served; a sample below it counts only when the queue was never short of work, for an idle server is
not a slow one.

The number of items to have in flight is found as in BBR (Cardwell et al. 2016): twice the rate times the shortest time an item has
taken lately. More would only wait in queues behind this one, which have no priorities: a group commit, a batch on a link, a turn of an
event loop, the processor. Even that is too much when urgent items wait there. So while urgent items take longer than a few times the
shortest time, the window of the others shrinks, to a half at most, in the manner of Vegas (Brakmo 1995); it grows back when urgent items
are fast again, or gone.
"""

from __future__ import annotations

from typing import Final

_RISE: Final = 0.5
_FALL: Final = 0.25
_BUSY_MS: Final = 20.0
"""An interval measures the rate when at least this much work, at the estimated rate, waited all through it."""

_LATENCY_WINDOW_MS: Final = 10_000
_WINDOW_GAIN: Final = 2.0

_BEARABLE_GAIN: Final = 3.0
"""How long urgent items may take, as a multiple of the shortest time."""

_SHRINK: Final = 0.7
_GROW: Final = 1.1
_ROOM_MIN: Final = 0.5
"""The factors by which the window changes at most per `look`, and the part of it that always remains: with a fifth instead of a half,
urgent items were hardly faster, and a third fewer of the others were accepted."""


class Backlog:
    """The items in one queue or service, counted by their owner.

    Args:
        rate_per_ms: the estimate before anything is measured.
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
        self.waiting += count

    def leave(self, count: int, *, served: bool = True) -> None:
        """Count items that leave, because they were served or not."""
        self.waiting -= count
        self._low = min(self._low, self.waiting)
        if served:
            self._passed += count

    def served(self, count: int) -> None:
        """Count items that are served as they enter."""
        self._passed += count

    @property
    def delay_ms(self) -> float:
        """How long an item that enters now will wait, ms."""
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
            # Never 0: the delay would be infinite, and nothing would be admitted to measure the rate again.
            self.rate_per_ms += (max(sample, 1 / elapsed_ms) - self.rate_per_ms) * _FALL
        self._since_ms, self._passed, self._low = now_ms, 0, self.waiting


class ConcurrencyLimit:
    """How many items to have in flight at once: `size`, after a `look`.

    Args:
        floor: the smallest size, unless urgent items make it shrink.
        bearable_ms: how long urgent items may take in any case.
        now_ms: the time it begins.
    """

    __slots__ = ("_bearable_ms", "_best", "_floor", "_previous", "_room", "_since_ms", "_urgent_count", "_urgent_ms", "size")

    def __init__(self, floor: int, bearable_ms: int, now_ms: int) -> None:
        self.size = self._floor = floor
        self._bearable_ms = bearable_ms
        self._room = 1.0  # the part of the window that urgent items leave to the others
        self._best = self._previous = float("inf")
        self._since_ms = now_ms
        self._urgent_count = self._urgent_ms = 0

    def took(self, took_ms: int, now_ms: int) -> None:
        """An item was answered after so long."""
        if now_ms - self._since_ms >= _LATENCY_WINDOW_MS:
            self._previous, self._best, self._since_ms = self._best, float("inf"), now_ms
        self._best = min(self._best, took_ms)

    def urgent_took(self, took_ms: int) -> None:
        """An urgent item was answered after so long."""
        self._urgent_count += 1
        self._urgent_ms += took_ms

    def look(self, rate_per_ms: float) -> None:
        """Compute `size` again, at this rate. Call it some ten times a second."""
        best_ms = min(self._best, self._previous)
        if best_ms == float("inf"):
            return
        bearable_ms = max(_BEARABLE_GAIN * best_ms, self._bearable_ms)
        if self._urgent_count:
            change = bearable_ms / max(self._urgent_ms / self._urgent_count, 1.0)
            self._room *= min(max(change, _SHRINK), _GROW)
        else:
            self._room *= _GROW
        self._room = min(max(self._room, _ROOM_MIN), 1.0)
        self._urgent_count = self._urgent_ms = 0
        whole = max(self._floor, _WINDOW_GAIN * rate_per_ms * max(best_ms, 1))
        self.size = max(int(self._room * whole), 1)
