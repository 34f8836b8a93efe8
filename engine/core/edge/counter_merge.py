"""Signals that only count (views, heat): merged in memory, written in batches, each exactly once.

    add --> gathering --take--> under way --done--> in storage
                                    |--failed--> taken again, unchanged, under its number

Signals are merged per name, so a million views of one post are one number. A batch is taken when it is due or full; one is under way
at a time, and what comes meanwhile gathers for the next. A batch keeps its number and content until storage confirms it, so storage
that remembers the last number it took applies each batch once, whatever answers get lost.

A crash loses what was gathering. A signal is no message: its answer does not promise durability.

Bounds: `names_max` names gather; then the batch is full. While it cannot be taken either, because another is under way, signals
of names it has still merge, others are refused (`add` returns False) and are the caller's to count as dropped.
"""

from __future__ import annotations

from msgspec import Struct


class CounterBatch(Struct, frozen=True):
    """What to add in storage: `number` grows by one from batch to batch of a writer's epoch."""

    number: int
    sums: dict[str, int]


class CounterMerge:
    """The signals of one writer.

    Args:
        names_max: different names in one batch.
        flush_ms: a batch is due this long after its first signal.
    """

    def __init__(self, names_max: int, flush_ms: int) -> None:
        self._names_max = names_max
        self._flush_ms = flush_ms
        self._sums: dict[str, int] = {}
        self._since_ms = 0
        self._under_way: CounterBatch | None = None
        self._failed = False
        self._number = 0

    def add(self, name: str, amount: int, now_ms: int) -> bool:
        """Count a signal; False when there is no room for its name."""
        if name not in self._sums:
            if len(self._sums) >= self._names_max:
                return False
            if not self._sums:
                self._since_ms = now_ms
        self._sums[name] = self._sums.get(name, 0) + amount
        return True

    def next_at(self) -> int | None:
        """When `take` has something, ms; None when only `add`, `done` or `failed` can change that."""
        if self._under_way is not None:
            return self._since_ms if self._failed else None
        if not self._sums:
            return None
        return self._since_ms if len(self._sums) >= self._names_max else self._since_ms + self._flush_ms

    def take(self, now_ms: int) -> CounterBatch | None:
        """The batch to write now; answer with `done` or `failed`. None while nothing is due, or one is under way."""
        if self._under_way is not None:
            if not self._failed:
                return None
            self._failed = False
            return self._under_way
        at_ms = self.next_at()
        if at_ms is None or at_ms > now_ms:
            return None
        self._number += 1
        self._under_way, self._sums = CounterBatch(self._number, self._sums), {}
        return self._under_way

    def done(self) -> None:
        """Storage has the batch."""
        assert self._under_way is not None, "no batch is under way"
        self._under_way = None
        self._failed = False

    def failed(self) -> None:
        """No answer: storage may have the batch or not. `take` gives the same one again."""
        assert self._under_way is not None, "no batch is under way"
        self._failed = True
