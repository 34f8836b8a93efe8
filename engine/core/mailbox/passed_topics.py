"""What a mailbox has passed in the broadcast log without a topic that only a token names.

Such a topic counts while a connection with the token is attached. Where another connection of the user stays, or is announced first to a
shard that restarted, the mailbox goes on through the log without the topic. A client whose connection is announced again was there all the
time, and is owed what has passed: its mailbox adopts that before anything else (`engine.core.commit.broadcast_step`).

States of a topic of a mailbox; they end with the shard
    unknown   it counts, or no connection has named it here
    open      its last connection has left; what comes after `first` passes
    closed    it counts again; what came after `first`, up to `last`, has passed
    claimed   closed, and a connection that began at `since` is announced again: what came after both is owed

A group that is under way when the topic leaves may adopt what comes after `first`. So of what is owed the mailbox adopts nothing whose id
it remembers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

TOPICS_MAX: Final = 1000
"""Topics of a mailbox of which something passes, some 200 bytes each: as many as a token may name. Beyond it the oldest is forgotten, with
what is owed of it."""

_NEVER: Final = 1 << 62


class Passed(Struct):
    """Of one topic, as positions of the log."""

    first: int
    last: int = _NEVER  # while it is open
    since: int = _NEVER  # until it is claimed


class PassedTopics:
    """Of one mailbox."""

    __slots__ = ("_forgotten", "_topics")

    def __init__(self) -> None:
        self._topics: dict[str, Passed] = {}
        self._forgotten = 0  # up to this position nothing is owed of an unknown topic

    def left(self, topic: str, pos: int) -> None:
        """From this position on the topic passes."""
        before = self._topics.pop(topic, None)
        self._topics[topic] = Passed(pos if before is None else min(pos, before.since))
        if len(self._topics) > TOPICS_MAX:
            del self._topics[next(iter(self._topics))]
            self._forgotten = pos

    def joined(self, topic: str, first: int, pos: int) -> None:
        """From this position on the topic counts. `first`: where a topic that is unknown began to pass."""
        passed = self._topics.pop(topic, None) or Passed(max(first, self._forgotten))
        passed.last = min(passed.last, pos)
        if passed.first < passed.last:
            self._topics[topic] = passed

    def claim(self, topics: Iterable[str], since: int) -> None:
        """A connection that names the topics is announced again; it began at `since`."""
        for topic in topics:
            passed = self._topics.get(topic)
            if passed is not None:
                passed.since = min(passed.since, max(since, passed.first))

    def owed(self) -> dict[str, tuple[int, int]]:
        """The topics of which something is owed: what came after the first position, up to the second."""
        return {topic: (passed.since, passed.last) for topic, passed in self._topics.items() if passed.since < passed.last < _NEVER}

    def adopted(self, topics: Iterable[str], upto: int) -> None:
        """What was owed of these topics up to this position has been adopted."""
        for topic in topics:
            passed = self._topics.get(topic)
            if passed is None or passed.last == _NEVER:
                continue  # it has left meanwhile
            if upto >= passed.last:
                del self._topics[topic]
            else:
                passed.since = max(passed.since, upto)
