"""Calls between actors, as Ray makes them: a handle finds the actor by name, calls may overtake each other, each runs at most once.

What may become of a call:

    answered        request and reply arrive, each after a time of its own
    fails           RayActorError, because the callee is dead, died meanwhile, or the connection broke; it may have run
    hangs           the request, or only its reply, vanishes, and nobody says so (a partition; half open when one way still works)

A route leads to the newest incarnation of an actor. In a split, some callers still reach the old one.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ray.exceptions import RayActorError

from tests.sim.faults import Faults
from tests.sim.loop import PROCESS, Process, SimLoop

_HOP_S = 0.0003


class Network:
    """Who can reach whom. `routes` is kept by the cluster."""

    def __init__(self, loop: SimLoop, faults: Faults) -> None:
        self.loop = loop
        self.routes: dict[str, tuple[Process, Any]] = {}  # actor name -> newest incarnation and its actor
        self._old_routes: dict[tuple[str, str], tuple[float, tuple[Process, Any]]] = {}  # (caller, callee) -> until, who
        self._blocked: dict[tuple[str, str], float] = {}  # (from, to) -> until
        self._faults = faults
        self._rng = faults.rng("call-lost")
        self._slow_until = 0.0
        self.broken: list[str] = []  # calls that raised in the callee

    def handle(self, name: str) -> Handle:
        return Handle(self, name)

    # -- Faults that last. --------------------------------------------------------------------------------------------
    def block(self, sender: str, receiver: str, seconds: float) -> None:
        self._blocked[sender, receiver] = self.loop.time() + seconds

    def slow(self, seconds: float) -> None:
        self._slow_until = self.loop.time() + seconds

    def keep_route(self, caller: str, callee: str, seconds: float) -> None:
        """This caller goes on talking to the present incarnation."""
        self._old_routes[caller, callee] = (self.loop.time() + seconds, self.routes[callee])

    def heal(self) -> None:
        self._blocked.clear()
        self._old_routes.clear()
        self._slow_until = 0.0

    def _is_blocked(self, sender: str, receiver: str) -> bool:
        return bool(self._blocked) and self._blocked.get((sender, receiver), 0.0) > self.loop.time()

    def _hop_s(self) -> float:
        hop_s = _HOP_S * (0.2 + 2 * self._rng.random())
        if self.loop.time() < self._slow_until:
            hop_s += self._rng.random() ** 2 * 0.05
        return hop_s

    def _find(self, caller: str, callee: str) -> tuple[Process, Any] | None:
        old = self._old_routes.get((caller, callee))
        if old is not None and old[0] > self.loop.time() and old[1][0].alive:
            return old[1]
        return self.routes.get(callee)

    # -- Calls. -------------------------------------------------------------------------------------------------------
    def call(self, callee: str, args: tuple[Any, ...]) -> asyncio.Future[Any]:
        caller = PROCESS.get()
        assert caller is not None, "only actors call actors"
        future = self.loop.create_future()
        if not caller.alive or self._faults.strikes("call-hangs", 0.002):
            return future
        lost = self._faults.strikes("call-lost", 0.002)
        if lost and self._rng.random() < 0.5:
            self._fail(future, _HOP_S)
            return future
        self.loop.call_later(self._hop_s(), self._arrive, caller, callee, args, lost, future, context=self.loop.outside)
        return future

    def _fail(self, future: asyncio.Future[Any], delay_s: float) -> None:
        self.loop.call_later(delay_s, self._set_error, future, context=self.loop.outside)

    def _set_error(self, future: asyncio.Future[Any]) -> None:
        if not future.done():
            future.set_exception(RayActorError())

    def _arrive(self, caller: Process, callee: str, args: tuple[Any, ...], lost: bool, future: asyncio.Future[Any]) -> None:
        if self._is_blocked(caller.name, callee):
            return
        found = self._find(caller.name, callee)
        if found is None or not found[0].alive:
            self._fail(future, self._hop_s())
            return
        process, actor = found
        task = process.context.run(self.loop.create_task, actor.exchange(*args))
        task.add_done_callback(lambda done: self._done(done, caller, process, callee, lost, future), context=self.loop.outside)

    def _done(
        self, task: asyncio.Task[Any], caller: Process, process: Process, callee: str, lost: bool, future: asyncio.Future[Any]
    ) -> None:
        if task.cancelled() or not process.alive:  # it was killed
            self._fail(future, self._hop_s())
            return
        if (error := task.exception()) is not None:
            self.broken.append(f"{process} raised {error!r}")
            self._fail(future, self._hop_s())
        elif lost:
            self._fail(future, self._hop_s())
        elif not (self._is_blocked(callee, caller.name) or self._faults.strikes("call-hangs", 0.002)):
            self.loop.call_later(self._hop_s(), self._answer, future, task.result(), context=self.loop.outside)

    def _answer(self, future: asyncio.Future[Any], reply: bytes) -> None:
        if not future.done():
            future.set_result(reply)


class Handle:
    """What Ray's actor handle is to a link: `exchange.remote(...)` can be awaited."""

    def __init__(self, network: Network, name: str) -> None:
        self._network = network
        self._name = name
        self.exchange = self

    def remote(self, *args: Any) -> asyncio.Future[Any]:
        return self._network.call(self._name, args)
