"""The stream between those who record outcomes and those who read them: the archivist, which writes them to the database of the history,
and groups of consumers.

    writer     shard, edge: a batch of what was recorded, every `history_flush_ms`: one entry, one script
    archivist  a batch is pending for it from when it reads it until it settles it
    groups     read behind positions of their own, whether settled or not

A batch is deleted when it is settled, unless a group has asked for outcomes within the last `outcomes_kept_ms`: then it is kept, for so
long and up to `outcomes_kept_bytes_max` of all settled ones. So neither waits for the other: a slow group keeps no batch that is not
settled, and loses the oldest settled ones, which it sees by the mark of what was trimmed; groups read on while the archivist cannot.

A batch that was read by an archivist that died is pending still, and the next one reads it first: all of them are one consumer. Two that
run at once may read the same batch, and write the same rows, which are stored once.

What is not settled has at most `history_stream_bytes_max`. While it is full new batches are dropped and counted: what waits is what
happened first, and has no holes. The next batch says how many were dropped, also by a process without room in its memory, so that groups
can tell. Erasures of users are never dropped, or their rows would stay. The size is in a hash beside the stream, changed by the same
scripts; an empty stream starts from nothing."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

import redis.asyncio as redis
from msgspec import Struct

from engine.config import Config
from engine.core.wire.outcomes import AnyOutcome, OutcomeLog, decode_outcomes, encode_outcomes, is_erasure
from engine.core.wire.records import UNREADABLE
from engine.errors import StorageUnavailable
from engine.store.keys import OUTCOME_STATE_KEY, OUTCOME_STREAM_KEY
from engine.store.lua import Script
from engine.store.storage_calls import StorageCalls

log = logging.getLogger(__name__)

_APPEND = Script("outcomes_append")

_BATCH: Final = 2000
"""Outcomes of one entry: some 40 KB, and 5 ms of the process that appends them."""

_FAST: Final = 1
"""Of zlib's levels: names and ids of a batch repeat, so it takes the batch to a third, and further levels little more."""

_NO_LIMIT: Final = 1 << 53

_RETRY_S: Final = 0.5


class OutcomeWriter:
    """Appends the outcomes of one process.

    Args:
        source: names this process among all that ever were.
    """

    def __init__(self, client: redis.Redis, config: Config, source: str, outcomes: OutcomeLog) -> None:
        self._client = client
        self._config = config
        self._source = source
        self._outcomes = outcomes
        self._number = 0  # of the first outcome in `_batch`
        self._batch: list[AnyOutcome] = []  # that is being appended: a repeat must be the same batch
        self._flushing = asyncio.Lock()

    async def run(self) -> None:
        """Append what is recorded, until cancelled."""
        while True:
            await asyncio.sleep(self._config.history_flush_ms / 1000)
            try:
                await self.flush()
            except StorageUnavailable as error:
                log.info("outcomes wait: %s", error)
                self._outcomes.trim()
                await asyncio.sleep(_RETRY_S)

    async def flush(self) -> None:
        """Append all that is recorded. Raises StorageUnavailable: the rest is appended by the next call."""
        async with self._flushing:
            if self._outcomes.dropped:
                await self._tell_dropped()
            while self._batch or len(self._outcomes):
                if not self._batch:
                    self._batch = self._outcomes.take(_BATCH)
                appended = await self._append(self._batch, self._config.history_stream_bytes_max)
                if not appended and (erasures := [one for one in self._batch if is_erasure(one)]):
                    await self._append(erasures, _NO_LIMIT)
                self._number += len(self._batch)
                self._batch = []

    async def _tell_dropped(self) -> None:
        """Count what found no room in memory, so that the next batch tells of it. Raises StorageUnavailable; repeat it."""
        dropped = self._outcomes.dropped
        with StorageCalls("outcomes"):
            pipeline = self._client.pipeline(transaction=True)
            for counter in ("dropped", "untold"):
                pipeline.hincrby(OUTCOME_STATE_KEY, counter, dropped)
            await pipeline.execute()
        self._outcomes.dropped -= dropped

    async def _append(self, batch: Sequence[AnyOutcome], bytes_max: int) -> bool:
        """Whether there was room for the batch; else it is dropped. Raises StorageUnavailable."""
        arguments = [bytes_max, self._source, self._number, len(batch), zlib.compress(encode_outcomes(batch), _FAST)]
        reply = await _APPEND.run(self._client, [OUTCOME_STREAM_KEY, OUTCOME_STATE_KEY], arguments)
        return bool(reply[0] == b"OK")


class OutcomeBatch(Struct, frozen=True):
    """A batch as it was appended.

    Attributes:
        entry: its id in the stream, `<ms since the epoch>-<number>`, by the clock of Redis.
        source: of which process.
        number: of its first outcome, among those of the process.
        count: its outcomes.
        size: bytes in the stream.
        outcomes: None when it cannot be read.
        lost: of all processes, dropped between the batch before and this one.
    """

    entry: str
    source: str
    number: int
    count: int
    size: int
    outcomes: list[AnyOutcome] | None
    lost: int = 0


async def want_outcomes(client: redis.Redis, until_ms: int) -> None:
    """Keep settled batches until then. Raises StorageUnavailable."""
    with StorageCalls("outcomes"):
        await client.hset(OUTCOME_STATE_KEY, "wanted", str(until_ms))


def stored_batch(entry: str, fields: Mapping[bytes, bytes]) -> OutcomeBatch:
    """A batch from the id and the fields of its entry."""
    content = fields.get(b"b", b"")
    try:
        outcomes: list[AnyOutcome] | None = decode_outcomes(zlib.decompress(content))
    except (zlib.error, *UNREADABLE):
        outcomes = None
    source = fields.get(b"s", b"").decode(errors="replace")
    number, count, lost = (int(text) if (text := fields.get(name, b"")).isdigit() else 0 for name in (b"n", b"c", b"l"))
    return OutcomeBatch(entry, source, number, count, len(content), outcomes, lost)
