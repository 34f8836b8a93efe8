"""The engine's actors on simulated processes: the real Shard, Scheduler, Gateway, Controller, links; started, killed, frozen, replaced.

As Ray does it: an actor keeps its name over all incarnations; a dead one is started again after a while; what others hold is a
handle to the name.

A world has one host, or several. On one host links are Ray calls, nobody watches over the actors but Ray, and what can be cut are pairs of
actors. On several there is a controller, links take the carrier that the engine chooses, and whatever is on a host can be cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from hashlib import md5
from random import Random
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from engine.actors.actor_process import Process as ActorProcess
from engine.actors.actor_process import ProcessContext
from engine.actors.carrier import NOWHERE, ActorPeer, RayPeer
from engine.actors.controller import Controller
from engine.actors.edge_links import EdgeLinks
from engine.actors.incarnation import Incarnation
from engine.actors.link import LinkCaller
from engine.actors.ray_actors import RayActors
from engine.actors.scheduler import Scheduler
from engine.actors.shard import Shard
from engine.actors.socket_carrier import Address, CallerConnection, ServedBy
from engine.actors.tcp_carrier import LinkCredentials
from engine.config import Config, store_urls
from engine.core.model.formats import FORMATS
from engine.core.model.routing import NOBODY, SLOTS, SlotMap, slot_of, store_of
from engine.errors import ClockSetBack, Fenced
from engine.gateway.gateway import Gateway
from engine.gateway.metrics import EdgeMetrics
from engine.gateway.ports import EdgeContext
from engine.publish.message_ids import short_id
from engine.store.broadcast_stream import BroadcastLog
from engine.store.keys import EPOCH_FIELD, META_KEY, SLOTS_KEY
from engine.store.slot_map import assumed_routing_table, decode_slot_map, encode_slot_map
from engine.store.stores import connect_each
from tests.sim.control_service import ControlService
from tests.sim.cuts import CONTROLLER, RAY, REDIS, SECOND_REDIS, Cuts, Place
from tests.sim.faults import Faults
from tests.sim.loop import PROCESS, Process, SimLoop
from tests.sim.network import Handle, Network
from tests.sim.redis import MiniRedis
from tests.sim.sockets import Sockets
from tests.sim.storage import Client, Storage

DATA_EPOCH = "e1"
SPARE_SLOTS: Final = 4
"""Without users, in worlds where shards come and go, so that each of them has a share. All other slots without users are nobody's:
fencing a thousand of them at every start shows nothing."""

MADE_PREFIX = "made-"
"""Of ids that edges make for messages whose publisher gave none."""

START_MS = 1_800_000_000_000


_TCP_RETRY_S: Final = 0.6
"""Instead of the engine's half minute, which no world lasts."""

_UNDER_WAY_S: Final = 0.05
"""The longest that a record takes from a process to a client, pacing of links included."""


class Layout(Struct, frozen=True):
    """Which hosts there are, and who is where."""

    hosts: tuple[str, ...] = ("a",)
    redis: str = "a"
    ray: str = "a"
    sockets: bool = False  # links may use them

    @property
    def has_controller(self) -> bool:
        return len(self.hosts) > 1


def layout_of(seed: int) -> Layout:
    """Half of the worlds have several hosts."""
    rng = Random(f"{seed}:hosts")
    if rng.random() < 0.5:
        return Layout()
    hosts = rng.choice((("a", "b"), ("a", "b", "c")))
    return Layout(hosts, rng.choice((*hosts, "storage")), rng.choice((*hosts, "head")), rng.random() < 0.8)


class Neighbour(ActorPeer):
    """Another actor, as a link sees it: the engine's choice of carriers, over this world's sockets and calls."""

    tcp_retry_s = _TCP_RETRY_S

    def __init__(self, cluster: Cluster, process: Process, name: str, credentials: LinkCredentials) -> None:
        super().__init__(name, credentials)
        self._cluster = cluster
        self._process = process

    async def _find(self) -> Handle:
        await self._cluster.control.lookup(self._process)
        return self._cluster.network.handle(self._name)

    def _here(self) -> str:
        return self._process.place.host

    async def _connect_here(self) -> CallerConnection:
        return await self._cluster.sockets.connect(self._process, self._address.path)

    async def _connect(self) -> CallerConnection:
        return await self._cluster.sockets.connect(self._process, self._address.port)


