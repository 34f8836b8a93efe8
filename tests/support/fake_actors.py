"""Ray's control service and actors that keep the slot map as the real ones do, and nothing else: for tests of the controller's side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Any

import msgspec
from ray.exceptions import ActorDiedError, ActorUnavailableError
from redis.asyncio import Redis

from engine.actors.fleet import ActorKey
from engine.actors.ray_actors import RayActors
from engine.core.model.formats import FORMATS
from engine.store.slot_map import require_slot_map, swap_slot_map
from tests.support.waiting import until


class FakeActor:
    """One actor over all its processes; the attributes are for tests to change.

    Attributes:
        silent: no call returns.
        lost: every call fails, as one whose node is gone.
        gone: Ray has given it up.
        busy: its process takes a whole core.
        connections: of an edge.
        connected: somebody has a connection to its process, over which nothing is sent.
        lingers: an edge that has left says so, and does not end by itself.
        ready, formats: what `stats` says.
        calls: names of the methods that were called, with their arguments, the proof left out.
    """

    def __init__(self, cloud: FakeActors, key: ActorKey) -> None:
        self.key = key
        self.silent, self.lost = False, cloud.placed is not None and key[1] not in cloud.placed
        self.gone = False
        self.ready = self.has_place = True
        self.lingers = self.left = False
        self.calls: list[tuple[Any, ...]] = []
        self.loads: dict[int, float] = {}
        self.drained = False
        self.busy = False
        self.connections = 0
        self.formats = cloud.formats
        self.before_hand_over: Callable[[], None] = lambda: None
        self._cloud = cloud
        self.connected = False
        self.broken = asyncio.Event()
        self.begin()
        self.silent = cloud.full

    def begin(self) -> None:
        """Another process begins."""
        self.break_connections()
        self.pid, self.silent, self.drained = self._cloud.next_pid(), False, False
        self.node = "there" if "here" in self._cloud.draining else "here"
        if not self._cloud.born_ready:
            self.ready = False

    def break_connections(self) -> None:
        self.broken.set()
        self.broken, self.connected = asyncio.Event(), False

    async def die(self) -> None:
        """Its process ends once somebody is connected to it, and calls of it return late."""
        await until(lambda: self.connected)
        self.silent = True
        self.break_connections()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Method(self, name)

    @property
    def _client(self) -> Redis:
        """Of the server that it uses."""
        return self._cloud.clients[self.key[1] % len(self._cloud.clients)]

    async def answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if self.gone:
            raise ActorDiedError
        if self.lost:
            raise ActorUnavailableError("its node is lost", None)
        if self.silent:
            await asyncio.Event().wait()
        self.calls.append((name, *arguments[:-1]))
        return await getattr(self, f"_{name}")(*arguments)

    async def _stats(self) -> dict[str, Any]:
        role, index = self.key
        vitals = {"role": role, "index": index, "pid": self.pid, "started_ms": self.pid, "rss_bytes": 1, "node_id": self.node}
        vitals |= {"cpu_s": time.monotonic() if self.busy else 0.0, "queued_s": 0.0, "has_place": self.has_place}
        versions = [(await require_slot_map(client)).version for client in self._cloud.clients]
        vitals |= {"formats": self.formats, "spares": self._cloud.warm}
        vitals |= {"left": True} if self.left else {}
        vitals |= {"connections": {"websocket": self.connections, "poll": 1000}} if role == "edge" else {}
        return {**vitals, "ready": self.ready, "slots_version": versions[index % len(versions)], "slots_versions": versions}

    async def _hand_over(self, *arguments: Any) -> int:
        if self.key[0] == "edge" and self.lingers:
            self.left = True
            return 0
        if self.key[0] == "edge":
            self._cloud.restart(self)  # it has ended, and Ray starts the next one
            return 0
        slots, to, _ = arguments
        self.before_hand_over()
        while True:
            found = await require_slot_map(self._client)
            own = [slot for slot in slots if found.owners[slot] == self.key[1]]
            if not own:
                return found.version
            changed = found.with_owner(own, to)
            if await swap_slot_map(self._client, changed):
                self._cloud.moved.extend((slot, self.key[1], to) for slot in own)
                return changed.version

    async def _release(self, count: int, _proof: bytes) -> None:
        self.connections -= count

    async def _adopt(self, version: int, _proof: bytes) -> None:
        assert version <= (await require_slot_map(self._client)).version

    async def _follow(self, version: int, _proof: bytes) -> None:
        await self._adopt(version, _proof)

    async def _slot_loads(self, _proof: bytes) -> dict[int, float]:
        return self.loads

    async def _drain(self, _proof: bytes) -> None:
        slots = await require_slot_map(self._client)
        alone = (not self.has_place and len(self._cloud.of("shard")) == 1) or self._cloud.draining.get(self.node)
        assert self.key[1] not in slots.owners or self.key[0] != "shard" or alone, "it is drained when it has no slots any more"
        self.drained = True


class Connection:
    """To a process, over which nothing is sent; a Peer."""

    carrier, retry_s = "unix", None

    def __init__(self, actor: FakeActor | None) -> None:
        self._actor = actor
        self._broken = asyncio.Event()

    async def open(self) -> float:
        if self._actor is None or self._actor.lost or self._actor.silent:
            raise OSError("nobody listens")
        self._broken, self._actor.connected = self._actor.broken, True
        return 0.05

    async def lost(self) -> bool:
        await self._broken.wait()
        return True

    def close(self) -> None: ...


class _Method(msgspec.Struct):
    actor: FakeActor
    name: str

    def remote(self, *arguments: Any) -> Any:
        return self.actor.answer(self.name, arguments)


class FakeActors(RayActors):
    """What the controller asks of Ray's control service.

    Attributes:
        actors: those there are.
        moved: (slot, from, to), in order.
        born_ready, formats: what new actors say.
        placed: the only new actors that get a process, by their indexes.
        draining: nodes that are to go, and their deadlines. Processes start on node `here`, once it is to go on `there`.
        replaced: actors whose process ended and was to start anew, in order.
        full: no node has room for a process.
        room: whether a node has a place free.
        guests: those that were created without one.
        spares: nodes on which a process without an actor was started, in order.
        warm: how many of those there are, as actors say.
        controllers_ended: how many controllers have ended themselves for good.
    """

    def __init__(self, *clients: Redis) -> None:
        self.clients = clients
        self.actors: dict[ActorKey, FakeActor] = {}
        self.ended: list[ActorKey] = []
        self.moved: list[tuple[int, int, int]] = []
        self.born_ready = True
        self.formats = FORMATS
        self.placed: Collection[int] | None = None
        self.draining: dict[str, int] = {}
        self.replaced: list[ActorKey] = []
        self.full = False
        self.room = True
        self.carried = dict.fromkeys(("shard", "scheduler", "edge"), 16)
        self.asked = 0  # about room
        self.guests: list[ActorKey] = []
        self.spares: list[str] = []
        self.warm = 1
        self.controllers_ended = 0
        self._pids = 0

    def next_pid(self) -> int:
        self._pids += 1
        return self._pids

    def peer(self, name: str, _credentials: Any) -> Any:
        role, _, index = name.partition("-")
        return Connection(self.actors.get((role, int(index))))

    async def names(self, _namespace: str) -> set[str]:
        return {f"{role}-{index}" for role, index in self.actors}

    async def places(self) -> dict[str, tuple[int, int]]:
        self.asked += 1
        return dict.fromkeys(("shard", "scheduler", "edge"), (4, 1 if self.room else 0))

    async def capacity(self, *, by_cores: bool) -> dict[str, int]:
        return self.carried

    def create(self, _given: Any, role: str, index: int, *, guest: bool = False) -> FakeActor:
        if guest:
            self.guests.append((role, index))
        if (role, index) not in self.actors or self.actors[role, index].gone:
            self.actors[role, index] = actor = FakeActor(self, (role, index))
            actor.has_place = not guest
        return self.actors[role, index]

    async def draining_nodes(self) -> dict[str, int]:
        return self.draining

    async def start_spares(self, node_id: str, count: int) -> bool:
        self.spares += [node_id] * count
        self.warm += count
        return True

    def show(self, namespace: str, rows: list[Any], now_ms: float) -> None:
        self.shown = rows

    def kill(self, handle: FakeActor, *, restart: bool) -> None:
        if restart:
            if handle.key[0] == "shard":
                assert handle.drained or handle.silent, "it has written what it has"
            self.restart(handle)
        else:
            self.ended.append(handle.key)
            self.actors.pop(handle.key)

    def end_self(self) -> None:
        self.controllers_ended += 1

    def of(self, role: str) -> list[int]:
        return sorted(index for found, index in self.actors if found == role)

    def restart(self, actor: FakeActor) -> None:
        """Ray starts its next process; with `full` it waits for a node with room."""
        self.replaced.append(actor.key)
        if self.full:
            actor.silent = True
        else:
            actor.begin()

    def fail(self) -> None:
        """Raise what a call raises whose actor dies."""
        raise ActorUnavailableError("it died", None)
