"""A sample of recent events in Redis, for dry runs of rules: one stream of all tenants.

    stream    entries `t` tenant, `d` id of the delivery, `a` when it came (ms), `e` the event as JSON

It is bounded by number (`MAXLEN`), by age (older ones are trimmed with each write, and the key expires when nobody writes) and, as each
event is, by size. Best effort: what could not be written is missing, and no event waits for it.

An event is of a user when any text or number in it, at any depth, is the user's name, or when a text mentions the user: rules take
recipients from wherever they like.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec
import redis.asyncio as redis
from msgspec import Struct

from engine.config import Config
from engine.core.model.routing import split_key
from engine.features.rules.core.mentions import mentions
from engine.features.rules.keys import RECORDED_EVENTS_KEY
from engine.store.storage_calls import StorageCalls

_READ: Final = 200
"""Entries at a time, when all are looked at: 1.6 MB of the largest."""


class RecordedEvent(Struct, frozen=True):
    """An event as it was sent: `body` is its JSON. `at_ms`: when it came."""

    tenant: str
    delivery: str
    at_ms: int
    body: bytes


class RecordedEvents:
    """The sample."""

    def __init__(self, client: redis.Redis, config: Config) -> None:
        self._client = client
        self._events_max = config.recorded_events_max
        self._keep_ms = config.recorded_events_keep_s * 1000

    async def add(self, events: Sequence[RecordedEvent]) -> None:
        """Add events, which came just now. Raises StorageUnavailable."""
        if not events:
            return
        key = RECORDED_EVENTS_KEY
        pipeline = self._client.pipeline(transaction=False)
        for event in events:
            fields: dict[Any, Any] = {"t": event.tenant, "d": event.delivery, "a": event.at_ms, "e": event.body}
            pipeline.xadd(key, fields, maxlen=self._events_max, approximate=True)
        pipeline.xtrim(key, minid=f"{events[-1].at_ms - self._keep_ms}-0")
        pipeline.pexpire(key, self._keep_ms)
        with StorageCalls("recorded events"):
            await pipeline.execute()

    async def newest(self, limit: int, since_ms: int) -> list[RecordedEvent]:
        """The newest so many, newest first, of those added at or after this time, as far as they can be read. Raises StorageUnavailable."""
        with StorageCalls("recorded events"):
            found: Any = await self._client.xrevrange(RECORDED_EVENTS_KEY, min=f"{since_ms}-0", count=limit)
        return [read[0] for _, fields in found if (read := _decoded(fields)) is not None]

    async def of_user(self, key: str) -> AsyncIterator[RecordedEvent]:
        """The events of the user with this mailbox key, the oldest first. Raises StorageUnavailable."""
        async for _, event in self._of_user(key):
            if event is not None:
                yield event

    async def _of_user(self, key: str) -> AsyncIterator[tuple[bytes, RecordedEvent | None]]:
        """With their entries; also those of events that cannot be read, which may be the user's."""
        tenant, user = split_key(key)
        start = b"-"
        while True:
            with StorageCalls("recorded events"):
                found: Any = await self._client.xrange(RECORDED_EVENTS_KEY, min=start, count=_READ)
            for entry, fields in found:
                read = _decoded(fields)
                if read is None:
                    yield entry, None
                elif read[0].tenant == tenant and _names(read[1], user):
                    yield entry, read[0]
            if len(found) < _READ:
                return
            start = b"(" + found[-1][0]

    async def erase(self, key: str) -> None:
        """Delete the events of a user, and those that cannot be read. Raises StorageUnavailable."""
        entries = [entry async for entry, _ in self._of_user(key)]
        with StorageCalls("recorded events"):
            if entries:
                await self._client.xdel(RECORDED_EVENTS_KEY, *entries)


def _decoded(fields: dict[bytes, bytes]) -> tuple[RecordedEvent, Any] | None:
    """The event, and what its body says; None where storage has damaged them."""
    try:
        event = RecordedEvent(fields[b"t"].decode(), fields[b"d"].decode(), int(fields[b"a"]), bytes(fields[b"e"]))
        return event, msgspec.json.decode(event.body)
    except (KeyError, ValueError, RecursionError, msgspec.MsgspecError):
        return None


def _names(event: Any, user: str) -> bool:
    """Whether the user is a text, a number or the name of a member in this JSON value, or is mentioned in a text of it."""
    found = [event]
    while found:  # no recursion: edges of earlier releases recorded events of any depth
        value = found.pop()
        if isinstance(value, dict):
            found += value.keys()
            found += value.values()
        elif isinstance(value, list):
            found += value
        elif isinstance(value, str):
            if value == user or ("@" in value and user in mentions(value)):
                return True
        elif type(value) is int and str(value) == user:
            return True
    return False
