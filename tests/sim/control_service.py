"""Ray's control service: starts actors again, ends them when the controller asks, says where they are, gives up hosts that are silent.

It is a party like the others, on a host, and can be cut off:

    a process ends         its host reports it and the actor starts again there, once the two reach each other
    a kill is asked for    carried out when the request gets through, by the incarnation that is the newest then
    a creation, an end     carried out when the request gets through
    a lookup               gets no answer while the caller is cut off
    a host is silent       for `_SILENCE_S`: it is given up, and its actors start on other hosts while the old ones run on, since nobody
                           can tell them. When the host is back, it finds that it was given up, and ends all of them, or fails to
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from tests.sim.cuts import RAY, Cuts, Place
from tests.sim.loop import Process, SimLoop

_SILENCE_S: Final = 0.7
_LOOK_S: Final = 0.1
_HOP_S: Final = 0.001

_ENDS_WITHIN_S: Final = (0.02, 0.5, None, None)
"""Until a host that was given up has ended its processes. None: they live on beside their successors, as where nothing reaps them."""


class ControlService:
    """See the module's text.

    Args:
        hosts: of actors.
        host: its own.
        processes: all that ever were.
        newest: the newest incarnation of an actor.
        start: starts an actor on a host.
        end: ends a process.
    """

    def __init__(
        self,
        loop: SimLoop,
        cuts: Cuts,
        rng: Random,
        hosts: Sequence[str],
        host: str,
        processes: Sequence[Process],
        newest: Callable[[str], Process],
        start: Callable[[str, str], None],
        end: Callable[[Process], None],
    ) -> None:
        self._loop = loop
        self._cuts = cuts
        self._rng = rng
        self._hosts = list(hosts)
        self.place = Place(RAY, host)
        self._processes = processes
        self._newest = newest
        self._start = start
        self._end = end
        self._given_up: set[str] = set()

    def _later(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        self._loop.call_later(delay_s, act, *args, context=self._loop.outside)

    def _reaches(self, host: str) -> bool:
        """Both ways: it asks, and is answered."""
        return self._cuts.both_open_at(self.place, Place(f"raylet of {host}", host)) <= self._loop.time()

    # -- Starting. ----------------------------------------------------------------------------------------------------
    def restart(self, dead: Process) -> None:
        """Start the successor of this incarnation, unless there is one: where it was, or on another host when that is given up."""
        if self._newest(dead.name) is not dead:
            return
        host = self._place_for(dead)
        if host:
            self._start(dead.name, host)
        else:
            self._later(_LOOK_S, self.restart, dead)

    def _place_for(self, dead: Process) -> str:
        host = dead.place.host
        if host not in self._given_up:
            return host if self._reaches(host) else ""
        others = [host for host in self._hosts if host not in self._given_up and self._reaches(host)]
        return self._rng.choice(others) if others else ""

    # -- Hosts. -------------------------------------------------------------------------------------------------------
    def cut_off(self, host: str) -> None:
        """Something may keep this host from answering from now on."""
        if host in self._hosts and not self._reaches(host):
            self._later(_SILENCE_S, self._look, host, self._loop.time())

    def _look(self, host: str, since_s: float) -> None:
        if self._reaches(host) or host in self._given_up:
            return
        self._given_up.add(host)
        for process in self._on(host):
            self._later(0.05 * self._rng.random(), self.restart, process)
        self._back(host)

    def _back(self, host: str) -> None:
        if not self._reaches(host):
            self._later(_LOOK_S, self._back, host)
            return
        within_s = self._rng.choice(_ENDS_WITHIN_S)
        for process in self._on(host):
            if within_s is not None or self._newest(process.name) is process:
                self._later((within_s or _LOOK_S) * self._rng.random(), self._end, process)
        self._given_up.discard(host)

    def _on(self, host: str) -> list[Process]:
        return [process for process in self._processes if process.alive and process.place.host == host]

    # -- What actors ask. ---------------------------------------------------------------------------------------------
    async def lookup(self, caller: Process) -> None:
        """Returns when it has answered where an actor is."""
        found: asyncio.Future[None] = self._loop.create_future()
        self._later(_HOP_S, self._answer, caller, found)
        await found

    def _answer(self, caller: Process, found: asyncio.Future[None]) -> None:
        if found.done():
            return
        wait_s = self._cuts.both_open_at(caller.place, self.place) - self._loop.time()
        if wait_s > 0:
            self._later(wait_s + _LOOK_S * self._rng.random(), self._answer, caller, found)
        else:
            found.set_result(None)

    def request(self, caller: Process, act: Callable[[str], None], name: str) -> None:
        """A process asks for an actor to be created, or ended for good."""
        self._later(_HOP_S, self._carry_out, caller.place, act, name)

    def _carry_out(self, sender: Place, act: Callable[[str], None], name: str) -> None:
        wait_s = self._cuts.open_at(sender, self.place) - self._loop.time()
        if wait_s > 0:
            self._later(wait_s + _LOOK_S * self._rng.random(), self._carry_out, sender, act, name)
        else:
            act(name)

    def kill(self, caller: Process, name: str) -> None:
        """A process asks for the end of an actor's process."""
        self._later(_HOP_S, self._kill, caller.place, name)

    def _kill(self, sender: Place, name: str) -> None:
        now_s = self._loop.time()
        wait_s = self._cuts.open_at(sender, self.place) - now_s
        victim = self._newest(name)
        if wait_s > 0 or not self._reaches(victim.place.host):
            self._later(max(wait_s, _LOOK_S) + _LOOK_S * self._rng.random(), self._kill, sender, name)
        else:
            self._end(victim)
