"""Signals that only count (views, heat): merged in memory, written in batches, each exactly once.

    add --> gathering --take--> under way --done--> in storage
                                    |--failed--> taken again, unchanged, under its number

Signals are merged per name, so a million views of one post are one number. A batch is taken when it is due or full; one is under way
at a time, and what comes meanwhile gathers for the next. A batch keeps its number and content until storage confirms it, so storage
that remembers the last number it took applies each batch once, whatever answers get lost.

A crash loses what was gathering. A signal is no message: its answer does not promise durability.

Bounds: `names_max` names gather, of one tenant at most as many as are left free: dynamic thresholds (Choudhury, Hahne 1998), by which a
tenant alone has half of them, two a third each, and one that comes later finds room whatever the others do. Signals of names that the batch
has still merge; others are refused then (`add` returns False), and are the caller's to tell.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from engine.core.model.routing import mailbox_key


class CounterBatch(Struct, frozen=True):
    """What to add in storage, by `tenant:name`: `number` grows by one from batch to batch of a writer's epoch."""

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
        self._names_of: Counter[str] = Counter()  # by tenant
        self._crowded = False  # a name had no room
        self._since_ms = 0
        self._under_way: CounterBatch | None = None
        self._failed = False
        self._number = 0

    def add(self, tenant: str, name: str, amount: int, now_ms: int) -> bool:
        """Count a signal of a tenant; False when there is no room for its name."""
        key = mailbox_key(tenant, name)
        if key not in self._sums:
            if self._names_of[tenant] >= self._names_max - len(self._sums):
                self._crowded = True
                return False
            if not self._sums:
                self._since_ms = now_ms
            self._names_of[tenant] += 1
        self._sums[key] = self._sums.get(key, 0) + amount
        return True

    def next_at(self) -> int | None:
        """When `take` has something, ms; None when only `add`, `done` or `failed` can change that."""
        if self._under_way is not None:
            return self._since_ms if self._failed else None
        if not self._sums:
            return None
        return self._since_ms if self._crowded else self._since_ms + self._flush_ms

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
        self._names_of.clear()
        self._crowded = False
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
