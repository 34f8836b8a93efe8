"""Work of processes beside the tests."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.pool import AsyncResult, Pool
from typing import Any

WAIT_S = 110
"""For one part of the work, once somebody waits for it: less than pytest lets a test take."""


def _give_way() -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


class Background:
    """Work for one process per core, each begun anew: a test process holds threads and sockets that must not be copied."""

    def __init__(self) -> None:
        self._pool: Pool | None = None
        self._results: dict[tuple[Callable[[Any], Any], Any], AsyncResult[Any]] = {}

    def begin(self, work: Callable[[Any], Any], argument: Any) -> None:
        """Have `work(argument)` done, once, when there is time. Both are sent to another process."""
        if (work, argument) not in self._results:
            if self._pool is None:
                self._pool = multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0)), _give_way)
            self._results[work, argument] = self._pool.apply_async(work, (argument,))

    def result(self, work: Callable[[Any], Any], argument: Any) -> Any:
        """What `work(argument)` returned. Whatever is still to be done gives way no longer."""
        self.begin(work, argument)
        for process in multiprocessing.active_children():
            if process.pid is not None:
                # Only who may raise priorities may undo it (RLIMIT_NICE). For others the cores are free now in any case: this test waits.
                with contextlib.suppress(PermissionError):
                    os.sched_setscheduler(process.pid, os.sched_getscheduler(0), os.sched_param(0))
        return self._results[work, argument].get(WAIT_S)

    def end(self) -> None:
        if self._pool is not None:
            self._pool.terminate()
            self._pool.join()
