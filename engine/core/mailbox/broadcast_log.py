"""In-memory mirror of the broadcast log in a shard.

A message for everyone, or for the subscribers of a topic, is stored once: as one entry of one log, which all tenants and shards share.
An entry's position is its Redis clock's microseconds, made strictly increasing (`store/scripts/broadcast_log/append.lua`), so a
position is never assigned again, not even by a server that has lost the end of the log.

The log is small by construction (`broadcasts_max` entries, `broadcasts_bytes_max` bytes; the oldest of the tenant with the largest
part is evicted first), so each shard mirrors all of it: delivery needs no read on demand, and a body is in memory once for all mailboxes
that adopted it.
An entry is in exactly one state:

    ahead     in Redis, not yet read by this shard
    held      mirrored here
    dropped   expired, or evicted by newer ones: lost for mailboxes that have not adopted it, and for those that store only
              its position; all of them receive a gap notice

Of each tenant's topic the newest retained entry that was dropped is known (`lost_after`): one lost entry stands for all before it.

A shard reads the log from its beginning at its start, then follows its end. A crash loses the mirror, never the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import Any, Final

import msgspec
from msgspec import Struct

from engine.core.model.constants import LOW, TS_MS_MAX
from engine.core.model.envelope import Envelope
from engine.core.model.message import SharedBody
from engine.core.model.sealed import sealed

EVERYONE: Final = ""
"""The topic of a broadcast to all users."""


Channel = tuple[str, str]
"""A tenant and one of its topics."""


class BroadcastEntry(Struct, array_like=True, gc=False):
    """One broadcast as stored in the log. Times in ms since the epoch."""

    tenant: str
    topic: str  # EVERYONE, or the topic with the subscribers that receive it
    envelope: Envelope  # `retain` False: only for users with a connection when it is read from the log
    expires_ms: int
    accepted_ms: int


class Broadcast(Struct, gc=False):
    """A held entry. The body of its envelope is a `SharedBody`."""

    pos: int
    tenant: str
    topic: str
    envelope: Envelope
    expires_ms: int
    accepted_ms: int
    facts: Any = None  # for the judge, which computes them when first needed


LOST: Final = Envelope("", b"", LOW, True, b"")
"""Of an entry that was dropped."""


def encode_entry(entry: BroadcastEntry) -> bytes:
    """Encode an entry for the log; `engine.core.journal.stored_formats.read_entry` is the inverse."""
    return sealed(_encode(entry))


def broadcast_of(pos: int, entry: BroadcastEntry) -> Broadcast:
    """Return the entry at a position in the form the mirror holds."""
    envelope = msgspec.structs.replace(entry.envelope, body=SharedBody.at(pos, entry.envelope.body))
    return Broadcast(pos, entry.tenant, entry.topic, envelope, entry.expires_ms, entry.accepted_ms)


def lost_at(pos: int) -> Broadcast:
    """In place of entries that were lost, up to this position."""
    return Broadcast(pos, "", EVERYONE, LOST, TS_MS_MAX, 0)


_encode: Final = msgspec.msgpack.Encoder().encode


_LOST_MAX: Final = 20_000
"""Topics whose newest lost entry is known, some 200 bytes each; beyond it the older half is forgotten, and `horizon` rises."""


class BroadcastMirror:
    """The mirror.

    Attributes:
        head: the position read last; all log entries up to it are held.
        lost_head: the position of the newest entry that was lost, of whatever topic.
        newest_urgent: of each topic with entries, the position of its newest one of more than low priority, which may have been dropped.
    """

    def __init__(self) -> None:
        self.head = 0
        self.lost_head = 0
        self.newest_urgent: dict[Channel, int] = {}
        self._lost: dict[Channel, int] = {}
        self._horizon = 0  # losses up to it may be forgotten
        self._entries: dict[int, Broadcast] = {}  # by position, ascending
        self._channels: dict[Channel, list[Broadcast]] = {}  # by tenant and topic, each ascending

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, broadcasts: Iterable[Broadcast]) -> list[Broadcast]:
        """Add entries in ascending order; skips those at or before the head. Returns the new ones."""
        fresh = []
        for broadcast in broadcasts:
            if broadcast.pos > self.head:
                self.head = broadcast.pos
                self._entries[broadcast.pos] = broadcast
                channel = (broadcast.tenant, broadcast.topic)
                self._channels.setdefault(channel, []).append(broadcast)
                if broadcast.envelope.priority != LOW:
                    self.newest_urgent[channel] = broadcast.pos
                fresh.append(broadcast)
        return fresh

    def get(self, pos: int) -> Broadcast | None:
        """Return the entry at a position; None when it is not held."""
        return self._entries.get(pos)

    def after(self, tenant: str, topic: str, pos: int) -> list[Broadcast]:
        """Return the entries of one topic after a position, ascending."""
        channel = self._channels.get((tenant, topic))
        if channel is None or channel[-1].pos <= pos:
            return []
        if len(channel) == 1 or channel[-2].pos <= pos:  # fast path for nearly every call
            return channel[-1:]
        return channel[bisect_right(channel, pos, key=_position) :]

    def expired(self, now_ms: int) -> list[int]:
        """Return the positions of held entries that have expired."""
        return [pos for pos, broadcast in self._entries.items() if broadcast.expires_ms <= now_ms]

    def not_among(self, positions: Iterable[int]) -> list[int]:
        """The positions of held entries that are none of these and not beyond the last of them."""
        there = set(positions)
        last = max(there, default=0)
        return [pos for pos in self._entries if pos not in there and pos <= last]

    def drop(self, positions: Iterable[int]) -> None:
        """Remove entries that were dropped from the log; ignores positions that are not held."""
        touched = set()
        for pos in positions:
            broadcast = self._entries.pop(pos, None)
            if broadcast is not None:
                touched.add((broadcast.tenant, broadcast.topic))
                if broadcast.envelope.retain:
                    self.lose(broadcast.tenant, broadcast.topic, pos)
        for name in touched:
            left = [broadcast for broadcast in self._channels[name] if broadcast.pos in self._entries]
            if left:
                self._channels[name] = left
            else:
                del self._channels[name]
                self.newest_urgent.pop(name, None)

    def lose(self, tenant: str, topic: str, pos: int) -> bool:
        """A retained entry of this topic was dropped from the log. Returns whether no later one was."""
        channel = (tenant, topic)
        if pos <= self._lost.get(channel, 0):
            return False
        self._lost[channel] = pos
        self.lost_head = max(self.lost_head, pos)
        if len(self._lost) > _LOST_MAX:
            kept = sorted(self._lost.items(), key=itemgetter(1))[_LOST_MAX // 2 :]
            self._lost = dict(kept)
            self.forget(kept[0][1] - 1)
        return True

    def forget(self, horizon: int) -> None:
        """Losses up to this position may be forgotten."""
        self._horizon = max(self._horizon, horizon)
        self.lost_head = max(self.lost_head, horizon)

    def lost_after(self, tenant: str, topic: str, pos: int) -> list[Broadcast]:
        """The newest entry of one topic that was lost, if it is after this position. What is forgotten counts as one for everyone."""
        found = max(self._lost.get((tenant, topic), 0), self._horizon if topic == EVERYONE else 0)
        return [lost_at(found)] if found > pos else []

    def drop_before(self, first: int) -> None:
        """Remove the entries before `first`, the first position now in the log."""
        gone = []
        for pos in self._entries:
            if pos >= first:
                break
            gone.append(pos)
        if gone:
            self.drop(gone)


def _position(broadcast: Broadcast) -> int:
    return broadcast.pos


class BodyCache:
    """The broadcast bodies an edge holds for one link session, so that a body is sent once per edge and not once per connection.

    Both ends keep one and apply the same records in the same order, so the shard can derive what the edge holds: `Shared`
    adds a body, and the oldest are evicted when their sum exceeds `bytes_max`. A single body may exceed it.
    """

    __slots__ = ("_bodies", "_bytes", "_bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self._bodies: dict[int, bytes] = {}
        self._bytes = 0
        self._bytes_max = bytes_max

    def __contains__(self, pos: int) -> bool:
        return pos in self._bodies

    def __getitem__(self, pos: int) -> bytes:
        """Raises KeyError when the body is not held."""
        return self._bodies[pos]

    def put(self, pos: int, body: bytes) -> None:
        """Store the body of a position as the newest, evicting the oldest bodies beyond `bytes_max`."""
        bodies = self._bodies
        self._bytes += len(body) - len(bodies.pop(pos, b""))
        while bodies and self._bytes > self._bytes_max:
            self._bytes -= len(bodies.pop(next(iter(bodies))))
        bodies[pos] = body
