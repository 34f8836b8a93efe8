"""The events of a tenant for consumers: what other streams hold, read by groups, each from a position of its own that is stored.

    sessions        connects, disconnects and presence (`engine.store.external_streams`), one stream for all tenants
    dead_letters    messages that a client refused, and actions that were given up (`engine.features.dead_letters.store`)
    outcomes        what has become of messages, timers and events (`engine.store.outcome_stream`), batches of all tenants; only for groups
                    that ask for it, and where it is recorded: with `history_url`

A `Position` has the id of the last entry of each that was handled, of a batch also how many of its outcomes were, and nothing for outcomes
where they were not asked for. A group that asks for them first later has a position there from then on. It is one text for clients, and
only moves forward: whoever presents one has handled everything up to it, because it began at a position that was stored. So a consumer that
lost its group to another one may still present its position, and nothing is fenced.

It begins with the data epoch (`engine.store.keys.EPOCH_FIELD`). Where storage has lost data, ids may begin anew and nobody knows what is
missing: a position of an older epoch, or one that was stored in it, is answered with a gap of each source, and the group goes on from what
storage has of it. Until a consumer presents a position of the new epoch, these gaps are told again.

A group has one consumer at a time, so that events are handled in order. Who it is:

    nobody --take--> held by A    for `event_lease_ms` since A last took it or acknowledged
    held by A --take by B--> held by A                              B waits
    held by A --A leaves, or its time is over, take by B--> held by B, which begins at the stored position

So A and B handle the same events only when A was silent for longer than the lease. What was handled and not presented before a crash is
handled again, as it is when A returns under its name.

What was trimmed before a group read it is a `Gap`: trimming notes how far it went, and a position before that has missed something (or, if
the entry at the position was the last one trimmed, nothing). Entries that are deleted otherwise, of erased users and settled dead letters,
are no gap. Outcomes that found no room in their stream are one too. What a process had recorded and not appended when it was killed, some
`history_flush_ms` of sends and acknowledgements, nobody knows of.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import redis.asyncio as redis
from msgspec import Struct
from redis.exceptions import RedisError, ResponseError

from engine.config import Config
from engine.core.model.routing import split_key, topic_of
from engine.core.wire.outcomes import ERASED, Outcome
from engine.errors import Invalid, StorageUnavailable
from engine.features.dead_letters.store import StoredLetter, stored_letter
from engine.features.event_groups.keys import event_groups_key
from engine.store.keys import EPOCH_FIELD, META_KEY, OUTCOME_STREAM_KEY, SESSION_STREAM_KEY, dead_letter_key, trimmed_mark_key
from engine.store.lua import Script
from engine.store.outcome_members import members_of, outcome_id
from engine.store.outcome_stream import OutcomeBatch, stored_batch, want_outcomes
from engine.store.storage_calls import StorageCalls

_TAKE = Script.beside(__file__, "event_group_take")

SOURCES: Final = ("sessions", "dead_letters", "outcomes")
"""In the order of their parts in a position; more may follow."""

_ALWAYS: Final = 2
"""The first so many sources are of every group."""

_OUTCOMES: Final = SOURCES.index("outcomes")

_OF_SESSIONS: Final = frozenset({"connect", "disconnect", "suspect", "back", "offline"})
"""Recorded as outcomes too."""

_LETTERS: Final = 50
"""Dead letters read at once, up to 70 KB each."""

_BATCHES: Final = 4
"""Batches of outcomes read at once: up to 8000 outcomes, some 10 ms of an edge."""

_PART: Final = r"[0-9]{1,15}-([0-9]{1,19}|1[0-7][0-9]{18}|18446744073709551615)"  # below 2**64, what Redis takes and `_before` makes
_POSITION: Final = re.compile(rf"([0-9a-z]{{1,16}}\.)?{_PART}\.{_PART}(\.{_PART}(-[0-9]{{1,9}})?)?")
_OLDEST: Final = "0-0"
_EMPTY: Final = "0-1"  # before everything, of a stream that was empty: from it on, everything counts as missed when it is trimmed
_NUMBER_MAX: Final = (1 << 64) - 1


class Position(Struct, frozen=True):
    """How far each stream was read: ids of entries, in the order of `SOURCES`; the third may be absent.

    The third may end with `-` and a number: so many of the outcomes of that batch were handled, otherwise all.

    Attributes:
        epoch: of the data that have these ids; "" where nothing of the new epoch was handled.
    """

    parts: tuple[str, ...]
    epoch: str = ""

    def __str__(self) -> str:
        return ".".join((self.epoch, *self.parts) if self.epoch else self.parts)

    def without_outcomes(self) -> Position:
        """This position, of a consumer that does not ask for outcomes."""
        return Position(self.parts[:_ALWAYS], self.epoch)

    def moved(self, source: int, part: str) -> Position:
        """This position with another part."""
        return Position((*self.parts[:source], part, *self.parts[source + 1 :]), self.epoch)


def parse_position(text: str) -> Position:
    """A position from its text. Raises Invalid."""
    if not _POSITION.fullmatch(text):
        raise Invalid("what an answer had as `position` is needed", "position")
    epoch, *parts = text.split(".")
    return Position((epoch, *parts)) if "-" in epoch else Position(tuple(parts), epoch)


class PresenceEvent(Struct, frozen=True):
    """An event of `session:stream`; what its members mean is in docs/PROTOCOL-RECEIVING.md."""

    event: str
    at: int
    user: str
    session: str
    device: str
    node: str
    transport: str
    code: int


class OutcomeEvent(Struct, frozen=True):
    """What has become of something. `members` are those of a row of the history that apply, by their columns; `user` is "" for many."""

    id: bytes
    at_ms: int
    user: str
    members: dict[str, Any]


class Gap(Struct, frozen=True):
    """Entries of a source may have been lost unread, behind `since` and before `until`: ids of entries."""

    source: str
    since: str
    until: str


class GroupEvent(Struct, frozen=True):
    """Something that happened, and the position behind it."""

    what: PresenceEvent | StoredLetter | OutcomeEvent | Gap
    position: Position


class Look(Struct, frozen=True):
    """Some events. `position` is behind all that was looked at; `more`: others follow at once."""

    events: list[GroupEvent]
    position: Position
    more: bool


class Taken(NamedTuple):
    """Who has a group now, "" for nobody, and its position; `lost`: events of an older data epoch may be missing before it."""

    consumer: str
    position: Position
    lost: bool


class EventGroup(Struct, frozen=True):
    """A group: its position, the consumer that holds it, "" for none, and by how much each stream is ahead of it, in milliseconds."""

    group: str
    position: Position
    held_by: str
    behind_ms: dict[str, int]


class EventStreams:
    """The groups and their events, for edges.

    Args:
        wall_ms: milliseconds since the epoch.
    """

    def __init__(self, client: redis.Redis, config: Config, wall_ms: Callable[[], int]) -> None:
        self._client = client
        self._config = config
        self._wall_ms = wall_ms

    async def take(
        self,
        tenant: str,
        group: str,
        consumer: str,
        reached: Position | None = None,
        *,
        oldest: bool = False,
        leave: bool = False,
        outcomes: bool = False,
    ) -> Taken | None:
        """Store how far a consumer has come, and take the group for it; a group that is not known is made.

        Args:
            reached: everything up to it was handled.
            oldest: a new group begins with the oldest events there are, else with those that come.
            leave: give the group up instead.
            outcomes: the consumer reads outcomes too, as one does that has a position among them; the position that is returned has a
                part for them then, and only then.

        Returns:
            None: the tenant has `event_groups_max` others.

        Raises StorageUnavailable.
        """
        outcomes = outcomes or (reached is not None and len(reached.parts) > _ALWAYS)
        sources = len(SOURCES) if outcomes else _ALWAYS
        if outcomes:  # before the position is taken, so that nothing behind it is deleted
            await want_outcomes(self._client, self._wall_ms() + self._config.outcomes_kept_ms)
        epoch = await self._epoch()
        begin = [_OLDEST] * sources if oldest else await self._newest(tenant, sources)
        lease_ms = 0 if leave else self._config.event_lease_ms
        given = [*(reached.parts if reached else ()), *[""] * len(SOURCES)][:sources]
        epochs = epoch, reached.epoch if reached else ""
        arguments = [group, consumer, lease_ms, self._config.event_groups_max, sources, *epochs, *given, *begin]
        reply = await _TAKE.run(self._client, [event_groups_key(tenant)], arguments)
        if reply[0] == b"FULL":
            return None
        return Taken(reply[1].decode(), Position(tuple(part.decode() for part in reply[2:]), epoch), reply[0] == b"ANEW")

    async def _epoch(self) -> str:
        with StorageCalls("events"):
            epoch: Any = await self._client.hget(META_KEY, EPOCH_FIELD)
        return epoch.decode() if epoch else ""

    async def look(self, tenant: str, position: Position, count: int) -> Look:
        """Up to `count` events of the tenant behind a position, of each stream in its order. Raises StorageUnavailable."""
        streams = _streams(tenant)[: len(position.parts)]
        limits = (count, min(count, _LETTERS), _BATCHES)[: len(streams)]
        with StorageCalls("events"):
            pipeline = self._client.pipeline(transaction=True)  # between the two, what is trimmed would be lost without a gap
            for stream in streams:
                pipeline.get(trimmed_mark_key(stream))
            for stream, part, limit in zip(streams, position.parts, limits, strict=True):
                begun = _begun(part)
                pipeline.xrange(stream, begun or f"({part}", "+", limit)
            replies: list[Any] = await pipeline.execute()
        marks, entries = replies[: len(streams)], replies[len(streams) :]
        found: list[GroupEvent] = []
        for source, mark in enumerate(marks):
            part = position.parts[source]
            if mark is not None and part != _OLDEST and _order(part) < _order(before := _before(mark.decode())):
                position = position.moved(source, before)
                found.append(GroupEvent(Gap(SOURCES[source], part, mark.decode()), position))
                if len(found) == count:
                    return Look(found, position, True)
        more = any(len(some) == limit for some, limit in zip(entries, limits, strict=True))
        merged = sorted(
            ((_order(entry.decode()), source, entry.decode(), fields) for source, some in enumerate(entries) for entry, fields in some),
            key=lambda one: one[:2],
        )
        wanted = tenant.encode()
        for _, source, entry, fields in merged:
            if source == _OUTCOMES:
                position = _add_outcomes(found, position, tenant, stored_batch(entry, fields), count)
            else:
                position = position.moved(source, entry)
                if source:
                    found.append(GroupEvent(stored_letter(tenant, entry, fields), position))
                elif fields.get(b"tenant") == wanted:
                    found.append(GroupEvent(_presence(fields), position))
            if len(found) >= count:
                return Look(found, position, True)
        return Look(found, position, more)

    async def groups(self, tenant: str) -> list[EventGroup]:
        """The tenant's groups, by name. Raises StorageUnavailable."""
        with StorageCalls("groups of consumers"):
            stored: Any = await self._client.hgetall(event_groups_key(tenant))
        fields = {name.decode(): value.decode() for name, value in stored.items()}
        ends, now_ms = [await self._ends(stream) for stream in _streams(tenant)], self._wall_ms()
        found = []
        for group in sorted({name.partition(" ")[0] for name in fields}):
            fields_of = (fields.get(f"{group} at {number}", "") for number in range(1, len(SOURCES) + 1))
            parts = tuple(part for part in fields_of if part)
            until_ms, _, consumer = fields.get(f"{group} by", "0 ").partition(" ")
            behind = {
                source: max(0, _order(last)[0] - (_order(part)[0] or _order(first)[0]))
                for source, (first, last), part in zip(SOURCES, ends, parts, strict=False)
            }
            found.append(EventGroup(group, Position(parts), consumer if int(until_ms) > now_ms else "", behind))
        return found

    async def drop(self, tenant: str, group: str) -> bool:
        """Forget a group; returns whether there was one. Raises StorageUnavailable."""
        names = [f"{group} by", f"{group} of", *(f"{group} at {number}" for number in range(1, len(SOURCES) + 1))]
        with StorageCalls("groups of consumers"):
            return bool(await self._client.hdel(event_groups_key(tenant), *names))

    async def _newest(self, tenant: str, sources: int) -> list[str]:
        """The ids of the last entries that each of the first so many streams had."""
        return [(await self._ends(stream))[1] for stream in _streams(tenant)[:sources]]

    async def _ends(self, stream: str) -> tuple[str, str]:
        """The ids of the first entry of a stream, and of the last one that it had; of an empty one both are of the last."""
        try:
            info: Any = await self._client.xinfo_stream(stream)
        except ResponseError as error:
            if str(error).startswith("no such key"):
                return _EMPTY, _EMPTY
            raise StorageUnavailable(f"events: {error}") from error
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"events: {error}") from error
        last = str(info["last-generated-id"].decode())
        if last == _OLDEST:
            last = _EMPTY  # made with a group of readers, and empty so far
        return info["first-entry"][0].decode() if info["first-entry"] else last, last


