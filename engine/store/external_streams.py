"""The stream for other systems: connects, disconnects and presence of all users.

It is bounded, and the oldest entries go; how far they went is noted, for groups of consumers.

With the presence goes the set of users who are online, for the successor of a shard: a user whose event is lost because storage was away
for long is told offline by a later successor, or is not told.

The stream is in the first store. When slots move while that one is away, their events that are not written go to the new owner
through the store of the slots:

    in memory of the source --with the slot map--> stored --`forget_handed`--> in memory of the target --> in the stream

They are in one place at a time, so that none is written twice. A crash loses those in memory, as ever. Where they are stored they have a
checksum; damaged ones are lost, and logged.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

import msgspec
import redis.asyncio as redis
from msgspec import Struct

from engine.core.model.routing import slot_of, split_key
from engine.core.model.sealed import sealed, unsealed
from engine.core.shard.output import SessionEvent
from engine.core.wire.records import TRANSPORTS, UNREADABLE
from engine.store.keys import SESSION_STREAM_KEY, handed_events_key, online_key, trimmed_mark_key
from engine.store.lua import Script
from engine.store.storage_calls import StorageCalls

log = logging.getLogger(__name__)

_TRIM = Script("stream_trim")

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[SessionEvent])


async def trim_external(
    client: redis.Redis, stream: str, entries_max: int, added: int, bytes_max: int = 0, entry_bytes_max: int = 1
) -> None:
    """Trim a stream that other systems read to about so many entries and bytes (0: no limit). `added`: as many were just appended.

    Raises StorageUnavailable.
    """
    count_min = bytes_max // entry_bytes_max
    await _TRIM.run(client, [stream, trimmed_mark_key(stream)], [entries_max, bytes_max, count_min, added])


async def trim_session_events(client: redis.Redis, length_max: int, added: int) -> None:
    """Trim `session:stream` to about so many entries. `added`: as many were just appended. Raises StorageUnavailable."""
    await trim_external(client, SESSION_STREAM_KEY, length_max, added)


async def write_session_events(client: redis.Redis, events: Sequence[SessionEvent], *, own: redis.Redis | None = None) -> None:
    """Append events to `session:stream`: event, tenant, user, session, device, node, transport, at, code. Update who is online.

    Whoever is online by these events is added before they are written, and whoever is not is removed after it. So a user of whom the stream
    says that they are online is in the set, whatever ends in between, and a successor tells their end.

    Args:
        own: of the server that has the users, which has the set; `client` when left out.

    Raises StorageUnavailable; some may have been written.
    """
    own = own or client
    online = {event.key: event.online for event in events if event.online is not None}
    with StorageCalls("session stream"):
        pipeline = own.pipeline(transaction=False)
        for key in (key for key, is_online in online.items() if is_online):
            pipeline.sadd(online_key(slot_of(key)), key)
        if own is not client:
            await pipeline.execute()
            pipeline = client.pipeline(transaction=False)
        for event in events:
            pipeline.xadd(SESSION_STREAM_KEY, _fields(event))  # type: ignore[arg-type]
        if own is not client:
            await pipeline.execute()
            pipeline = own.pipeline(transaction=False)
        for key in (key for key, is_online in online.items() if not is_online):
            pipeline.srem(online_key(slot_of(key)), key)
        await pipeline.execute()


def _fields(event: SessionEvent) -> dict[str | bytes, str | bytes | int]:
    tenant, user = split_key(event.key)
    return {
        "event": event.event,
        "tenant": tenant,
        "user": user,
        "session": event.session,
        "device": event.device,
        "node": event.edge,
        "transport": TRANSPORTS[event.transport],
        "at": event.at_ms,
        "code": event.code,
    }


class Inherited(Struct, frozen=True):
    """What a shard gets of the presence of users who were another's.

    Attributes:
        online: mailbox keys of the users who were online as of their last event, written or not.
        events: those that the shard is to write, oldest first.
        versions: of the slot maps that came with these events; for `forget_handed`.
    """

    online: list[str]
    events: list[SessionEvent] = []
    versions: list[bytes] = []


def handed_events(events: Sequence[SessionEvent]) -> bytes:
    """Events that another shard is to write, as they are stored for it (`handed_events_key`)."""
    return sealed(_encoder.encode(events)) if events else b""


def decode_handed(stored: bytes) -> list[SessionEvent]:
    """The events that `handed_events` stored. Raises UNREADABLE."""
    return _decoder.decode(unsealed(stored))


async def read_inherited(client: redis.Redis, shard: int, slots: Collection[int], version: int) -> Inherited:
    """Read what this shard gets with these slots.

    Events of users whom another shard has got meanwhile are to be written too, but say nothing of who is online now.

    Args:
        version: of the slot map by which the shard has these slots. Events of a later one are of slots that it gets later.

    Raises StorageUnavailable.
    """
    with StorageCalls("users online"):
        pipeline = client.pipeline(transaction=False)
        pipeline.hgetall(handed_events_key(shard))
        for slot in slots:
            pipeline.smembers(online_key(slot))
        handed, *sets = await pipeline.execute()
    online = dict.fromkeys(key.decode() for keys in sets for key in keys)
    versions = sorted((each for each in handed if int(each) <= version), key=int)
    events: list[SessionEvent] = []
    for each in versions:
        try:
            events += decode_handed(handed[each])
        except UNREADABLE as error:
            log.critical("session events of other owners (%d bytes) are lost to shard %d: %s", len(handed[each]), shard, error)
    for event in events:
        if slot_of(event.key) not in slots:
            event.online = None
        elif event.online:
            online[event.key] = None
        elif event.online is not None:
            online.pop(event.key, None)
    return Inherited(list(online), events, versions)


async def forget_handed(client: redis.Redis, shard: int, inherited: Inherited) -> None:
    """Delete the events that the shard has read and is to write. Idempotent. Raises StorageUnavailable."""
    if not inherited.versions:
        return
    with StorageCalls("handed events"):
        await client.hdel(handed_events_key(shard), *inherited.versions)
