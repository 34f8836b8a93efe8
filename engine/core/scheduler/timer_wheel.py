"""A hierarchical timing wheel: arm and cancel in O(1), whatever the number of timers (Varghese & Lauck, SOSP 1987, scheme 7).

Six levels. A slot of level 0 is one millisecond wide, a slot of level L is 256^L ms wide (256 ms, 65 s, 4.7 h, 50 d, 35 y), so
the wheel reaches thousands of years. The due time and the wheel's own time alone determine the slot of a timer: it is in the lowest
level at which the *parent* slot is the current one or the next one. Every level is therefore a ring of 512 slots, of which one to two
parents' worth is in use. Compared with the textbook's 256-slot ring this has three advantages:

- A parent slot is cascaded to the level below one whole parent width before its first timer is due, so the work of a cascade
  does not delay the timers it moves.
- It is cascaded into empty slots. Slots are insertion-ordered dicts, so timers of one millisecond keep their arming order
  without a sort.
- Timers within the next 65 s are never above level 1: a cascade moves 256 ms worth of timers at most, never a minute's.

An occupancy bitmap per level (one Python int) finds the next occupied slot with a shift and a bit trick, so an empty stretch
of any length costs a few operations.

Only `advance` moves the wheel's time. A timer armed for a time the wheel has passed waits in `_late` and is due at the next
`advance` with a clock at or after that time; a clock stepping back fires nothing early.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final, Generic, TypeVar

from engine.core.model.constants import AT_MAX_MS

K = TypeVar("K", bound=Hashable)

_BITS: Final = 8
_RING: Final = 512  # two parents of 256 slots each
_MASK: Final = _RING - 1
_LEVELS: Final = 6
_LEVEL_RANGE: Final = range(_LEVELS)
_UPPER_LEVELS: Final = range(_LEVELS - 1, 0, -1)
_BIT: Final = tuple(1 << index for index in range(_RING))
_LATE_SPARE: Final = 64  # entries of late timers that are gone, beside as many as there are others
NEVER: Final = 1 << 62
"""A time, ms since the epoch, that does not come."""


def _distance(used: int, position: int) -> int:
    """Distance in slots from `position` to the first occupied slot of a ring, 0 for `position` itself. `used` is not 0."""
    ahead = used >> position
    if ahead:
        return (ahead & -ahead).bit_length() - 1
    return _RING - position + (used & -used).bit_length() - 1


class TimerWheel(Generic[K]):
    """A timing wheel with at most one timer per key.

    Args:
        now_ms: initial time of the wheel, ms since the epoch.

    Memory is two dict entries and one int per timer, about 100 bytes beside the key itself.
    """

    __slots__ = ("_armed", "_cascade_at", "_late", "_late_at", "_late_heap", "_late_number", "_now", "_slots", "_used")

    def __init__(self, now_ms: int) -> None:
        self._now = now_ms
        self._armed: dict[K, int] = {}  # key -> due time, from which `_now` gives the slot
        self._slots: tuple[dict[int, dict[K, int]], ...] = tuple({} for _ in _LEVEL_RANGE)  # per level: ring index -> slot
        self._used = [0] * _LEVELS
        self._cascade_at = NEVER  # lower bound, ms, of the next cascade; may be too early after a cancel
        self._late: dict[K, int] = {}  # timers armed for a time before `_now`, each with a number that grows
        self._late_heap: list[tuple[int, int, K]] = []  # their due times, these numbers and keys; also of some that are gone
        self._late_number = 0
        self._late_at = NEVER  # lower bound of its due times

    def __len__(self) -> int:
        return len(self._armed)

    def __contains__(self, key: object) -> bool:
        return key in self._armed

    def arm(self, key: K, at_ms: int) -> None:
        """Arm `key` for `at_ms`, ms since the epoch; replaces its earlier timer, and sorts behind timers already armed for the same time.

        Raises:
            ValueError: `at_ms` is negative or beyond `AT_MAX_MS`.
        """
        if not 0 <= at_ms <= AT_MAX_MS:
            raise ValueError(f"due time {at_ms} ms is outside 0..{AT_MAX_MS}")
        armed = self._armed
        if key in armed:
            self._take(key, armed.pop(key))
        armed[key] = at_ms
        if at_ms < self._now:
            self._place_late(key, at_ms)
        else:
            self._place(key, at_ms)

    def cancel(self, key: K) -> bool:
        """Remove the timer of `key`. Returns whether there was one."""
        at_ms = self._armed.pop(key, None)
        if at_ms is None:
            return False
        self._take(key, at_ms)
        return True

    def due_ms(self, key: K) -> int | None:
        """Due time of `key`, ms since the epoch; None when it is not armed."""
        return self._armed.get(key)

    def next_at(self) -> int:
        """A lower bound, ms since the epoch, of the first due time; NEVER when nothing is armed.

        It is exact for timers due within about 256 ms. For others it is the time of the next cascade: call `advance` then and
        `next_at` again. A caller that sleeps until the returned time misses no timer.
        """
        if not self._armed:
            return NEVER
        first = self._cascade_at
        used = self._used[0]
        if used:
            first = min(first, self._now + _distance(used, self._now & _MASK))
        return min(first, self._late_at)

    def advance(self, now_ms: int, limit: int | None = None) -> list[K]:
        """Remove and return the keys due at or before `now_ms`: by due time, and by arming order where equal.

        Args:
            limit: maximum number of keys; the others stay armed and come first in the next call.
        """
        due: list[K] = []
        if self._late_at <= now_ms:
            self._advance_late(now_ms, limit, due)
        slots = self._slots[0]
        armed = self._armed
        while limit is None or len(due) < limit:
            used = self._used[0]
            at_ms = self._now + _distance(used, self._now & _MASK) if used else NEVER
            if self._cascade_at <= now_ms and self._cascade_at <= at_ms:
                self._cascade()
                continue
            if at_ms > now_ms:
                self._now = max(self._now, now_ms)
                break
            self._now = at_ms
            index = at_ms & _MASK
            slot = slots[index]
            if limit is not None and len(slot) > limit - len(due):
                keys = list(islice(slot, limit - len(due)))
                for key in keys:
                    del slot[key], armed[key]
            else:
                keys = list(slot)
                for key in keys:
                    del armed[key]
                del slots[index]
                self._used[0] ^= _BIT[index]
            due += keys
        return due

    def _advance_late(self, now_ms: int, limit: int | None, due: list[K]) -> None:
        late, heap = self._late, self._late_heap
        while heap and heap[0][0] <= now_ms and (limit is None or len(due) < limit):
            _, number, key = heappop(heap)
            if late.get(key) == number:
                del late[key], self._armed[key]
                due.append(key)
        self._late_at = heap[0][0] if heap else NEVER

    def _cascade(self) -> None:
        """Advance to `_cascade_at` and cascade, on every level, the slot that follows the current one."""
        self._now = self._cascade_at
        nearest = NEVER
        for level in _UPPER_LEVELS:
            shift = _BITS * level
            unit = self._now >> shift
            following = (unit + 1) & _MASK
            if self._used[level] & _BIT[following]:
                self._pull(level, following)
            used = self._used[level]
            if used:
                nearest = min(nearest, (unit + _distance(used, unit & _MASK) - 1) << shift)
        self._cascade_at = nearest

    def _pull(self, level: int, index: int) -> None:
        """Move the timers of a slot to the level below; all of them fit there, since the slot begins one slot width from now."""
        self._used[level] ^= _BIT[index]
        below = self._slots[level - 1]
        used = self._used[level - 1]
        shift = _BITS * (level - 1)
        for key, at_ms in self._slots[level].pop(index).items():
            to = (at_ms >> shift) & _MASK
            slot = below.get(to)
            if slot is not None:
                slot[key] = at_ms
            else:
                below[to] = {key: at_ms}
                used |= _BIT[to]
        self._used[level - 1] = used

    def _place(self, key: K, at_ms: int) -> None:
        if (at_ms >> _BITS) - (self._now >> _BITS) <= 1:  # `_locate` inlined for the most frequent case, saving a call
            level, index = 0, at_ms & _MASK
        else:
            level, index = self._locate(at_ms)
        slots = self._slots[level]
        slot = slots.get(index)
        if slot is not None:
            slot[key] = at_ms
            return
        slots[index] = {key: at_ms}
        self._used[level] |= _BIT[index]
        if level:
            shift = _BITS * level
            self._cascade_at = min(self._cascade_at, ((at_ms >> shift) - 1) << shift)

    def _place_late(self, key: K, at_ms: int) -> None:
        late, heap = self._late, self._late_heap
        if len(heap) > 2 * len(late) + _LATE_SPARE:
            heap[:] = [entry for entry in heap if late.get(entry[2]) == entry[1]]
            heapify(heap)
        self._late_number += 1
        late[key] = self._late_number
        heappush(heap, (at_ms, self._late_number, key))
        self._late_at = min(self._late_at, at_ms)

    def _locate(self, at_ms: int) -> tuple[int, int]:
        """Level and ring index of a due time that is not before the wheel's own time."""
        now = self._now
        level = 0
        parent = _BITS
        while (at_ms >> parent) - (now >> parent) > 1:
            level += 1
            parent += _BITS
        return level, (at_ms >> (parent - _BITS)) & _MASK

    def _take(self, key: K, at_ms: int) -> None:
        """Remove a timer from its slot, or from `_late`."""
        if at_ms < self._now and self._late.pop(key, None) is not None:
            if not self._late:
                self._late_at = NEVER
                self._late_heap.clear()
            return
        level, index = self._locate(at_ms)
        slot = self._slots[level][index]
        del slot[key]
        if not slot:
            del self._slots[level][index]
            self._used[level] ^= _BIT[index]
