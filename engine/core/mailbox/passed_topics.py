"""What a mailbox has passed in the broadcast log without a topic that only a token names.

Such a topic counts while a connection with the token is attached. Where another connection of the user stays, or is announced first to a
shard that restarted, the mailbox goes on through the log without the topic. A client whose connection is announced again was there all the
time, and is owed what has passed: its mailbox adopts that before anything else (`engine.core.commit.broadcast_step`).

Of each topic, ranges of the log are remembered. A range leaves as it is adopted. The last range is open while no connection names the
topic; it closes when one does. All of this ends with the shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

TOPICS_MAX: Final = 1000
"""Topics of a mailbox of which something passes, some 200 bytes each: as many as a token may name. Beyond it the oldest is forgotten, with
what is owed of it."""

RANGES_MAX: Final = 4
"""Ranges of a topic. Beyond it the two oldest become one, and what was adopted between them may be adopted again."""

Range = tuple[int, int]
"""Of positions: what came after the first, up to the second."""

_OPEN: Final = 1 << 62


class PassedTopics:
    """Of one mailbox."""

    __slots__ = ("_forgotten", "_ranges")

    def __init__(self) -> None:
        self._ranges: dict[str, list[Range]] = {}  # ascending, apart
        self._forgotten = 0  # up to this position nothing is owed of an unknown topic

    def __len__(self) -> int:
        return len(self._ranges)

    def left(self, topic: str, pos: int) -> None:
        """From this position on the topic passes."""
        self._ranges[topic] = self._ranges.pop(topic, [])  # at the end: the newest
        self.add(topic, pos, _OPEN)
        if len(self._ranges) > TOPICS_MAX:
            del self._ranges[next(iter(self._ranges))]
            self._forgotten = pos

    def counts(self, topic: str, first: int, pos: int) -> None:
        """From this position on the topic counts. `first`: where a topic that is unknown began to pass."""
        ranges = self._ranges.get(topic) or [(max(first, self._forgotten), _OPEN)]
        self._keep(topic, [(first, min(last, pos)) for first, last in ranges if first < pos])

    def add(self, topic: str, first: int, last: int) -> None:
        """This range, which begins in or behind the last one, passes."""
        ranges = self._ranges.setdefault(topic, [])
        if ranges and ranges[-1][1] >= first:
            first, before = ranges.pop()
            last = max(last, before)
        ranges.append((first, last))
        if len(ranges) > RANGES_MAX:
            ranges[:2] = [(ranges[0][0], ranges[1][1])]

    def remove(self, topic: str, first: int, last: int) -> None:
        """This range is adopted."""
        left: list[Range] = []
        for start, end in self._ranges.get(topic, ()):
            left += [part for part in ((start, min(end, first)), (max(start, last), end)) if part[0] < part[1]]
        self._keep(topic, left)

    def adopted(self, owed: Mapping[str, Sequence[Range]], upto: int) -> None:
        """Of these ranges everything up to a position is adopted."""
        for topic, ranges in owed.items():
            for first, last in ranges:
                if first < upto:
                    self.remove(topic, first, min(last, upto))

    def after(self, topic: str, pos: int) -> list[Range]:
        """What has passed of a topic that counts, after this position."""
        return [(max(first, pos), last) for first, last in self._ranges.get(topic, ()) if last > pos]

    def forget(self, topic: str) -> None:
        """Nothing is owed of the topic, which counts."""
        self._ranges.pop(topic, None)

    def _keep(self, topic: str, ranges: list[Range]) -> None:
        if ranges:
            self._ranges[topic] = ranges
        else:
            self._ranges.pop(topic, None)
