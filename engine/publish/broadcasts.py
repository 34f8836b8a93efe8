"""Appends broadcasts to their log, from the edge directly: one round trip per request, however many users it reaches.

    draft -> append -> accepted, duplicate or conflict
                    -> no answer: repeated under the same id for `commit_retry_ms`; then the outcome is unknown

The log recognises a repeat by its id, also by one made here, so an append whose answer was lost takes effect once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from engine.config import Config
from engine.core.mailbox.broadcast_log import BroadcastEntry
from engine.core.model.routing import split_key
from engine.errors import StorageUnavailable
from engine.publish.drafts import Draft
from engine.store.broadcast_stream import Appended, BroadcastLog

log = logging.getLogger(__name__)

_RETRY_S: Final = 0.1


class BroadcastPublisher:
    """Appends the broadcasts of one edge.

    Args:
        config: with `commit_retry_ms`, how long an append is repeated.
        log: the log to append to.
        wall_ms: milliseconds since the epoch.
        clock: milliseconds that never step.
    """

    def __init__(self, config: Config, log: BroadcastLog, wall_ms: Callable[[], int], clock: Callable[[], int]) -> None:
        self._config = config
        self._log = log
        self._wall_ms = wall_ms
        self._clock = clock

    async def append(self, drafts: Sequence[Draft]) -> list[Appended | None]:
        """The outcome of each draft, in order; None where it is unknown."""
        if not drafts:
            return []
        now_ms = self._wall_ms()
        entries = [(_entry(draft, now_ms), draft.envelope.id) for draft in drafts]
        deadline_ms = self._clock() + self._config.commit_retry_ms
        repeated = False
        while True:
            try:
                return list(await self._log.append(entries, repeated=repeated))
            except StorageUnavailable as error:
                if self._clock() >= deadline_ms:
                    log.warning("%d broadcasts are not known to be in the log: %s", len(drafts), error)
                    return [None] * len(drafts)
            repeated = True
            await asyncio.sleep(_RETRY_S)


def _entry(draft: Draft, now_ms: int) -> BroadcastEntry:
    assert draft.topic is not None, "it is for a user"
    tenant = split_key(draft.key)[0]
    return BroadcastEntry(tenant, draft.topic, draft.envelope, draft.expires_ms, now_ms)