class Actors(RayActors):
    """What the controller asks of Ray's control service, in this world."""

    def __init__(self, cluster: Cluster, process: Process) -> None:
        self._cluster = cluster
        self._process = process

    async def names(self, _namespace: str) -> set[str]:
        return set(self._cluster.names)

    def create(self, _config: Config, role: str, index: int, *, guest: bool = False) -> Handle:
        """The world began with most of them."""
        name = f"{role}-{index}"
        if name not in self._cluster.names:
            self._cluster.control.request(self._process, self._cluster.add_actor, name)
        return self._cluster.network.handle(name)

    async def places(self) -> dict[str, tuple[int, int]]:
        return dict.fromkeys(("shard", "scheduler", "edge"), (1, 1))

    async def capacity(self, *, by_cores: bool) -> dict[str, int]:
        return dict.fromkeys(("shard", "scheduler", "edge"), 1024)

    async def draining_nodes(self) -> dict[str, int]:
        return {}

    def show(self, namespace: str, rows: list[Any], now_ms: float) -> None:
        """There is no dashboard."""

    def kill(self, handle: Handle, *, restart: bool) -> None:
        if restart:
            self._cluster.on_kill(self._process, handle.name)
            self._cluster.control.kill(self._process, handle.name)
        else:
            self._cluster.control.request(self._process, self._cluster.remove_actor, handle.name)


class EdgeActor(ActorProcess):
    """An edge without its HTTP server: the gateway and the links of engine/actors/edge.py."""

    role = "edge"

    def __init__(self, config: Config, index: int, incarnation: str, context: ProcessContext, new_id: Callable[[], str]) -> None:
        super().__init__(config, index, context)
        self._incarnation = incarnation
        self._new_id = new_id
        self.gateway: Gateway | None = None
        self.links: dict[str, LinkCaller] = {}
        self._leaving: asyncio.Task[None] | None = None

    async def _run(self) -> None:
        clients = connect_each(self._context.connect, self._config)
        client = clients[0]
        incarnation = Incarnation(self._credentials.name, client)
        await self._retry_storage(incarnation.begin)
        links = EdgeLinks(self._config, self._credentials, clients, self._context)
        context = self._context
        self.gateway = Gateway(
            self._config,
            await self._retry_storage(lambda: assumed_routing_table(clients)),
            EdgeContext(
                self._incarnation,
                wall_ms=lambda: context.wall_ns() // 1_000_000,
                clock=lambda: int(context.monotonic_ms()),
                new_id=self._new_id,
                new_timer_name=self._new_timer_name,
            ),
            links,
            BroadcastLog(client, self._config),
            EdgeMetrics(f"edge-{self._index}"),
        )
        async with asyncio.TaskGroup() as tasks:
            for task in (links.run(self.gateway), self.gateway.run(), incarnation.watch(self._config.health_ms)):
                tasks.create_task(task)
            self.links = links.links
            self._ready.set()

    def _new_timer_name(self) -> str:
        """As long as in production, and with all its characters, the hyphen behind the partition among them."""
        return short_id(md5(self._new_id().encode(), usedforsecurity=False).hexdigest())

    async def hand_over(self, _proof: bytes = b"") -> int:
        """Leave the clients to other edges, then end."""
        if self._leaving is None and self._ready.is_set():
            self._leaving = asyncio.ensure_future(self._hand_over())
        return 0

    async def _hand_over(self) -> None:
        assert self.gateway is not None
        await self.gateway.hand_over()
        self._context.end_process()

    async def stats(self) -> dict[str, Any]:
        """As far as the controller looks at it."""
        return (
            self._vitals()
            if self.gateway is None
            else {**self._vitals(), "slots_versions": [slot_map.version for slot_map in self.gateway.slots.maps]}
        )


