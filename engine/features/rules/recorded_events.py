"""A sample of recent events in Redis, for dry runs of rules: one stream of all tenants.

    stream    entries `t` tenant, `d` id of the delivery, `a` when it came (ms), `e` the event as JSON

It is bounded by number (`MAXLEN`), by age (older ones are trimmed with each write, and the key expires when nobody writes) and, as each
event is, by size. Best effort: what could not be written is missing, and no event waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis.asyncio as redis
from msgspec import Struct
from redis.exceptions import RedisError

from engine.config import Config
from engine.errors import StorageUnavailable
from engine.store.keys import recorded_events_key


class RecordedEvent(Struct, frozen=True):
    """An event as it was sent: `body` is its JSON. `at_ms`: when it came."""

    tenant: str
    delivery: str
    at_ms: int
    body: bytes


class RecordedEvents:
    """The sample.

    Args:
        config: its bounds.
    """

    def __init__(self, client: redis.Redis, config: Config) -> None:
        self._client = client
        self._events_max = config.recorded_events_max
        self._keep_ms = config.recorded_events_keep_s * 1000

    async def add(self, events: Sequence[RecordedEvent]) -> None:
        """Add events, which came just now. Raises StorageUnavailable."""
        if not events:
            return
        key = recorded_events_key()
        pipeline = self._client.pipeline(transaction=False)
        for event in events:
            fields: dict[Any, Any] = {"t": event.tenant, "d": event.delivery, "a": event.at_ms, "e": event.body}
            pipeline.xadd(key, fields, maxlen=self._events_max, approximate=True)
        pipeline.xtrim(key, minid=f"{events[-1].at_ms - self._keep_ms}-0")
        pipeline.pexpire(key, self._keep_ms)
        try:
            await pipeline.execute()
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"recorded events: {error}") from error

    async def newest(self, limit: int, since_ms: int) -> list[RecordedEvent]:
        """The newest so many, newest first, of those added at or after this time. Raises StorageUnavailable."""
        try:
            found: Any = await self._client.xrevrange(recorded_events_key(), min=f"{since_ms}-0", count=limit)
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"recorded events: {error}") from error
        return [RecordedEvent(fields[b"t"].decode(), fields[b"d"].decode(), int(fields[b"a"]), bytes(fields[b"e"])) for _, fields in found]
