"""Pacing: how long the links of an actor wait between two batches, by the CPU that the exchanges of all of them take.

An exchange costs the same whatever it carries, so waiting for more records saves CPU and costs latency. What it saves depends on how many
records there are, not on how many peers: 24 links with 2 000 records a second between them make one exchange for each record, whether
they wait 1 ms or 3.4; with 12 000 a second they make one for 1.2 records or for 2.4.

So the links of an actor share a `CallBudget`. While their exchanges take less than its share of a core, each link keeps to its own
interval. Beyond, all intervals grow by one factor until the share is kept, or until an interval has reached what its carrier allows: the
bound is the same for any number of peers, and where many of them have records all the time, the share is exceeded.
"""

from __future__ import annotations

from typing import Final

_WINDOW_MS: Final = 50.0
"""Over which the CPU is summed up: some twenty Ray calls, or hundreds of exchanges over sockets, at the share of a core they may take."""

_FACTOR_MAX: Final = 64.0
"""Above what any bound lets through, and low enough that it is back within a few windows when the load ends."""


class CallBudget:
    """The share of a core that the exchanges of one actor may take.

    Args:
        share: above 0.

    Attributes:
        factor: by which intervals are longer than without load, 1 or more.
    """

    __slots__ = ("_share", "_since_ms", "_spent_ms", "factor")

    def __init__(self, share: float) -> None:
        self._share = share
        self._spent_ms = 0.0
        self._since_ms = float("-inf")
        self.factor = 1.0

    def spend(self, call_ms: float, now_ms: float) -> None:
        """An exchange begins that costs this end so much CPU."""
        elapsed_ms = now_ms - self._since_ms
        if elapsed_ms >= _WINDOW_MS:
            use = self._spent_ms / (elapsed_ms * self._share)
            self.factor = min(max(self.factor * use, 1.0), _FACTOR_MAX)
            self._spent_ms, self._since_ms = 0.0, now_ms
        self._spent_ms += call_ms
