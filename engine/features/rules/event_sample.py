"""Records a sample of the events that an edge takes, for dry runs of rules, and counts what became of them by rule.

    `engine.features.rules.events` --add, no waiting--> EventSample --once a second--> RecordedEvents (Redis)

At most `recorded_events_per_s` a second, `recorded_events_of_tenant_per_s` of one tenant, and none above `recorded_event_bytes_max`: so
the cost is bounded whatever comes, and quiet tenants are in the sample beside busy ones. An edge that dies loses its last second, and what
storage does not take is dropped: nothing but dry runs depends on it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

from engine.config import Config
from engine.core.model.period import until_next
from engine.errors import StorageUnavailable
from engine.features.rules.core.staging import AppliedRules
from engine.features.rules.recorded_events import RecordedEvent, RecordedEvents

log = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0
_WRITTEN_S: Final = 1.1
"""By then every edge has written what it recorded before."""
_RULES_COUNTED_MAX: Final = 2000
"""Twice as many as a version has: names of earlier versions make room."""


class EventSample:
    """The sample of one edge.

    Args:
        store: where the sample is kept.
    """

    def __init__(self, config: Config, store: RecordedEvents) -> None:
        self._config = config
        self._store = store
        self._waiting: list[RecordedEvent] = []
        self._of_tenant: Counter[str] = Counter()
        self.counts: dict[str, list[int]] = {}  # by rule: events that matched, notifications, recipients left out; since the start

    def add(self, tenant: str, delivery: str, at_ms: int, body: bytes) -> None:
        """Record an event that was taken, if the sample of this second has room for it."""
        config = self._config
        if len(body) > config.recorded_event_bytes_max or len(self._waiting) >= config.recorded_events_per_s:
            return
        if self._of_tenant[tenant] < config.recorded_events_of_tenant_per_s:
            self._of_tenant[tenant] += 1
            self._waiting.append(RecordedEvent(tenant, delivery, at_ms, body))

    def count(self, applied: Sequence[AppliedRules], fresh: Iterable[bool]) -> None:
        """Count what the operator's rules made of an event; those of tenants would be without number.

        Args:
            fresh: of each notification, whether no earlier event had made it.
        """
        notifications = [(part, made) for part in applied for made in part.outcome.notifications]
        for (part, made), is_fresh in zip(notifications, fresh, strict=True):
            if is_fresh and not part.rules.own:
                self._row(made.rule)[1] += 1
        applied = [part for part in applied if not part.rules.own]
        for name in {name for part in applied for name in part.outcome.matched}:  # a rule may be in two versions
            self._row(name)[0] += 1
        for part in applied:
            for skipped in part.outcome.skipped:
                self._row(skipped.rule)[2] += 1

    def _row(self, rule: str) -> list[int]:
        row = self.counts.get(rule)
        if row is None:
            if len(self.counts) >= _RULES_COUNTED_MAX:
                del self.counts[next(iter(self.counts))]
            row = self.counts[rule] = [0, 0, 0]
        return row

    async def kept_rows(self, key: str) -> AsyncIterator[bytes]:
        """What the sample has of the user with this mailbox key, rows in JSON. Raises StorageUnavailable."""
        async for event in self._store.of_user(key):
            yield b'{"at":%d,"event":%b}' % (event.at_ms, event.body)

    async def erase(self, key: str) -> None:
        """Delete what the sample has of a user, and what an edge is about to write. Raises StorageUnavailable."""
        if self._config.recorded_events_per_s:
            await asyncio.sleep(_WRITTEN_S)
        await self._store.erase(key)

    async def run(self) -> None:
        """Write what was recorded, until cancelled."""
        while True:
            await asyncio.sleep(until_next(time.monotonic(), _INTERVAL_S))
            await self.flush()

    async def flush(self) -> None:
        """Write what was recorded since the last time."""
        waiting, self._waiting = self._waiting, []
        self._of_tenant.clear()
        try:
            await self._store.add(waiting)
        except StorageUnavailable as error:
            log.debug("%d events are not in the sample for dry runs: %s", len(waiting), error)
