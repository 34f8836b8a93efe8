"""The archivist actor: writes what has become of messages to the database of the history, and answers questions about it.

    stream of outcomes --read--> rows --insert, one transaction--> database --settle--> nobody waits for the batch any more

There is one, where `history_url` is set; `engine.actors.feature_process` is its shell. It owns the database: no other process of the engine
has a driver or a password for it.

States of a batch
    in the stream   appended by a shard or an edge
    pending         read by an archivist; it stays in the stream
    stored          its rows are committed
    settled         deleted from the stream, or kept for groups of consumers (`engine.store.outcome_stream`)

Crash points. The archivist dies before the commit: the batch is pending, and the next archivist reads it first. Between the commit and the
settlement: likewise, and the rows are there already, so that inserting them changes nothing. Two archivists run at once, such as one
on a node that was given up: both insert the same rows, and both settle; what the one has read when it ends, the other one reads again some
seconds later. Redis restarts: its stream is as durable as the journal beside it.
The database is away: batches wait in the stream, up to its limit; nothing of the engine waits for it. A batch that cannot be read is
dropped and counted; so is a row that the database refuses.

Tasks
    archive     the way above; new rows are in the database half a second after the outcome, while it keeps up
    sweep       deletes rows older than `history_ttl_s`
    probe       asks whether the database is there
    watch       measures what waits in the stream
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from engine.api.actor_feature import ActorPorts
from engine.config import Config
from engine.errors import StorageUnavailable
from engine.features.history.history_database import HistoryDatabase
from engine.features.history.outcome_reader import OutcomeReader, StreamLag
from engine.features.history.outcome_rows import OutcomeRow, erasures_of, rows_of
from engine.store.outcome_stream import OutcomeBatch

log = logging.getLogger(__name__)

T = TypeVar("T")

_IDLE_S: Final = 0.25
"""Between two looks at an empty stream."""

_BATCHES: Final = 8
"""Read at once: up to as many rows as one transaction has, or a few more."""

_RETRY_FIRST_S: Final = 0.5
_RETRY_CAP_S: Final = 10.0

_WATCH_S: Final = 1.0
_PROBES: Final = 5
"""Looks at the stream for each question to the database."""

_ANSWER_S: Final = 15.0
"""A database that has not said within this time that it is there is away: longer than connecting and a statement may take."""

_QUESTIONS_MAX: Final = 100
"""Questions of edges that wait for the database; an edge waits a few seconds, and the database goes through them one by one."""

_LEFT_BEHIND_MS: Final = 10_000
"""A batch that is older, while there is no newer one to read, was read by an archivist that has ended since."""


class Archivist:
    """The work of the archivist's process.

    Args:
        now_ms: the wall clock.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._archived = 0  # rows committed
        self._refused = 0  # rows, and outcomes that cannot be read
        self._swept = 0
        self._fault = "not asked yet"  # why the database does not take rows
        self._away = ""  # why it does not answer at all, asked while there may be none
        self._lag = StreamLag(0, 0, 0, 0)
        self._questions = 0  # that wait for the database
        # One thread writes, so that batches stay in order; another one answers, so that no question waits for a batch.
        self._writing = ThreadPoolExecutor(1, "history")
        self._reading = ThreadPoolExecutor(1, "query")
        self._config: Config
        self._reader: OutcomeReader
        self._database: HistoryDatabase

    # -- what its process asks ----------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Gauges and counters by name, from memory."""
        lag = self._lag
        return {
            "database": self._fault or self._away or "ok",
            "archived": self._archived,
            "refused": self._refused,
            "swept": self._swept,
            "waiting": lag.waiting,
            "stream_bytes": lag.bytes,
            "dropped": lag.dropped,
            "lag_ms": max(self._now_ms() - lag.oldest_ms, 0) if lag.oldest_ms else 0,
        }

    async def answer(self, wanted: dict[str, Any], limit: int) -> list[OutcomeRow]:
        """Rows of the history, see `HistoryDatabase.query`.

        Raises:
            StorageUnavailable: the database does not answer, or too many others wait.
        """
        if self._questions >= _QUESTIONS_MAX:
            raise StorageUnavailable(f"the database of the history: {self._questions} questions wait")
        self._questions += 1
        try:
            return await self._in(self._reading, partial(self._database.query, wanted, limit))
        finally:
            self._questions -= 1

    async def drain(self) -> None:
        """Write what is in the stream by now, as far as the database answers."""
        while not self._fault and (await self._reader.lag()).oldest_ms:
            await asyncio.sleep(_IDLE_S)

    # -- tasks --------------------------------------------------------------------------------------------------------

    async def run(self, ports: ActorPorts) -> None:
        """Archive until cancelled."""
        self._config = config = ports.config
        self._reader = OutcomeReader(ports.redis, config)
        self._database = HistoryDatabase(config.history_url, config.data_dir)
        log.info("the archivist writes to %s", self._database.shown)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            await self._until_done(self._writing, self._database.migrate)  # before, there may be none to ask
            tasks.create_task(self._archive())
            tasks.create_task(self._probe())

    def close(self) -> None:
        """Wait for the threads and close the database, after `run` was cancelled."""
        self._writing.shutdown()
        self._reading.shutdown()
        self._database.close()

    async def _archive(self) -> None:
        """Move batches from the stream to the database, whose schema is up to date."""
        sweeping = asyncio.ensure_future(self._sweep())
        try:
            again = True  # first what an earlier archivist has read and not settled
            while True:
                try:
                    batches = await self._reader.read(_BATCHES, again=again)
                except StorageUnavailable as error:
                    log.warning("the archivist waits for the stream: %s", error)
                    await asyncio.sleep(_RETRY_FIRST_S)
                    again = True  # batches of an answer that was lost are pending
                    continue
                if batches:
                    await self._store(batches)
                elif again:
                    again = False
                else:
                    await asyncio.sleep(_IDLE_S)
                    again = 0 < self._lag.oldest_ms < self._now_ms() - _LEFT_BEHIND_MS  # nothing behind it would leave the stream
        finally:
            sweeping.cancel()

    async def _store(self, batches: list[OutcomeBatch]) -> None:
        """Store these batches, and settle them; returns when that is done."""
        start = 0
        while start < len(batches):
            end, rows, erased, unread = start, list[OutcomeRow](), list[tuple[str, int]](), 0
            while end < len(batches) and (end == start or len(rows) + batches[end].count <= self._config.history_rows_max):
                batch = batches[end]
                if batch.outcomes is None:
                    log.error("a batch of %d outcomes of %s cannot be read", batch.count, batch.source)
                    unread += batch.count
                else:
                    rows += rows_of(batch.outcomes, batch.source, batch.number)
                    erased += erasures_of(batch.outcomes)
                end += 1
            refused = await self._until_done(self._writing, partial(self._database.store, rows, erased))
            self._archived += len(rows) - refused
            self._refused += refused + unread
            await self._settle(batches[start:end], refused)
            start = end

    async def _settle(self, batches: list[OutcomeBatch], refused: int) -> None:
        lost = [batch.count if batch.outcomes is None else 0 for batch in batches]
        lost[0] += refused
        while True:
            try:
                await self._reader.settle(list(zip(batches, lost, strict=True)))
                return
            except StorageUnavailable as error:
                log.warning("the archivist waits for the stream: %s", error)
                await asyncio.sleep(_RETRY_FIRST_S)

    async def _sweep(self) -> None:
        ttl_ms = self._config.history_ttl_s * 1000
        while True:
            now_ms = self._now_ms()
            swept = await self._until_done(self._writing, partial(self._database.sweep, now_ms - ttl_ms, now_ms))
            self._swept += swept
            await asyncio.sleep(_IDLE_S if swept else self._config.history_sweep_ms / 1000)

    async def _watch(self) -> None:
        while True:
            try:
                self._lag = await self._reader.lag()
            except StorageUnavailable as error:
                log.info("the lag of the history is not known: %s", error)
            await asyncio.sleep(_WATCH_S)

    async def _probe(self) -> None:
        """Ask the database whether it is there, also while there are no rows to write."""
        while True:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    await self._in(self._reading, self._database.ping)
                self._away = ""
            except StorageUnavailable as error:
                self._away = str(error)
            except TimeoutError:  # a server that is stopped keeps its connections, and says nothing
                self._away = "the database of the history: no answer"
            await asyncio.sleep(_PROBES * _WATCH_S)

    async def _until_done(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        """The result of work with the database; repeats it while the database is away. What comes back may be another one, and empty."""
        wait_s = _RETRY_FIRST_S
        while True:
            try:
                if wait_s > _RETRY_FIRST_S:
                    await self._in(threads, self._database.migrate)
                done = await self._in(threads, work)
            except StorageUnavailable as error:
                if not self._fault or wait_s == _RETRY_FIRST_S:
                    log.warning("the history waits: %s", error)
                self._fault = str(error)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _RETRY_CAP_S)
            else:
                self._fault = ""
                return done

    @staticmethod
    async def _in(threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, work)
