"""Keeps the steps of a change apart from the moments in which a part that dies has no process to start in.

A part that dies while slots move or edges leave makes its users wait until its next process serves: 0.3 s in a spare process, seconds in
one that is started then, and actors that came have taken the spare ones. So such a step waits until the nodes have theirs again
(`engine.actors.spares`), `MAX_MS` at most in one change; then the change goes on without. Nodes that are to go are emptied without it.

Kept in memory by the controller in control: its successor waits anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MAX_MS: Final = 10_000
"""A start on a busy machine takes seconds."""


class SpareWait:
    """The wait of one change.

    Args:
        expected: whether a node is about to have a spare process.
        clock: monotonic milliseconds.
    """

    def __init__(self, expected: Callable[[], bool], clock: Callable[[], float]) -> None:
        self._expected = expected
        self._clock = clock
        self._since_ms: float | None = None  # None while no spare process is expected

    @property
    def lasts(self) -> bool:
        """Whether a step waits now."""
        return self._since_ms is not None and self._clock() - self._since_ms < MAX_MS

    def holds_back(self) -> bool:
        """Whether a step that could begin now is to wait."""
        if not self._expected():
            self._since_ms = None
            return False
        if self._since_ms is None:
            self._since_ms = self._clock()
        return self.lasts

    def end(self) -> None:
        """The change is complete: the next one has a wait of its own."""
        self._since_ms = None
