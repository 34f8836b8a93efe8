"""Deletes erased users from storage: page, stream and journal by a checkpoint, then their entries in the streams that all shards share.

Session events of the user that wait for storage, those of its end among them, are written before that: written later, they would stay.
So are dead letters that are being written.

Every step can be repeated. A shard that dies in between finds `Erased` in its journal, or the edge repeats the request: it is answered
only when nothing is left. A user who is another shard's meanwhile is erased there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import redis.asyncio as redis

from engine.actors.actor_process import RETRY_S
from engine.actors.shard_tasks.checkpoints import Checkpoints
from engine.core.shard.shard import ShardCore
from engine.errors import StorageUnavailable
from engine.store.outcome_stream import OutcomeWriter
from engine.store.user_entries import drop_user_entries

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.05
"""Between looks at session events that wait for storage, and at dead letters that are being written."""


class UserErasure:
    """Erases for one shard.

    Args:
        client, first: of the store that has the shard's users, and of the first store, which has what all share.
        outcomes: of the history, where there is one.
        flush: carries out what the core wants.
    """

    def __init__(
        self,
        client: redis.Redis,
        first: redis.Redis,
        core: ShardCore,
        checkpoints: Checkpoints,
        outcomes: OutcomeWriter | None,
        flush: Callable[[], None],
    ) -> None:
        self._client = client
        self._first = first
        self._core = core
        self._checkpoints = checkpoints
        self._outcomes = outcomes
        self._flush = flush
        self._wanted = asyncio.Event()

    def wake(self) -> None:
        """Begin when the core has erased users."""
        if self._core.user_requests.erasing:
            self._wanted.set()

    async def run(self) -> None:
        """Erase until cancelled."""
        erased: list[str] = []
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self._checkpoints.write(full=True)
            erased += self._core.mailbox_store.take_erased()
            try:
                if erased and self._outcomes is not None:
                    await self._outcomes.flush()  # the erasure is among them
                while self._core.output.waits_to_tell(erased) or self._core.mailbox_store.is_writing_letters_of(erased):
                    await asyncio.sleep(_LOOK_S)
                erased = [key for key in erased if self._core.slot_map.owner(key) == self._core.index]
                while erased:
                    await drop_user_entries(self._first, erased[-1], own=self._client)
                    key = erased.pop()
                    if not self._core.mailbox_store.is_to_be_erased(key):  # once more meanwhile: then both are answered together
                        self._core.user_requests.erased([key])
            except StorageUnavailable as error:
                log.warning("shard %d: %s", self._core.index, error)
                await asyncio.sleep(RETRY_S)
            self._flush()
