"""The book of broadcasts: what is in the log, who is subscribed since when, and who has got what under which number.

Checked: an entry is in the log once, and leaves it only when it has expired or newer ones push it out; a user gets an entry once, in the
log's order, and only what is for everyone or for a topic of theirs. In the end everybody who is connected has got all that concerns them,
or a number that is gone, in place of what has left the log since they got something of it for the first time. A topic that only a token
names concerns its user while a connection with that token lasts, and for what came after its client was welcomed. Such an entry may come
after later ones: the user's other connections may be announced first to a shard that restarted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.core.journal.stored_formats import read_entry
from engine.core.mailbox.broadcast_log import EVERYONE, Broadcast
from tests.sim.windowbook import Broken

LOG_KEY: Final = b"broadcasts:log"

TEAM: Final = "team"
"""The topic that some tokens name. Nobody subscribes to it."""


class Taken:
    """What one user has of the log."""

    def __init__(self) -> None:
        self.seq_of: dict[int, int] = {}  # position -> number
        self.lost = 0  # up to this position, a number that is gone stands for what has left the log
        self.has_tokens = False  # that name TEAM: a device of the user has one
        self.members: dict[str, int] = {}  # connection with such a token -> position after which TEAM concerns it
        self._topics: list[dict[str, int]] = [{}]  # topic -> position from which it counts; as journalled, the last one holds

    @property
    def topics(self) -> dict[str, int]:
        return self._topics[-1]

    def subscribe(self, topics: dict[str, int]) -> None:
        self._topics.append(topics)

    def rolled_back(self) -> None:
        """The newest subscriptions never were."""
        self._topics.pop()


class BroadcastBook:
    """See the module's text."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._by_id: dict[tuple[str, str], int] = {}
        self.entries: dict[int, Broadcast] = {}
        self.live: dict[int, Broadcast] = {}

    def appended(self, pos: int, blob: bytes) -> None:
        """The log has an entry more."""
        entry = self.entries[pos] = self.live[pos] = read_entry(pos, blob)
        if self._by_id.setdefault((entry.topic, entry.envelope.id), pos) != pos:
            raise Broken(f"[5] {entry.envelope.id} is in the broadcast log twice")

    def dropped(self, pos: int, now_ms: int) -> None:
        """An entry left the log."""
        if self.live[pos].expires_ms > now_ms and len(self.live) <= self._entries_max:
            raise Broken(f"[3] {self.live[pos].envelope.id} left the broadcast log, which has room for it")
        del self.live[pos]

    def has(self, topic: str, id: str) -> bool:
        """Was it ever in the log?"""
        return (topic, id) in self._by_id

    def is_gone(self, pos: int) -> bool:
        """Is its body nowhere any more?"""
        return pos > 0 and pos not in self.live

    def take(self, taken: Taken, pos: int, seq: int) -> Broadcast:
        """A user gets an entry."""
        entry = self.entries.get(pos)
        if entry is None:
            raise Broken(f"[2] position {pos} is adopted as {seq}, and the log never had it")
        if pos in taken.seq_of:
            raise Broken(f"[5] {entry.envelope.id} is adopted as {seq}, and was as {taken.seq_of[pos]}")
        is_for_members = taken.has_tokens and entry.topic == TEAM
        if pos < max(taken.seq_of, default=0) and not is_for_members:
            raise Broken(f"order: {entry.envelope.id} is adopted as {seq}, after one that is behind it in the log")
        if pos in self.live and not is_for_members and not _concerns(entry, taken.topics):
            raise Broken(f"{entry.envelope.id} for the topic {entry.topic!r} is adopted by somebody subscribed to {taken.topics}")
        taken.seq_of[pos] = seq
        if pos not in self.live:
            taken.lost = max(taken.lost, pos)
        return entry

    def owed(self, taken: Taken, now_ms: int) -> list[str]:
        """What concerns a connected user and has no number yet, or was lost and no number stands for it."""
        told = max(taken.lost, min(taken.seq_of, default=1 << 60))
        topics = taken.topics
        if taken.members:
            topics = {**topics, TEAM: min(taken.members.values())}
        return [
            entry.envelope.id
            for pos, entry in self.entries.items()
            if pos not in taken.seq_of
            and entry.envelope.retain
            and _concerns(entry, topics)
            and (entry.expires_ms > now_ms if pos in self.live else pos > told)
        ]


def _concerns(entry: Broadcast, topics: Mapping[str, int]) -> bool:
    return entry.topic == EVERYONE or (entry.topic in topics and entry.pos > topics[entry.topic])
