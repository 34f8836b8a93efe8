"""An event loop without a clock, a socket or a thread: virtual time, and processes that can be killed or frozen.

The loop runs what is ready, in the order it became ready (asyncio promises that much within one process), then jumps to the next
entry of its agenda. Taking an entry from the agenda is a *step*: a message or a reply arrives, storage applies a command, a
timer of an actor fires, a client or publisher acts, a fault strikes. What is merely a consequence within the same instant is
no step. Nothing here depends on real time, addresses or hashes, so the same program takes the same steps.

Every callback belongs to the simulated process in whose context it was made:

    running   its callbacks run
    frozen    they gather, and run in order when it thaws: SIGSTOP and SIGCONT
    dying     killed: it is cut off from the world (its ports refuse), its tasks are cancelled and unwind
    dead      nothing of it ever runs again
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from math import ceil
from typing import Any, Final

from tests.sim.cuts import Place

RUNNING: Final = "running"
FROZEN: Final = "frozen"
DYING: Final = "dying"
DEAD: Final = "dead"

_SAME_INSTANT_MAX: Final = 200_000
"""Callbacks at one instant; more than any amount of honest work: somebody spins."""

_BURY_ROUNDS: Final = 60
"""Turns of the ready queue in which a killed process's tasks have to unwind."""


class Process:
    """One incarnation of one actor. `context` is where its callbacks are made."""

    def __init__(self, name: str, incarnation: int, host: str) -> None:
        self.name = name
        self.place = Place(name, host)
        self.incarnation = incarnation
        self.state = RUNNING
        self.thawed_at = 0.0  # when it last went on
        self.backlog: list[asyncio.Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.context = copy_context()
        self.context.run(PROCESS.set, self)
        self._compact_at = 64

    def __repr__(self) -> str:
        return f"{self.name}#{self.incarnation}"

    @property
    def alive(self) -> bool:
        return self.state in {RUNNING, FROZEN}

    def adopt(self, task: asyncio.Task[Any]) -> None:
        self.tasks.append(task)
        if len(self.tasks) > self._compact_at:
            self.tasks = [task for task in self.tasks if not task.done()]
            self._compact_at = 2 * len(self.tasks) + 64


PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)


class Spinning(AssertionError):
    """Callbacks follow one another without time passing."""


class SimLoop(asyncio.AbstractEventLoop):
    """See the module's text. `failures` are exceptions nobody handled."""

    def __init__(self) -> None:
        self.steps = 0
        self.failures: list[dict[str, Any]] = []
        self.outside = copy_context()  # the world's own callbacks: of no process
        self._now_us = 0
        self._ready: deque[asyncio.Handle] = deque()
        self._agenda: list[tuple[int, int, asyncio.TimerHandle]] = []  # (when in us, order, what)
        self._entries = 0

    # -- What asyncio asks of a loop. ---------------------------------------------------------------------------------
    def time(self) -> float:
        return self._now_us / 1e6

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        # A real clock moves on while a timer is set; here that takes a microsecond. Else a timer that comes an ulp early would be
        # set again and again at one instant.
        when_us = self._now_us + max(ceil(delay * 1e6), 1)
        handle = asyncio.TimerHandle(when_us / 1e6, callback, args, self, context)
        self._entries += 1
        heapq.heappush(self._agenda, (when_us, self._entries, handle))
        return handle

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        return self.call_later(when - self._now_us / 1e6, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled entries are passed over when their time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        process = PROCESS.get() if context is None else context.get(PROCESS)
        task = asyncio.Task(coro, loop=self, name=name or "sim", context=context)
        if process is not None:
            process.adopt(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(context)

    # -- Processes. ---------------------------------------------------------------------------------------------------
    def freeze(self, process: Process) -> None:
        assert process.state is RUNNING
        process.state = FROZEN

    def thaw(self, process: Process) -> None:
        if process.state is FROZEN:
            process.state = RUNNING
            process.thawed_at = self.time()
            self._ready.extend(process.backlog)
            process.backlog.clear()

    def kill(self, process: Process) -> None:
        """kill -9: cut off at once; the memory is gone after its tasks have unwound, within this instant."""
        if not process.alive:
            return
        process.state = DYING
        self._ready.extend(process.backlog)  # what would have woken its tasks is what ends them now
        process.backlog.clear()
        for task in process.tasks:
            task.cancel()
        self._bury(process, _BURY_ROUNDS)

    def _bury(self, process: Process, rounds: int) -> None:
        process.tasks = [task for task in process.tasks if not task.done()]
        if process.tasks and rounds:
            for task in process.tasks:
                if rounds % 10 == 0:  # it may have begun something new to wait for while unwinding
                    task.cancel()
            self.call_soon(self._bury, process, rounds - 1, context=self.outside)
            return
        assert not process.tasks, f"{process} does not end: {process.tasks}"
        process.state = DEAD

    # -- Running. -----------------------------------------------------------------------------------------------------
    def run(self, condition: Callable[[], bool], after_step: Callable[[], None]) -> None:
        """Take steps while `condition()` holds and the agenda is not empty."""
        asyncio._set_running_loop(self)
        try:
            self._run_ready()
            while condition() and self._next():
                self._run_ready()
                after_step()
        finally:
            asyncio._set_running_loop(None)

    def _next(self) -> bool:
        agenda = self._agenda
        while agenda:
            when_us, _, handle = heapq.heappop(agenda)
            if handle._cancelled:  # type: ignore[attr-defined]
                continue
            process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
            if process is not None and process.state is DEAD:
                continue
            self._now_us = max(self._now_us, when_us)
            self._ready.append(handle)
            self.steps += 1
            return True
        return False

    def _run_ready(self) -> None:
        ready = self._ready
        left = _SAME_INSTANT_MAX
        while ready:
            handle = ready.popleft()
            if handle._cancelled:  # type: ignore[attr-defined]
                continue
            process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
            if process is None or process.state is RUNNING or process.state is DYING:
                handle._run()  # type: ignore[attr-defined]
            elif process.state is FROZEN:
                process.backlog.append(handle)
            left -= 1
            if not left:
                raise Spinning(f"{_SAME_INSTANT_MAX} callbacks at {self.time():.6f} s, the last one {handle!r}")
