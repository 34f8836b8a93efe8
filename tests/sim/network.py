"""Calls between actors, as Ray makes them: a handle finds the actor by name, calls may overtake each other, each runs at most once.

What may become of a call:

    answered        request and reply arrive, each after a time of its own
    fails           RayActorError, because the callee is dead, died meanwhile, or the connection broke; it may have run
    hangs           the request, or only its reply, vanishes, and nobody says so (a partition; half open when one way still works)

A route leads to the newest incarnation of an actor. In a split, some callers still reach the old one; so does who is cut off from Ray's
control service, which would say that there is a newer one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayError

from engine.errors import Unavailable
from tests.sim.cuts import CALLS, Cuts, Place
from tests.sim.faults import Faults
from tests.sim.loop import PROCESS, Process, SimLoop

_HOP_S = 0.0003


class Network:
    """Routes and calls. `routes` is kept by the cluster; `control` is the place of Ray's control service."""

    def __init__(self, loop: SimLoop, faults: Faults, cuts: Cuts, control: Place) -> None:
        self.loop = loop
        self.routes: dict[str, tuple[Process, Any]] = {}  # actor name -> newest incarnation and its actor
        self._old_routes: dict[tuple[str, str], tuple[float, tuple[Process, Any]]] = {}  # (caller, callee) -> until, who
        self._known: dict[tuple[Process, str], tuple[Process, Any]] = {}  # caller, callee -> the route that it was told of last
        self._cuts = cuts
        self._control = control
        self._faults = faults
        self._rng = faults.rng("call-lost")
        self._cut_rng = faults.rng("partition")
        self._slow_until = 0.0
        self.removed: set[str] = set()  # actors that are not started again
        self.broken: list[str] = []  # calls that raised in the callee

    def handle(self, name: str) -> Handle:
        return Handle(self, name)

    # -- Faults that last. --------------------------------------------------------------------------------------------
    def slow(self, seconds: float) -> None:
        self._slow_until = self.loop.time() + seconds

    def keep_route(self, caller: str, callee: str, seconds: float) -> None:
        """This caller goes on talking to the present incarnation."""
        self._old_routes[caller, callee] = (self.loop.time() + seconds, self.routes[callee])

    def kept_until(self, caller: str, callee: str) -> float:
        """Until when it goes on so."""
        return self._old_routes.get((caller, callee), (0.0, None))[0]

    def heal(self) -> None:
        self._old_routes.clear()
        self._slow_until = 0.0

    def _hop_s(self) -> float:
        hop_s = _HOP_S * (0.2 + 2 * self._rng.random())
        if self.loop.time() < self._slow_until:
            hop_s += self._rng.random() ** 2 * 0.05
        return hop_s

    def _find(self, caller: Process, callee: str) -> tuple[Process, Any] | None:
        old = self._old_routes.get((caller.name, callee))
        if old is not None and old[0] > self.loop.time() and old[1][0].alive:
            return old[1]
        known = self._known.get((caller, callee))
        if known is not None and self._cuts.is_cut(self._control, caller.place):
            return known
        found = self.routes.get(callee)
        if found is not None and found is not known:
            self._known[caller, callee] = found
        return found

    def reaches_newest(self, caller: Process, callee: str) -> bool:
        """Not where Ray cannot tell this caller of the newest process: its calls go to the one before, which may answer."""
        known = self._known.get((caller, callee), self.routes[callee])
        return known is self.routes[callee] or not self._cuts.is_cut(self._control, caller.place)

    # -- Calls. -------------------------------------------------------------------------------------------------------
    def call(self, callee: str, method: str, args: tuple[Any, ...]) -> asyncio.Future[Any]:
        caller = PROCESS.get()
        assert caller is not None, "only actors call actors"
        future = self.loop.create_future()
        if not caller.alive or self._faults.strikes("call-hangs", 0.002):
            return future
        lost = self._faults.strikes("call-lost", 0.002)
        if lost and self._rng.random() < 0.5:
            self._fail(future, _HOP_S)
            return future
        self.loop.call_later(self._hop_s(), self._arrive, caller, callee, method, args, lost, future, context=self.loop.outside)
        return future

    def _fail(self, future: asyncio.Future[Any], delay_s: float, error: RayError | None = None) -> None:
        self.loop.call_later(delay_s, self._set_error, future, error or RayActorError(), context=self.loop.outside)

    def _set_error(self, future: asyncio.Future[Any], error: RayError) -> None:
        if not future.done():
            future.set_exception(error)

    def _arrive(self, caller: Process, callee: str, method: str, args: tuple[Any, ...], lost: bool, future: asyncio.Future[Any]) -> None:
        found = self._find(caller, callee)
        if found is not None and self._cuts.is_cut(caller.place, found[0].place, CALLS):
            wait_s = self._cuts.open_at(caller.place, found[0].place, CALLS) - self.loop.time()
            self._into_a_cut(future, wait_s, self._arrive, caller, callee, method, args, lost, future)
            return
        if found is None or not found[0].alive:
            self._fail(future, self._hop_s(), ActorDiedError() if callee in self.removed else RayActorError())
            return
        process, actor = found
        task = process.context.run(self.loop.create_task, getattr(actor, method)(*args))
        task.add_done_callback(lambda done: self._done(done, caller, process, lost, future), context=self.loop.outside)

    def _into_a_cut(self, future: asyncio.Future[Any], wait_s: float, arrive: Callable[..., None], *args: Any) -> None:
        """It vanishes, or Ray says so after a while, or it arrives when the cut is over and Ray has connected again."""
        way = self._cut_rng.random()
        if way < 0.3:
            self.loop.call_later(0.2, self._set_error, future, ActorUnavailableError("cut", None), context=self.loop.outside)
        elif way < 0.7:
            self.loop.call_later(wait_s + 0.3 * self._cut_rng.random(), arrive, *args, context=self.loop.outside)

    def _done(self, task: asyncio.Task[Any], caller: Process, process: Process, lost: bool, future: asyncio.Future[Any]) -> None:
        if task.cancelled() or not process.alive:  # it was killed
            self._fail(future, self._hop_s())
            return
        if isinstance(error := task.exception(), Unavailable):
            self._fail(future, self._hop_s(), RayError(error))
        elif error is not None:
            self.broken.append(f"{process} raised {error!r}")
            self._fail(future, self._hop_s())
        elif lost:
            self._fail(future, self._hop_s())
        elif self._cuts.is_cut(process.place, caller.place, CALLS):
            wait_s = self._cuts.open_at(process.place, caller.place, CALLS) - self.loop.time()
            self._into_a_cut(future, wait_s, self._answer, future, task.result())
        elif not self._faults.strikes("call-hangs", 0.002):
            self.loop.call_later(self._hop_s(), self._answer, future, task.result(), context=self.loop.outside)

    def _answer(self, future: asyncio.Future[Any], reply: Any) -> None:
        if not future.done():
            future.set_result(reply)


class Handle:
    """What Ray's actor handle is to a caller: `exchange.remote(...)` can be awaited."""

    def __init__(self, network: Network, name: str) -> None:
        self.name = name
        self._network = network

    def __getattr__(self, method: str) -> Method:
        return Method(self._network, self.name, method)


class Method:
    """A remote method of an actor."""

    def __init__(self, network: Network, actor: str, name: str) -> None:
        self._network = network
        self._actor = actor
        self._name = name

    def remote(self, *args: Any) -> asyncio.Future[Any]:
        return self._network.call(self._actor, self._name, args)
