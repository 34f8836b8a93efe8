"""How many messages a second each slot of a shard gets: a sample, which moving slots between shards goes by.

Of a group with more than `COUNTED_MAX` records every second is counted, twice, or every third, three times, and so on; of a small group, as
they are while a shard has little to do, all. So a group costs some 2 us at most, and a plan made after a few seconds goes by hundreds of
messages. What is counted decays exponentially with `HALF_LIFE_MS`: the sum of what a steady rate leaves behind is that rate times the mean
lifetime.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Final

from engine.core.journal.journal_records import Record, StoredMessage
from engine.core.model.routing import slot_of

COUNTED_MAX: Final = 8
HALF_LIFE_MS: Final = 60_000

_DECAY_MS: Final = 5000
"""Between two decays of all counts: 0.1 ms of the shard for a thousand slots."""

_SCATTERED: Final = 0x9E3779B1
"""Multiplies the number of a group for where in it the counting begins (Knuth's multiplicative hash): a sender's habit, such as a batch in
the same order each time, must not decide who is counted."""

_NOTHING: Final = 0.01
"""A count below it is dropped."""

_LIFETIME_S: Final = HALF_LIFE_MS / 1000 / log(2)


class SlotLoads:
    """Of one shard. A clock that goes back ends no count."""

    __slots__ = ("_counts", "_decayed_ms", "_groups")

    def __init__(self) -> None:
        self._groups = 0
        self._counts: dict[int, float] = {}
        self._decayed_ms = 0

    def committed(self, records: Sequence[Record], now_ms: int) -> None:
        if now_ms - self._decayed_ms >= _DECAY_MS:
            self._decay(now_ms)
        step = (len(records) + COUNTED_MAX - 1) // COUNTED_MAX or 1
        self._groups += 1
        counts = self._counts
        for record in records[(self._groups * _SCATTERED >> 16) % step :: step]:
            if type(record) is StoredMessage:
                slot = slot_of(record.key)
                counts[slot] = counts.get(slot, 0.0) + step

    def per_s(self, now_ms: int) -> dict[int, float]:
        """Messages per second, by slot."""
        self._decay(now_ms)
        return {slot: count / _LIFETIME_S for slot, count in self._counts.items()}

    def _decay(self, now_ms: int) -> None:
        left = 0.5 ** (max(now_ms - self._decayed_ms, 0) / HALF_LIFE_MS)
        self._decayed_ms = now_ms
        self._counts = {slot: count * left for slot, count in self._counts.items() if count * left > _NOTHING}