class Cluster:
    """Every process of the engine, and its Redis.

    Args:
        second_redis: the host of the second store, where `config.redis_url` names two.
    """

    def __init__(
        self,
        loop: SimLoop,
        faults: Faults,
        config: Config,
        users: list[str],
        layout: Layout,
        spare_slots: int,
        tell: Callable[[str], None],
        second_redis: str = "",
    ) -> None:
        self.loop = loop
        self.layout = layout
        self.config = config
        self.clock_offset_ms = 0
        self.cuts = cuts = Cuts(loop.time)
        self._urls = store_urls(config.redis_url)
        places = (Place(REDIS, layout.redis), Place(SECOND_REDIS, second_redis))[: len(self._urls)]
        timeout_s = config.redis_timeout_ms / 1000
        self.storages = [Storage(loop, faults, MiniRedis(self.wall_ms), timeout_s, cuts, place) for place in places]
        for storage in self.storages:
            storage.migrates = len(self._urls) > 1
        self.storage = self.storages[0]
        self.server = self.storage.server
        self.network = Network(loop, faults, cuts, Place(RAY, layout.ray))
        self.sockets = Sockets(loop, cuts, faults)
        self.processes: list[Process] = []
        self.actors: dict[Process, Any] = {}
        rng = faults.rng("cut-host")
        self.control = ControlService(loop, cuts, rng, layout.hosts, layout.ray, self.processes, self.newest, self._start, self.kill)
        self.on_recovered: Callable[[Process, Any], None] = lambda _process, _actor: None
        self.on_failure: Callable[[str], None] = lambda _why: None
        self.on_fenced: Callable[[str], None] = lambda _why: None
        self.on_end: Callable[[Process], None] = lambda _process: None
        self.on_change: Callable[[str], None] = lambda _what: None
        self.on_kill: Callable[[Process, str], None] = lambda _controller, _name: None
        self.on_start: Callable[[str, str], Any] = self.start
        self._tell = tell
        self._incarnations: dict[str, int] = {}
        self._sessions = 0
        self._ids = 0
        self._split_until_s = 0.0
        self._passed_over: set[Process] = set()  # shards that were taken for dead, and have not noticed
        used = [slot_of(user) for user in users]
        used += [slot for slot in range(SLOTS) if slot not in used][:spare_slots]
        for store, storage in enumerate(self.storages):
            owners, local = [NOBODY] * SLOTS, range(store, config.shards, self.stores)
            for number, slot in enumerate(slot for slot in used if store_of(slot, self.stores) == store):
                owners[slot] = local[number % len(local)]
            slot_map = SlotMap(1, tuple(owners), config.shards, config.schedulers, store, self.stores, FORMATS)
            storage.server.execute("SET", SLOTS_KEY, encode_slot_map(slot_map))
            storage.server.execute("HSET", META_KEY, EPOCH_FIELD, DATA_EPOCH)
        self.names = [
            *(f"shard-{index}" for index in range(config.shards)),
            *(f"scheduler-{index}" for index in range(config.schedulers)),
            *(f"edge-{index}" for index in range(config.edges)),
        ]
        self._places = Random(f"{layout}{users}")
        self._hosts = {name: self._places.choice(layout.hosts) for name in (*self.names, CONTROLLER)}

    @property
    def stores(self) -> int:
        """How many stores have the data."""
        return len(self.storages)

    def storage_of(self, index: int) -> Storage:
        """The store of the slot, the timer partition, the shard or the scheduler of this index."""
        return self.storages[store_of(index, self.stores)]

    def storage_of_actor(self, name: str) -> Storage:
        """The store that says who is the newest process of this actor."""
        role, _, index = name.partition("-")
        return self.storage_of(int(index)) if role in {"shard", "scheduler"} else self.storage

    @property
    def writer(self) -> Process | None:
        """The process whose commands a store applies right now."""
        for storage in self.storages:
            if storage.writer is not None:
                return storage.writer
        return None

    def serves_beside(self, key: str) -> bool:
        """Whether the store of this mailbox key is there while another one is away."""
        own = self.storage_of(slot_of(key))
        return self.stores > 1 and not own.is_away and any(storage.is_away for storage in self.storages)

    def _connect(self, config: Config) -> Client:
        """To the store that the URL names, the first one where it names all."""
        url = config.redis_url
        return Client(self.storages[self._urls.index(url) if url in self._urls else 0])

    def wall_ms(self) -> int:
        return START_MS + self.clock_offset_ms + int(self.loop.time() * 1000)

    def wall_ns(self) -> int:
        return (START_MS + self.clock_offset_ms) * 1_000_000 + int(self.loop.time() * 1_000_000_000)

    # -- Processes. ---------------------------------------------------------------------------------------------------
    def _start(self, name: str, host: str) -> None:
        self.on_start(name, host)

    def start(self, name: str, host: str = "") -> Process:
        """A new incarnation, which takes the name over; where the last one was unless a host is named."""
        self._hosts[name] = host = host or self._hosts[name]
        self._incarnations[name] = number = self._incarnations.get(name, 0) + 1
        process = Process(name, number, host)
        self.processes.append(process)

        async def listen(_config: Config, _credentials: LinkCredentials, served: ServedBy) -> Address:
            return self.sockets.listen(process, served) if self.layout.sockets else NOWHERE

        def peer(name: str, credentials: LinkCredentials) -> ActorPeer | RayPeer:
            if self.layout.has_controller:
                return Neighbour(self, process, name, credentials)
            return RayPeer(self.network.handle(name))

        def vitals(role: str, index: int, started_ms: int) -> dict[str, Any]:
            times = {"started_ms": started_ms, "cpu_s": 0.0, "queued_s": 0.0}
            return {"role": role, "index": index, "pid": self.processes.index(process), **times, "formats": FORMATS}

        context = ProcessContext(
            wall_ns=self.wall_ns,
            monotonic_ms=lambda: self.loop.time() * 1000,
            session_name=self._session_name,
            connect=self._connect,  # type: ignore[arg-type]
            peer=peer,
            listen=listen,
            vitals=vitals,
            tune_memory=lambda: self.on_recovered(process, actor),
            lasting=contextlib.nullcontext,
            end_process=lambda: self.ended(process),
        )
        role, _, index = name.partition("-")
        if role == CONTROLLER:
            actor: Any = process.context.run(Controller, self.config, context, Actors(self, process))
        else:
            actor = process.context.run(self._make, role, int(index), number, context)
        self.actors[process] = actor
        self.network.routes[name] = (process, actor)
        self._tell(f"START {process} on {host}")
        return process

    def _make(self, role: str, index: int, number: int, context: ProcessContext) -> Any:
        actor: ActorProcess
        if role == "edge":
            actor = EdgeActor(self.config, index, f"e{index}-{number}", context, self._new_id)
        else:
            actor = Shard(self.config, index, context) if role == "shard" else Scheduler(self.config, index, context)
        actor.begin()
        return actor

    def _session_name(self) -> str:
        self._sessions += 1
        return str(self._sessions)

    def _new_id(self) -> str:
        self._ids += 1
        return f"{MADE_PREFIX}{self._ids}"

    def add_actor(self, name: str) -> None:
        """It exists from now on, whether the slot map has it yet or not."""
        if name not in self.names:
            self.names.append(name)
            self.network.removed.discard(name)
            self._hosts[name] = self._places.choice(self.layout.hosts)
            self.on_change(f"{name.partition('-')[0]}s added")
            self.start(name)

    def remove_actor(self, name: str) -> None:
        """The controller ends it, and it stays ended."""
        if name in self.names:
            self.names.remove(name)
            self.on_change(f"{name.partition('-')[0]}s removed")
            self.network.removed.add(name)
            self.kill(self.newest(name))

    def set_schedulers(self, count: int) -> list[int]:
        """Store the next slot maps, with so many schedulers; returns their versions."""
        for storage, stored in zip(self.storages, self.slot_maps, strict=True):
            after = replace(stored, version=stored.version + 1, schedulers=count)
            storage.server.execute("SET", SLOTS_KEY, encode_slot_map(after))
        return [stored.version for stored in self.slot_maps]

    @property
    def slot_map(self) -> SlotMap:
        """That of the first store, as it is stored."""
        return decode_slot_map(self.server.execute("GET", SLOTS_KEY))

    @property
    def slot_maps(self) -> list[SlotMap]:
        """Those of all stores, as they are stored."""
        return [decode_slot_map(storage.server.execute("GET", SLOTS_KEY)) for storage in self.storages]

    def kill(self, process: Process) -> None:
        if process.alive:
            if process.name in self._twice():
                self._split_until_s = self.loop.time() + _UNDER_WAY_S
            self._tell(f"END {process}")
            self.loop.kill(process)
            self.sockets.died(process)
            self.on_end(process)

    def ended(self, process: Process) -> None:
        """The process ends itself."""
        assert PROCESS.get() is process
        actor = self.actors[process]
        causes = _leaves(sys.exc_info()[1] or (_failure(actor) if process.name == CONTROLLER else None))
        self._tell(f"{process} ends itself: {causes!r}")
        if causes == [None]:
            self.on_change(f"{process.name.partition('-')[0]} ended for the next one")
        elif all(isinstance(cause, Fenced | ClockSetBack) for cause in causes):
            self.on_fenced(type(causes[0]).__name__)
        else:
            self.on_failure(f"{process} ends itself: {causes!r}")
        # Not from within one of its own callbacks: they are what ends.
        self.loop.call_soon(self.kill, process, context=self.loop.outside)

    def names_of(self, role: str) -> list[str]:
        """The actors of this role that exist."""
        return [name for name in self.names if name.startswith(role)]

    def newest(self, name: str) -> Process:
        return self.network.routes[name][0]

    def actor(self, name: str) -> Any:
        return self.network.routes[name][1]

    def reaches(self, sender: Place, receiver: Place) -> bool:
        """Does what the one sends to the other get through?"""
        return not self.cuts.is_cut(sender, receiver)

    def edges(self) -> list[tuple[Process, EdgeActor]]:
        """The edges a client can reach now."""
        routes = (self.network.routes[name] for name in self.names_of("edge") if name in self.network.routes)
        return [(process, edge) for process, edge in routes if process.alive and edge.gateway is not None]

    def is_split(self) -> bool:
        """Are two owners of the same alive, or is what one of them sent before it ended still under way?"""
        return self.loop.time() < self._split_until_s or bool(self._twice())

    def _twice(self) -> set[str]:
        """The actors of which two incarnations are alive, and those that were taken for dead and live."""
        alive = Counter(process.name for process in self.processes if process.alive and process.name != CONTROLLER)
        return {name for name, count in alive.items() if count > 1} | {process.name for process in self._passed_over if process.alive}

    def slot_taken(self, holder: Process, slot: int) -> None:
        """Somebody else takes the epoch of a slot. A holder that has not handed it over serves on until it notices."""
        core = getattr(self.actors[holder], "_core", None)
        if holder.alive and core is not None and core.slot_map.owners[slot] == core.index:
            self._passed_over.add(holder)

    def end(self) -> None:
        """End every process, so that no task is left behind."""
        for process in self.processes:
            self.kill(process)


def _failure(controller: Controller) -> BaseException | None:
    """Of the task that ended it."""
    tasks = [
        task
        for task in (controller._round, controller._watching, controller._reconciling)
        if task is not None and task.done() and not task.cancelled()
    ]
    return next((error for task in tasks if (error := task.exception()) is not None), None)


def _leaves(error: BaseException | None) -> list[BaseException | None]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]
