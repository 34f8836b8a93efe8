"""Which actors are to be replaced by the next process of their name, and whose turn it is.

A process is replaced for one of three reasons:

    upgrade    it is named in `WantedNumbers.replacing`: every process that ran when the upgrade was wanted. The next one runs the code
               that is on its node then. One after another, by role: shards, schedulers, edges, then the controller itself
    its node   the node is to go: a spot notice, `ray drain-node`, an autoscaler that takes it away. All of the node at once, and before
               an upgrade goes on, since nodes have deadlines; Ray starts the next process on another node. The controller goes last
    its place  it is a guest: it lost its node, and started on one that offers it no place (`engine.actors.fleet`). Once a node has one
               free, it moves there, one actor of a role after another

States of an actor here
    to go      its present process is one of these; when it is its turn, it is emptied of slots, clients and what is not written yet
    told       it is empty, or its node goes in a moment, and it was told to end (`Fleet.told_to_end`). Ray starts the next process, or
               waits for a node with room. One that answers after `health_timeout_ms` has not heard it, and is told again
    replaced   another process answers. The next turn begins when everybody is ready

A guest asks for no place, so it is no demand for Ray's autoscaler; for the time before, `takeover_ms`, the actor was.

A process is named by its start. So before an upgrade is wanted, the controller asks all actors, and waits for those that start: between two
rounds an actor may have got a process that has the old code and that nobody has heard of. One that starts after its predecessor answered
has the new code.

An upgrade that makes no progress for `upgrade_step_ms` ends: what has been replaced stays, nothing else is, and the status says what it
waited for. Ray goes on starting a process that does not become ready. Another upgrade begins anew.

Nothing of this is stored but `replacing`: the successor of a controller asks the actors, and goes on with those that are left. What had
been emptied already is empty, and a process that was told to end and has not is told again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from engine.actors.fleet import ROLES, ActorKey, Fleet
from engine.core.controller.health import HealthWatch
from engine.core.controller.wanted import WantedNumbers

_SELF: Final = "controller"


def name_of(key: ActorKey) -> str:
    """The name of an actor in Ray."""
    return f"{key[0]}-{key[1]}"


class Replacements:
    """See the module's docstring.

    Args:
        own: the controller's view of itself.
        clock: monotonic milliseconds.
        reserve_ms: see `is_late`.
    """

    def __init__(self, fleet: Fleet, own: HealthWatch, clock: Callable[[], float], reserve_ms: int) -> None:
        self._fleet = fleet
        self._own = own
        self._clock = clock
        self._reserve_ms = reserve_ms
        self._turn: ActorKey | None = None  # of an upgrade
        self._told: dict[ActorKey, float] = {}  # when they were told to end

    def everyone(self) -> dict[str, int]:
        """`WantedNumbers.replacing` of an upgrade that begins now. Ask all actors first: one that is not named here keeps its code."""
        fleet = self._fleet
        running = {name_of(key): fleet.process(key) for key in fleet.watches if fleet.process(key)}
        return {**running, _SELF: int(self._own.stats["started_ms"])}

    def left(self, wanted: WantedNumbers) -> list[str]:
        """Names of the actors that an upgrade has still to replace, or may have: their processes have not answered."""
        actors = [name_of(key) for role in ROLES for key in self._outdated(role, wanted)]
        actors += [name for key in self._unknown(wanted) if (name := name_of(key)) in wanted.replacing]
        return [*actors, _SELF] if wanted.replacing.get(_SELF) == self._own.stats["started_ms"] else actors

    def on_draining_nodes(self) -> list[ActorKey]:
        """Actors whose nodes are to go, as far as they have answered from there last."""
        fleet = self._fleet
        return [key for role in ROLES for key in fleet.keys(role) if key not in fleet.leaving and fleet.on_draining_node(key)]

    def is_late(self, key: ActorKey, wall_ms: int) -> bool:
        """Whether the deadline of its node is so near that the actor starts elsewhere with what storage has, emptied or not."""
        deadline_ms = self._fleet.node_deadline_ms(key)
        return 0 < deadline_ms <= wall_ms + self._reserve_ms

    def turn(self, role: str, wanted: WantedNumbers) -> list[ActorKey]:
        """The actors of this role that are to be emptied and told to end now, or were told and have no successor yet."""
        leaving_nodes = self.on_draining_nodes()
        if leaving_nodes:
            return [key for key in leaving_nodes if key[0] == role]
        guests = sorted(key for key in self._fleet.guests if key[0] == role and key not in self._fleet.leaving)
        if guests and self._fleet.free_places(role) and self._fleet.ready():
            return guests[:1]
        turn = self._turn
        if turn is None or turn not in self._outdated(turn[0], wanted):
            self._turn = turn = self._next(wanted) if self._fleet.ready() else None
        return [turn] if turn is not None and turn[0] == role else []

    def turn_of_self(self, wanted: WantedNumbers) -> bool:
        """Whether all others have been replaced that are to be, and only this controller is left."""
        fleet = self._fleet
        if self.on_draining_nodes():
            return False
        if self._own.stats.get("node_id") in fleet.draining_nodes:
            return any(fleet.serves(key) for key in fleet.watches)  # elsewhere: there are other nodes
        return self.left(wanted) == [_SELF] and fleet.ready()

    def told(self, key: ActorKey) -> None:
        """Its process that was empty has been told to end."""
        self._told[key] = self._clock()

    def unheard(self, key: ActorKey, after_ms: float) -> bool:
        """Whether the process that was told to end so long ago still answers: Ray's word to it was lost."""
        fleet, told_ms = self._fleet, self._told.get(key)
        if told_ms is None or self._clock() - told_ms <= after_ms:
            return False
        return fleet.told_to_end(key) and bool(fleet.watches[key].row()["alive"])

    def waiting_ms(self) -> float | None:
        """How long ago the last process was told to end whose successor does not serve yet; None when there is none."""
        fleet = self._fleet
        self._told = {key: at_ms for key, at_ms in self._told.items() if key in fleet.watches and not fleet.serves(key)}
        return self._clock() - max(self._told.values()) if self._told else None

    def _outdated(self, role: str, wanted: WantedNumbers) -> list[ActorKey]:
        fleet = self._fleet
        return [
            key
            for key in fleet.keys(role)
            if key not in fleet.leaving and fleet.process(key) and wanted.replacing.get(name_of(key)) == fleet.process(key)
        ]

    def _unknown(self, wanted: WantedNumbers) -> Iterator[ActorKey]:
        """The actors that are to be there, and of which this controller has no answer."""
        fleet = self._fleet
        for role in ROLES:
            for key in ((role, index) for index in range(getattr(wanted, f"{role}s", 0))):
                if key not in fleet.leaving and not (key in fleet.watches and fleet.process(key)):
                    yield key

    def _next(self, wanted: WantedNumbers) -> ActorKey | None:
        return next((key for role in ROLES for key in self._outdated(role, wanted)), None)
