"""The actors that a controller looks after: their handles, and what it knows of each.

States of an actor here
    joining   created while the engine runs, and not ready yet: it may wait for a machine. The engine is ready without it
    member    it was ready once, or the engine began with it: replaced when it hangs, created anew when Ray has given it up
    leaving   it is about to end for good: neither replaced nor created anew
    guest     a member whose node is lost, and for which no other one has a place: it was created anew on a node that offers none, so that
              its users do not wait for a machine. It stays until a node has a place free (`engine.actors.replacements`); a successor of
              it needs no place either. Its process says that it has none, so a controller that starts learns it

A member's process may be told to end, so that Ray starts the next one: the member serves again when that one is ready.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from ray.exceptions import RayError

from engine.actors.feature_actors import FEATURE_ROLES
from engine.actors.ray_actors import RayActors, place_of
from engine.config import Config
from engine.core.controller.health import HealthWatch
from engine.core.model.routing import store_of
from engine.store.sealed_config import SealedConfig

log = logging.getLogger(__name__)

ActorKey = tuple[str, int]
"""(role, index)."""

ROLES: Final = ("shard", "scheduler", "edge", *FEATURE_ROLES)

_PLACES_S: Final = 0.5
"""For Ray's control service to say what is free; while it is away that is not known."""

_ANSWER_MS: Final = 100
"""For the answer of a process to which only the connection broke."""

_SILENT_MS: Final = 5000
"""An actor that has not answered for so long may wait for a place: a process that Ray starts takes less."""