def gaps_of(taken: Taken, reached: Position | None) -> Look:
    """What a consumer is told whose group has lost events of an older data epoch; `reached`: what it had handled.

    Only behind the last one it has been told all, so only that position is of the new epoch.
    """
    last = taken.position
    since = reached.parts if reached else last.parts
    before = Position(last.parts)
    gaps = [Gap(source, begun, until) for source, begun, until in zip(SOURCES, since, last.parts, strict=False)]
    return Look([*(GroupEvent(gap, before) for gap in gaps[:-1]), GroupEvent(gaps[-1], last)], last, True)


def _streams(tenant: str) -> tuple[str, ...]:
    return SESSION_STREAM_KEY, dead_letter_key(tenant), OUTCOME_STREAM_KEY


def _order(part: str) -> tuple[int, int, float]:
    at_ms, number, *handled = part.split("-")
    return int(at_ms), int(number), int(handled[0]) if handled else math.inf


def _begun(part: str) -> str:
    """The entry of which a part only was handled, "" for none."""
    return part.rpartition("-")[0] if part.count("-") == 2 else ""


def _before(entry: str) -> str:
    """The id right before this one."""
    at_ms, number, _ = _order(entry)
    return f"{at_ms}-{number - 1}" if number else f"{at_ms - 1}-{_NUMBER_MAX}"


