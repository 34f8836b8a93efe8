"""Work that may arrive by the thousand at once, done at a bounded rate, in pieces that fit into a turn of the event loop.

When a switch restarts, thousands of connections end in one moment, and a second later as many clients ask for new ones. A turn of the event
loop handles every socket that is ready, so one turn would take a second, and the messages of everybody else would wait for its end; and
done as fast as it can be, such work would take a whole core for seconds. So it is given tokens:

    tokens left                none waits then; the work begins at once: an edge that is not busy delays nothing
    none left                  the work waits; begun in the order of arrival
    the last token is taken    `INTERVAL_S` later there are as many as the rate allows in that time
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

INTERVAL_S: Final = 0.004
"""Some 1 ms of work, and then three for the messages of others."""


class PacedTurns:
    """Lets at most `per_s` pieces of work begin in a second, `INTERVAL_S` worth of them in a turn of the event loop."""

    __slots__ = ("_left", "_per_turn", "_waiting")

    def __init__(self, per_s: int) -> None:
        self._per_turn = max(round(per_s * INTERVAL_S), 1)
        self._left = self._per_turn
        self._waiting: deque[Callable[[], object]] = deque()  # empty while there are tokens left

    def __len__(self) -> int:
        """Pieces of work that wait."""
        return len(self._waiting)

    def enter(self, work: Callable[[], object]) -> bool:
        """Whether the caller may go on at once. If not, `work` is called in a later turn, whatever has happened to its object by then."""
        if not self._left:
            self._waiting.append(work)
            return False
        self._take()
        return True

    def _take(self) -> None:
        self._left -= 1
        if not self._left:
            self._schedule()

    def _schedule(self) -> None:
        asyncio.get_running_loop().call_later(INTERVAL_S, self._next_turn)

    def _next_turn(self) -> None:
        self._left = self._per_turn
        try:
            while self._waiting and self._left:
                self._take()
                self._waiting.popleft()()
        finally:
            if self._waiting and self._left:  # a piece of work has raised: the others are due all the same
                self._left = 0
                self._schedule()