class Fleet:
    """See the module's docstring.

    Args:
        given: what actors are constructed with.
        clock: monotonic milliseconds.
    """

    def __init__(self, given: Config | SealedConfig, actors: RayActors, clock: Callable[[], float]) -> None:
        self._given = given
        self._config = given.public if isinstance(given, SealedConfig) else given
        self._needs_places = self._config.place == "offered"
        self._actors = actors
        self._clock = clock
        self.handles: dict[ActorKey, Any] = {}
        self.watches: dict[ActorKey, HealthWatch] = {}
        self.joining: dict[ActorKey, float] = {}  # since when
        self.leaving: set[ActorKey] = set()
        self.draining_nodes: Mapping[str, int] = {}  # ids of nodes that are to go, and their deadlines
        self.ray_answers = True  # its control service: to create an actor blocks the process while that is away
        self.stores_alive: Sequence[bool] = ()  # in the controller's last round; empty: no silence counts, the first did not answer
        self.guests: set[ActorKey] = set()
        self.places: Mapping[str, tuple[int, int]] = {}  # by role, as Ray said last: offered, and of these free
        self._asking: asyncio.Future[dict[str, tuple[int, int]]] | None = None
        self._away: dict[ActorKey, float] = {}  # members that do not answer: since when
        self._died: dict[ActorKey, float] = {}  # those of them whose process has ended, or was told to since it hangs: since when
        self._given_up_ms: dict[ActorKey, float] = {}  # when the next process of those that died is waited for no longer
        self._certain: set[ActorKey] = set()  # those that broke for no other reason than their end
        self._drained: dict[ActorKey, int] = {}  # the process that was last told to end

    async def existing(self) -> list[ActorKey]:
        """The actors of this engine in Ray, also those that it is about to start again, in one order. Raises RayError."""
        parted = (name.rpartition("-") for name in await self._actors.names(self._config.namespace))
        return sorted((role, int(index)) for role, _, index in parted if role in ROLES and index.isdecimal())

    def add(self, key: ActorKey, *, joining: bool = False) -> None:
        """Look after this actor, created when there is none. No effect when that is so already."""
        if key in self.watches:
            return
        self.watches[key] = HealthWatch(*key, self._config.health_timeout_ms, self._clock())
        if joining:
            self.joining[key] = self._clock()
        self.create(key)

    def create(self, key: ActorKey) -> None:
        """The actor of this name, created when there is none."""
        self.handles[key] = self._actors.create(self._given, *key, guest=key in self.guests)

    def replace(self, key: ActorKey) -> None:
        """End its process; Ray starts the next one, which is waited for, that of a guest where there is a place."""
        self.failed(key, died=True)
        if key in self.guests:
            self.guests.discard(key)
            self._actors.kill(self.handles[key], restart=False)
            self.create(key)
        else:
            self._actors.kill(self.handles[key], restart=True)

    def end(self, key: ActorKey) -> None:
        """End it for good."""
        self._actors.kill(self.handles.pop(key), restart=False)
        del self.watches[key]
        self.joining.pop(key, None)
        self.leaving.discard(key)
        self._drained.pop(key, None)
        self._away.pop(key, None)
        self._revived(key)
        self.guests.discard(key)

    def failed(self, key: ActorKey, *, died: bool = False) -> None:
        """It did not answer; `died`: its process has ended, as far as Ray knows, or is being ended."""
        now_ms = self._clock()
        self._away.setdefault(key, now_ms)
        if died:
            self._died.setdefault(key, now_ms)
            self._given_up_ms.setdefault(key, now_ms + self._config.failover_ms)

    def broke(self, key: ActorKey, *, certain: bool) -> None:
        """The connection to its process broke; its next one is waited for (`waited_for`).

        Not at all where its node has no spare process for it, by what the others there have said: one that is started takes longer.

        Args:
            certain: its process has ended; else the process may be about to answer.
        """
        known = key in self._died
        self.failed(key, died=True)
        if certain:
            self._certain.add(key)
        if known:
            return
        node = self.watches[key].stats.get("node_id")
        others = [other for other, watch in self.watches.items() if watch.stats.get("node_id") == node and other != key]
        spares = min((self.watches[other].stats.get("spares", 0) for other in others if other not in self._away), default=0)
        if spares <= sum(other in self._died for other in others):
            self._given_up_ms[key] = self._clock() + (0 if certain else min(_ANSWER_MS, self._config.failover_ms))

    def waited_for(self, key: ActorKey) -> bool:
        """Whether its process has ended, and the next one may be about to serve."""
        return self._given_up_ms.get(key, -math.inf) > self._clock()

    def died_since(self, key: ActorKey, since_ms: float) -> bool:
        """Whether its process has ended since then, and the next one has not answered."""
        return self._died.get(key, -math.inf) > since_ms

    def dead(self, role: str, for_ms: float | None = None) -> list[int]:
        """Indices of the members of this role that have served nobody for so long; None: for longer than the next process is waited for."""
        now_ms = self._clock()
        over_ms = self._given_up_ms if for_ms is None else {key: at_ms + for_ms for key, at_ms in self._died.items()}
        gone = (key for key, at_ms in over_ms.items() if key[0] == role and now_ms >= at_ms)
        return sorted(key[1] for key in gone if not (key in self.joining or key in self.leaving))

    def without_place(self) -> list[ActorKey]:
        """Shards and schedulers that have not answered for `takeover_ms`; see `take_over`."""
        since_ms = self._clock() - self._config.takeover_ms
        members = (key for key, away_ms in self._away.items() if away_ms <= since_ms and key[0] in ("shard", "scheduler"))
        return [key for key in members if not (key in self.guests or key in self.joining or key in self.leaving)]

    async def look_for_places(self) -> bool:
        """Bring `places` up to date; returns whether Ray has said it. Nobody waits long for a control service that is away.

        Ray is asked while somebody may need a place. It is forgotten afterwards: those who start another day do not lack what these did.
        With `place = "anywhere"` nobody needs one, and Ray starts elsewhere what has lost its node.
        """
        if not (self._needs_places and (self.guests or self.without_place() or self.may_wait())):
            self.places = {}
            if self._asking is not None:
                self._asking.cancel()
                self._asking = None
            return False
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._actors.places())
        done, _ = await asyncio.wait({self._asking}, timeout=_PLACES_S)
        if not done:
            return False
        asked, self._asking = self._asking, None
        try:
            self.places = asked.result()
        except RayError as error:
            log.info("free places are not known: %s", error)
            return False
        return True

    def free_places(self, role: str) -> int:
        """For actors of this role, as Ray said last."""
        return self.places.get(role, (0, 0))[1]

    def may_wait(self) -> list[ActorKey]:
        """Actors that have had no process that answers for some seconds, whatever they wait for."""
        unborn = {key: at_ms for key, at_ms in self.joining.items() if not self.watches[key].stats}
        since_ms = self._clock() - _SILENT_MS
        return sorted(key for key, at_ms in (self._away | unborn).items() if at_ms <= since_ms and key not in self.leaving)

    def waiting(self) -> list[dict[str, Any]]:
        """For the status: actors that wait for a node with a place, and how many such places there are."""
        return [
            {"actor": f"{role}-{index}", "resource": place_of(role), "offered": self.places[role][0]} for role, index in self.without_room()
        ]

    def without_room(self) -> list[ActorKey]:
        """Actors that wait for a node with a place, by what Ray said last."""
        return [key for key in self.may_wait() if key[0] in self.places and not self.free_places(key[0])]

    def nodes(self) -> int:
        """How many nodes the actors are on, as far as they have answered."""
        return len({watch.stats["node_id"] for watch in self.watches.values() if "node_id" in watch.stats})

    def take_over(self, key: ActorKey) -> None:
        """Let it start as a guest, for which it has time. Its epoch fences the process on the lost node, if that still runs."""
        self.guests.add(key)
        self.watches[key].excuse(self._clock())
        self._actors.kill(self.handles[key], restart=False)
        self.create(key)

    def keys(self, role: str) -> list[ActorKey]:
        return sorted(key for key in self.watches if key[0] == role)

    def answered(self, key: ActorKey) -> None:
        """It has just answered; once it is ready it is a member. It may have been ended meanwhile.

        The next process of a dead one, which has answered and is not ready, is waited for from now on: it may die as well.
        """
        self._away.pop(key, None)
        if key not in self.watches:
            return
        row = self.watches[key].row()
        if row["ready"]:
            self._revived(key)
        elif key in self._died:
            self._given_up_ms[key] = self._clock() + self._config.failover_ms
            self._certain.discard(key)
        if self._needs_places and not row.get("has_place", True) and not self.told_to_end(key):
            self.guests.add(key)
        if row["ready"]:
            self.joining.pop(key, None)

    def row(self, key: ActorKey) -> dict[str, Any]:
        row = self.watches[key].row()
        return {**row, "leaving": True} if key in self.leaving else row

    def serves(self, key: ActorKey) -> bool:
        """Whether the actor was ready at its last answer, and was not told to leave since."""
        if key not in self.watches or key in self.leaving:
            return False
        return bool(self.watches[key].row()["ready"]) and not self.told_to_end(key)

    def process(self, key: ActorKey) -> int:
        """When the process started that answered last, by its own clock; 0 when none has. Names it among those of the actor."""
        return int(self.watches[key].stats.get("started_ms", 0))

    def drained(self, key: ActorKey) -> None:
        """Its present process was told to end, and to leave what it has to others."""
        self._drained[key] = self.process(key)

    def kept(self, key: ActorKey) -> None:
        """Its process was not told to end after all."""
        self._drained.pop(key, None)

    def told_to_end(self, key: ActorKey) -> bool:
        """Whether the process that answered last was told to end."""
        return self._drained.get(key) == self.process(key)

    def on_draining_node(self, key: ActorKey) -> bool:
        """Whether the process that answered last is on a node that is to go."""
        return self.watches[key].stats.get("node_id") in self.draining_nodes

    def node_deadline_ms(self, key: ActorKey) -> int:
        """When that node goes, wall clock; 0 when it does not, or has no deadline."""
        return self.draining_nodes.get(str(self.watches[key].stats.get("node_id")), 0)

    def excuse(self) -> None:
        """Storage did not answer this process, which may be cut off itself, or it stood still: silence until now does not count.

        Where only a store did not answer, that of shards and schedulers of the others counts, while the first one answers: that one
        confirms who is in control.
        """
        alive = self.stores_alive
        partly = not all(alive) and alive[0]
        for key, watch in self.watches.items():
            if not (partly and key[0] in ("shard", "scheduler") and alive[store_of(key[1], len(alive))]):
                self._away.pop(key, None)
                watch.excuse(self._clock())

    def excuse_all(self) -> None:
        """The first store did not answer since the last round, or this process stood still: no silence until now counts."""
        self.stores_alive = ()
        self.excuse()

    def _revived(self, key: ActorKey) -> None:
        self._died.pop(key, None)
        self._given_up_ms.pop(key, None)
        self._certain.discard(key)

    def doubt(self, keys: Iterable[ActorKey]) -> None:
        """Their storage did not answer this process, which may be cut off from them as well: they count as alive, unless it is certain."""
        for key in keys:
            if key not in self._certain:
                self._revived(key)

    def ready(self) -> bool:
        """Whether all members are."""
        return all(self.watches[key].row()["ready"] for key in self.watches.keys() - self.joining.keys() - self.leaving)