def _add_outcomes(found: list[GroupEvent], position: Position, tenant: str, batch: OutcomeBatch, count: int) -> Position:
    """Add the tenant's outcomes of a batch that are behind the position, until `count` events are found. Returns how far that is."""
    part = position.parts[_OUTCOMES]
    handled = 0
    if _begun(part) == batch.entry:
        handled = int(part.rpartition("-")[2])
    elif batch.lost or batch.outcomes is None:
        position = position.moved(_OUTCOMES, f"{batch.entry}-0")
        found.append(GroupEvent(Gap("outcomes", part, batch.entry), position))
    for number, outcome in enumerate(batch.outcomes or (), 1):
        if number <= handled or split_key(outcome.key)[0] != tenant:
            continue
        if type(outcome) is Outcome and (outcome.event in _OF_SESSIONS or outcome.event == ERASED):
            continue
        if len(found) >= count:
            return position
        members = {name: value for name, value in members_of(outcome).items() if value not in ("", None)}
        user, topic = split_key(outcome.key)[1], topic_of(outcome.key)
        if topic is not None:
            user, members["reason"] = "", f"topic: {topic}" if topic else "everyone"
        position = position.moved(_OUTCOMES, f"{batch.entry}-{number}")
        identity = outcome_id(outcome, batch.source, batch.number + number - 1)
        found.append(GroupEvent(OutcomeEvent(identity, outcome.at_ms, user, members), position))
    return position.moved(_OUTCOMES, batch.entry)


def _presence(fields: Mapping[bytes, bytes]) -> PresenceEvent:
    """The event of an entry; as far as it can be read, where it is damaged."""

    def text(name: bytes) -> str:
        return fields.get(name, b"").decode(errors="replace")

    def number(name: bytes) -> int:
        digits = fields.get(name, b"")
        return int(digits) if digits.isdigit() else 0

    return PresenceEvent(
        event=text(b"event"),
        at=number(b"at"),
        user=text(b"user"),
        session=text(b"session"),
        device=text(b"device"),
        node=text(b"node"),
        transport=text(b"transport"),
        code=number(b"code"),
    )
