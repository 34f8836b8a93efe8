"""Changes that storage does not have yet of timers that were handed out: which took effect, and which fire again and when.

Both gather for `timer_removal_ms`, or ride along with other work. They are given to storage until it confirms; each is safe to repeat.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from engine.config import Config
from engine.core.scheduler.scheduler_events import StoreDone, Turn
from engine.core.scheduler.timer_wheel import NEVER

SETTLED_MAX: Final = 2000
"""Timers removed, and timers moved, in one turn. Like `commit_records_max` requests, they block Redis for some 30 ms if all are of one
partition."""


class PendingRemovals:
    """See the module's text. A timer is in one of the two at most."""

    def __init__(self, config: Config) -> None:
        self._removal_ms = config.timer_removal_ms
        self._fired: dict[str, tuple[int, str]] = {}  # scheduled id -> partition and mailbox key, empty where unknown
        self._moves: dict[str, tuple[int, int, str]] = {}  # scheduled id -> partition, new due time, mailbox key
        self._given_fired: list[str] = []  # being written
        self._given_moves: list[str] = []
        self._since_ms = 0  # when the oldest came

    def __len__(self) -> int:
        return len(self._fired) + len(self._moves)

    def fired(self, sid: str, partition: int, key: str, now_ms: int) -> None:
        """The timer took effect."""
        if not self._fired and not self._moves:
            self._since_ms = now_ms
        self._moves.pop(sid, None)
        self._fired[sid] = partition, key

    def again(self, sid: str, partition: int, at_ms: int, key: str, now_ms: int) -> None:
        """The timer had no effect and fires again at `at_ms`."""
        if not self._fired and not self._moves:
            self._since_ms = now_ms
        self._moves[sid] = partition, at_ms, key

    def key_of_fired(self, sid: str) -> str | None:
        """The mailbox key of a timer that took effect and may still be in storage; None for any other, "" where it is not known."""
        fired = self._fired.get(sid)
        return None if fired is None else fired[1]

    def fired_of(self, key: str) -> list[str]:
        """The timers that took effect and are of this mailbox, or may be."""
        return [sid for sid, (_, owner) in self._fired.items() if owner in (key, "")]

    def is_moving(self, sid: str) -> bool:
        """Whether the timer waits for its new time."""
        return sid in self._moves

    def stay(self, sid: str) -> None:
        """Do not move the timer: a request cancelled or moved it meanwhile."""
        self._moves.pop(sid, None)

    # -- Storage. ------------------------------------------------------------------------------------------------------
    def next_at(self) -> int:
        """When to write them without waiting for requests, ms; NEVER when there are none. A hundred cost about as much as one."""
        waiting = len(self._fired) + len(self._moves)
        if waiting >= SETTLED_MAX:
            return self._since_ms
        return self._since_ms + self._removal_ms if waiting else NEVER

    def give(self, work: Turn) -> None:
        """Add the oldest to the work for storage."""
        self._given_fired = list(islice(self._fired, SETTLED_MAX))
        for sid in self._given_fired:
            partition, key = self._fired[sid]
            work[partition].fired[sid] = key
        self._given_moves = list(islice(self._moves, SETTLED_MAX))
        for sid in self._given_moves:
            partition, at_ms, key = self._moves[sid]
            work[partition].moved[sid] = at_ms, key

    def stored_moves(self, done: StoreDone) -> list[tuple[str, int | None]]:
        """Which timers storage has at their new time, ms, and which (None) it does not have at all; they do not wait any more."""
        outcome: list[tuple[str, int | None]] = []
        for sid, there in done.moved.items():
            move = self._moves.pop(sid, None)
            if move is not None:  # else it took effect, was cancelled or was moved in the meantime
                outcome.append((sid, move[1] if there else None))
        return outcome

    def stored_fired(self, now_ms: int) -> bool:
        """Storage did the work, except moves that it refused. Returns whether there were any."""
        for sid in self._given_fired:
            del self._fired[sid]
        self._since_ms = now_ms
        return any(sid in self._moves for sid in self._given_moves)
