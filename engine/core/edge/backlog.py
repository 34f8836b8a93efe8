"""How fast something works off what enters it, and so how long who enters now will wait: Little's law, L = lambda * W (Little 1961).

The rate is what leaves per millisecond. It is believed until it is disproved: a sample above it raises it at once, half of the way, for
nothing can leave faster than it is worked off; a sample below it counts only when there was enough to do all the time, for an idle server
is not a slow one.

How much to have under way at once is found as BBR does it (Cardwell et al. 2016): twice the rate times the shortest time an item has
taken lately. More would only wait elsewhere, where nobody can put a more important item before it. And even that is too much when urgent
items come to wait for it, in queues that have no order of importance: a group commit, a batch on a link, a turn of an event loop, the
processor. So while urgent items take longer than a few times the shortest time, the window of the others shrinks, to a half at most, in
the manner of Vegas (Brakmo 1995); it grows back when urgent items are quick again, or gone."""

from __future__ import annotations

from typing import Final

_RISE: Final = 0.5
_FALL: Final = 0.25
_BUSY_MS: Final = 20.0
"""Work for this long, at the believed rate, waiting through a whole interval: then the interval tells what the rate is."""

_LATENCY_WINDOW_MS: Final = 10_000
_WINDOW_GAIN: Final = 2.0

_BEARABLE_GAIN: Final = 3.0
"""How long urgent items may take, in shortest times."""

_SHRINK: Final = 0.7
_GROW: Final = 1.1
_ROOM_MIN: Final = 0.5
"""By how much the window changes at most in one look, and what is left of it in the end: with a fifth, urgent items were hardly quicker,
and a third fewer of the others were accepted."""


class Backlog:
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


class Stopwatch:
    """Times one item at a time, from when it is sent to its answer."""

    __slots__ = ("_sent_ms", "timed")

    def __init__(self) -> None:
        self.timed = -1  # the item that is timed now
        self._sent_ms = 0

    def start(self, ref: int, now_ms: int) -> None:
        """An item leaves, and none is timed: time this one."""
        self.timed, self._sent_ms = ref, now_ms

    def stop(self, now_ms: int) -> int:
        """The timed item was answered: how long that took. Also to be called when it is given up, or sent again: then nobody can tell
        what was answered (Karn's algorithm), and the time is nobody's."""
        self.timed = -1
        return now_ms - self._sent_ms


class ConcurrencyLimit:
    """How many items to have under way at once; `size`, after a `look`.

    Args:
        floor: at least so many, while nothing urgent suffers.
        bearable_ms: how long urgent items may take in any case.
        now_ms: the time it begins.
    """

    __slots__ = ("_bearable_ms", "_best", "_floor", "_previous", "_room", "_since_ms", "_urgent_count", "_urgent_ms", "size")

    def __init__(self, floor: int, bearable_ms: int, now_ms: int) -> None:
        self.size = self._floor = floor
        self._bearable_ms = bearable_ms
        self._room = 1.0  # the part of the window that what is urgent leaves to the others
        self._best = self._previous = float("inf")
        self._since_ms = now_ms
        self._urgent_count = self._urgent_ms = 0

    def took(self, took_ms: int, now_ms: int) -> None:
        """An item was answered after so long."""
        if now_ms - self._since_ms >= _LATENCY_WINDOW_MS:
            self._previous, self._best, self._since_ms = self._best, float("inf"), now_ms
        self._best = min(self._best, took_ms)

    def urgent_took(self, took_ms: int) -> None:
        """An item that nobody should have had to wait for was answered after so long."""
        self._urgent_count += 1
        self._urgent_ms += took_ms

    def look(self, rate_per_ms: float) -> None:
        """Decide anew, at this rate. Call it some ten times a second."""
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
