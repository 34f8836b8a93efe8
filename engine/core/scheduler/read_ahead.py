"""Read-ahead of durable timers from storage, page by page, and the rule that determines which timers are in memory.

Each partition has a frontier, a position in its timers ordered by (due time, scheduled id). Invariant: every timer at or
before the frontier is in memory, unless its shard is unreachable and memory is short (`Firing.evict_unreachable`). Timers
beyond it may be in memory too. The frontier moves forward by pages, up to the horizon; where the invariant would break, it is
moved back and the pages are read again: reading a timer that is already in memory changes nothing.

Memory is bounded: reading ahead stops at three quarters of the limit. Newly scheduled near timers must be in memory all the same;
when they reach the limit, the far half is evicted and the frontier is moved back, so the nearest timers stay.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

from engine.config import Config
from engine.core.scheduler.firing import Firing
from engine.core.scheduler.scheduler_events import BEGINNING, ReadTimers, TimerCursor, TimersRead
from engine.core.scheduler.timer_wheel import NEVER
from engine.core.wire.records import Timer

_FILL_SHARE: Final = 0.75
"""Share of the memory limit at which reading ahead stops. The remainder is for near timers scheduled meanwhile."""

_END: Final[TimerCursor] = (NEVER, "")

_KEEP_SHARE: Final = 0.5
"""Share of the memory limit that is kept when the far timers are evicted. Halving makes the scan rare."""


class ReadAhead:
    """The frontiers of one scheduler's partitions."""

    def __init__(self, config: Config, partitions: Iterable[int], firing: Firing, started_ms: int) -> None:
        self._config = config
        self._firing = firing
        self._started_ms = started_ms
        self._frontiers: dict[int, TimerCursor] = dict.fromkeys(partitions, BEGINNING)
        self._reading: dict[int, ReadTimers] = {}
        self.paused = False  # memory has no room for a page: `pages` has to be called again when timers left it

    @property
    def caught_up(self) -> bool:
        """Whether everything that was due when the scheduler started is in memory."""
        return all(frontier[0] > self._started_ms for frontier in self._frontiers.values())

    def rewind(self, partition: int | None = None) -> None:
        """Restart reading from the beginning: of one partition, or of all with None."""
        for number in self._frontiers if partition is None else (partition,):
            self._frontiers[number] = BEGINNING

    def _put_back(self, partition: int, cursor: TimerCursor) -> None:
        self._frontiers[partition] = min(self._frontiers[partition], cursor)

    def _holds(self, share: float) -> bool:
        """Whether at least this share of a memory limit is in use."""
        firing = self._firing
        return len(firing) >= share * self._config.timer_memory_max or firing.bytes >= share * self._config.timer_memory_bytes

    # -- Reading ahead. ------------------------------------------------------------------------------------------------
    def pages(self, now_ms: int) -> dict[int, ReadTimers]:
        """The pages to read now, by partition. The caller reports each with `loaded`, or all with `abandon`."""
        goal_ms = now_ms + self._config.timer_horizon_ms // 2
        if min(self._frontiers.values(), default=_END)[0] > goal_ms:
            return {}
        behind = [partition for partition, frontier in self._frontiers.items() if frontier[0] <= goal_ms]
        if self._holds(_FILL_SHARE):
            self._firing.evict_unreachable()
        self.paused = self._holds(_FILL_SHARE)
        if self.paused:
            return {}
        until_ms = now_ms + self._config.timer_horizon_ms
        room = min(self._config.timer_load_max, self._config.timer_memory_max - len(self._firing))
        room_bytes = min(self._config.timer_load_bytes, self._config.timer_memory_bytes - self._firing.bytes)
        limit, bytes_max = max(room // len(behind), 1), max(room_bytes // len(behind), 1)
        self._reading = {partition: ReadTimers(self._frontiers[partition], until_ms, limit, bytes_max) for partition in behind}
        return self._reading.copy()

    def abandon(self) -> None:
        """Drop the pending pages, which could not be read; `pages` returns them again."""
        self._reading.clear()

    def loaded(self, partition: int, page: TimersRead, now_ms: int, deciding: Container[Timer], young: Container[str] = ()) -> None:
        """Add the timers of a page, except those in memory. The caller omits timers that have fired.

        Args:
            deciding: timers held by a pending request: they are added frozen.
            young: scheduled ids that no earlier incarnation can have handed out (`engine.core.scheduler.claim_horizon`).
        """
        for timer in page.timers:
            if self._firing.get(timer.sid) is not None:
                self._firing.correct(timer, now_ms, young=timer.sid in young)
            elif not self._firing.is_left_to_storage(timer.key):
                self._firing.add(timer, now_ms, frozen=timer in deciding, young=timer.sid in young)
        asked = self._reading.pop(partition)
        if self._frontiers[partition] == asked.after:  # otherwise it was moved back meanwhile, and timers in between may be missing
            self._frontiers[partition] = (asked.until_ms + 1, "") if page.reached is None else page.reached

    def next_at(self) -> int:
        """The next time to call `pages`, ms; NEVER while memory is full or pages are being read."""
        if self.paused or self._reading or not self._frontiers:
            return NEVER
        return min(self._frontiers.values())[0] - self._config.timer_horizon_ms // 2

    # -- New timers. ---------------------------------------------------------------------------------------------------
    def admit(self, partition: int, timer: Timer, now_ms: int, *, frozen: bool, young: bool) -> None:
        """Add a durable timer to memory if the invariant requires it, or if it is near and memory has room."""
        if self._firing.get(timer.sid) is not None or self._firing.is_left_to_storage(timer.key):
            return
        position = (timer.due_ms, timer.sid)
        if position <= self._frontiers[partition]:
            if self._holds(1.0):
                self._make_room(now_ms)
                if self._holds(1.0):
                    self._put_back(partition, (timer.due_ms, ""))
            if position > self._frontiers[partition]:
                return
        elif timer.due_ms > now_ms + self._config.timer_horizon_ms or self._holds(_FILL_SHARE):
            return
        self._firing.add(timer, now_ms, frozen=frozen, young=young)

    def _make_room(self, now_ms: int) -> None:
        """Evict the least urgent timers: those of shards without a session, then the far ones."""
        self._firing.evict_unreachable()
        cut_ms = max(frontier[0] for frontier in self._frontiers.values())
        while self._holds(_KEEP_SHARE) and cut_ms > now_ms + 1:
            cut_ms = now_ms + (cut_ms - now_ms) // 2
            self._firing.evict_from(cut_ms)
            for partition in self._frontiers:
                self._put_back(partition, (cut_ms, ""))
