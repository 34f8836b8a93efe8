"""The ingester actor: reads one source and gives its rows to an edge, which validates and accepts them as by HTTP.

Each table `[[source]]` has one; `engine.actors.feature_process` is its shell. It has two tasks, each with a connection of its own: one
moves batches, the other counts what waits.

States of a batch; the first task owns it
    read      its rows are locked or pending in the source
    sent      one Ray call of an edge is under way
    judged    the edge has answered; each row is accepted, dead, or stays (`engine.features.sources.core`)
    settled   accepted rows are deleted, dead ones set aside; the others are read again

Crash points. The ingester dies before the batch is sent: the next ingester reads the rows. After the edge's answer, before the settlement:
they are read and sent again under the same ids, and are duplicates. This holds for as long as the engine remembers ids,
`idempotency_caller_s`. The edge dies, or its answer is lost: likewise. The source dies: `engine.features.sources.readers` has the kinds.
Two ingesters of a source run at once, such as one on a lost node: each row is sent under one id, whoever sends it.

After a 429 or 503, or without an edge, the rows stay in the source, and the task waits. The source is the queue; nothing is kept here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from engine.api.actor_feature import ActorPorts, EdgePublisher, Work
from engine.errors import StorageUnavailable, Unavailable
from engine.features.sources.core import PATHS, Fates, Source, SourceRow, fates_of, requests_of, sources_of
from engine.features.sources.readers import SourceLag, SourceReader, reader_of

log = logging.getLogger(__name__)

_RETRY_FIRST_S: Final = 0.5
_RETRY_CAP_S: Final = 10.0
_WATCH_S: Final = 5.0
"""Between two counts of what waits: a count reads the whole table."""


class Ingester(Work):
    """The work of the ingester's process.

    Args:
        now_ms: the wall clock.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._name = ""  # of the source; "" until `run`
        self._fault = "starting"  # why no rows are taken; "" while they are
        self._accepted = 0
        self._dead = 0
        self._lag = SourceLag(0, 0, 0)
        self._batch_rows = 0  # how many to read at a time
        self._held_row = ""  # the id of the row that waited last
        self._held_logged = False

    def stats(self) -> dict[str, Any]:
        """The source's name and state, its counts since the ingester's start, and what waits in it."""
        return {
            "source": self._name,
            "state": self._fault or "ok",
            "accepted": self._accepted,
            "dead": self._dead,
            "waiting": self._lag.waiting,
            "lag_ms": max(self._now_ms() - self._lag.oldest_ms, 0) if self._lag.oldest_ms else 0,
            "dead_rows": self._lag.dead,
        }

    async def run(self, ports: ActorPorts) -> None:
        """Ingest until cancelled."""
        source = sources_of(ports.config.sources)[ports.index]
        self._name, self._batch_rows = source.name, source.rows_max
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(source, partial(self._move, source, ports.edges)))
            tasks.create_task(self._repeat(source, self._watch))

    async def _repeat(self, source: Source, step: Callable[[SourceReader], Awaitable[None]]) -> None:
        """Repeat the step, with pauses while the source is away or no edge answers."""
        reader, pause_s = reader_of(source), _RETRY_FIRST_S
        try:
            while True:
                task = asyncio.current_task()
                if task is not None and task.cancelling():  # before Python 3.12 the drivers' asyncio.wait_for may lose a cancellation
                    raise asyncio.CancelledError
                try:
                    await step(reader)
                    pause_s = _RETRY_FIRST_S
                except (StorageUnavailable, Unavailable) as error:
                    if self._fault != str(error):
                        log.warning("source %s waits: %s", source.name, error)
                    self._fault = str(error)
                    await reader.close()
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _RETRY_CAP_S)
        finally:
            await reader.close()

    async def _move(self, source: Source, edges: EdgePublisher, reader: SourceReader) -> None:
        """Move a batch, or wait for one."""
        rows = await reader.read(self._batch_rows)
        if not rows:
            self._fault = ""
            await reader.wait()
            return
        bodies, places, unreadable = requests_of(source, rows)
        answers = await edges.publish(source.tenant, PATHS[source.what], bodies) if bodies else []
        fates = fates_of(source, places, answers)
        dead = unreadable | fates.dead
        await reader.settle([rows[place] for place in fates.accepted], [(rows[place], reason) for place, reason in sorted(dead.items())])
        self._accepted += len(fates.accepted)
        self._dead += len(dead)
        self._batch_rows = max(1, len(rows) // 2) if fates.split else min(self._batch_rows + source.rows_max // 16 + 1, source.rows_max)
        self._fault = self._held(source, rows, fates)
        await asyncio.sleep(fates.wait_s)

    def _held(self, source: Source, rows: Sequence[SourceRow], fates: Fates) -> str:
        """Why rows wait, "" when none does. A row that waits again and again is logged the second time: overload passes before."""
        held = fates.held
        if held is None:
            self._held_row = ""
            return ""
        if held.place is None:
            return held.reason
        row = rows[held.place].id
        fault = f"row {row} waits: {held.reason}"
        if row == self._held_row and not self._held_logged:
            log.warning("source %s: %s", source.name, fault)
        self._held_logged = row == self._held_row
        self._held_row = row
        return fault

    async def _watch(self, reader: SourceReader) -> None:
        """Count what waits, then pause."""
        self._lag = await reader.lag()
        await asyncio.sleep(_WATCH_S)
