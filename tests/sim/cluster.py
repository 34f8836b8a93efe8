"""The engine's actors on simulated processes: the real Shard, Scheduler, Gateway and links, started, killed, frozen and replaced.

As Ray does it: an actor keeps its name over all incarnations; a dead one is started again after a while; what others hold is a
handle to the name.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from engine.actors.actor_process import Process as ActorProcess
from engine.actors.actor_process import ProcessContext
from engine.actors.carrier import NOWHERE, RayPeer
from engine.actors.edge_links import EdgeLinks
from engine.actors.scheduler import Scheduler
from engine.actors.shard import Shard
from engine.actors.socket_carrier import Address
from engine.actors.tcp_carrier import LinkCredentials
from engine.config import Config
from engine.core.model.routing import SlotMap, slot_of
from engine.errors import ClockSetBack, Fenced
from engine.gateway.gateway import Gateway
from engine.gateway.metrics import EdgeMetrics
from engine.gateway.ports import EdgeContext
from engine.store.broadcast_stream import BroadcastLog
from engine.store.keys import EPOCH_FIELD, meta_key, slots_key
from engine.store.slot_map import require_slot_map
from tests.sim.faults import Faults
from tests.sim.loop import PROCESS, Process, SimLoop
from tests.sim.network import Network
from tests.sim.redis import MiniRedis
from tests.sim.storage import Client, Storage

DATA_EPOCH = "e1"
NOBODY = 99
"""Owner of the slots in which no simulated user lives: fencing a thousand unused slots at every start shows nothing."""

MADE_PREFIX = "made-"
"""Of ids that edges make for messages whose publisher gave none."""

START_MS = 1_800_000_000_000


async def _nowhere(_config: Config, _credentials: LinkCredentials, _served: Any) -> Address:
    """There are no sockets here."""
    return NOWHERE


class EdgeActor(ActorProcess):
    """An edge without its HTTP server: the gateway and the links of engine/actors/edge.py."""

    role = "edge"

    def __init__(self, config: Config, index: int, incarnation: str, context: ProcessContext, new_id: Callable[[], str]) -> None:
        super().__init__(config, index, context)
        self._incarnation = incarnation
        self._new_id = new_id
        self.gateway: Gateway | None = None

    async def _run(self) -> None:
        client = self._context.connect(self._config)
        links = EdgeLinks(self._config, self._credentials, client, self._context)
        context = self._context
        self.gateway = Gateway(
            self._config,
            await self._retry_storage(lambda: require_slot_map(client)),
            EdgeContext(
                self._incarnation,
                wall_ms=lambda: context.wall_ns() // 1_000_000,
                clock=lambda: int(context.monotonic_ms()),
                new_id=self._new_id,
            ),
            links,
            BroadcastLog(client, self._config),
            EdgeMetrics(f"edge-{self._index}"),
        )
        async with asyncio.TaskGroup() as tasks:
            for task in (*links.tasks(self.gateway), self.gateway.run()):
                tasks.create_task(task)


class Cluster:
    """Every process of the engine, and its Redis."""

    def __init__(self, loop: SimLoop, faults: Faults, config: Config, users: list[str], tell: Callable[[str], None]) -> None:
        self.loop = loop
        self.config = config
        self.clock_offset_ms = 0
        self.server = MiniRedis(self.wall_ms)
        self.storage = Storage(loop, faults, self.server, config.redis_timeout_ms / 1000)
        self.network = Network(loop, faults)
        self.processes: list[Process] = []
        self.on_recovered: Callable[[Process, Any], None] = lambda _process, _actor: None
        self.on_failure: Callable[[str], None] = lambda _why: None
        self.on_fenced: Callable[[str], None] = lambda _why: None
        self.on_end: Callable[[Process], None] = lambda _process: None
        self._tell = tell
        self._incarnations: dict[str, int] = {}
        self._sessions = 0
        self._ids = 0
        owners = [NOBODY] * 1024
        for number, user in enumerate(users):
            owners[slot_of(user)] = number % config.shards
        self.slot_map = SlotMap(1, tuple(owners))
        self.server.execute("SET", slots_key(), msgspec.msgpack.encode(self.slot_map))
        self.server.execute("HSET", meta_key(), EPOCH_FIELD, DATA_EPOCH)
        self.names = [
            *(f"shard-{index}" for index in range(config.shards)),
            *(f"scheduler-{index}" for index in range(config.schedulers)),
            *(f"edge-{index}" for index in range(config.edges)),
        ]

    def wall_ms(self) -> int:
        return START_MS + self.clock_offset_ms + int(self.loop.time() * 1000)

    def wall_ns(self) -> int:
        return (START_MS + self.clock_offset_ms) * 1_000_000 + int(self.loop.time() * 1_000_000_000)

    # -- Processes. ---------------------------------------------------------------------------------------------------
    def start(self, name: str) -> Process:
        """A new incarnation, which takes the name over."""
        self._incarnations[name] = number = self._incarnations.get(name, 0) + 1
        process = Process(name, number)
        self.processes.append(process)
        context = ProcessContext(
            wall_ns=self.wall_ns,
            monotonic_ms=lambda: self.loop.time() * 1000,
            session_name=self._session_name,
            connect=lambda _config: Client(self.storage),  # type: ignore[arg-type,return-value]
            peer=lambda peer, _credentials: RayPeer(self.network.handle(peer)),
            listen=_nowhere,
            tune_memory=lambda: self.on_recovered(process, actor),
            end_process=lambda: self.ended(process),
        )
        role, _, index = name.partition("-")
        actor: Any = process.context.run(self._make, role, int(index), number, context)
        self.network.routes[name] = (process, actor)
        self._tell(f"START {process}")
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

    def kill(self, process: Process) -> None:
        if process.alive:
            self._tell(f"END {process}")
            self.loop.kill(process)
            self.on_end(process)

    def ended(self, process: Process) -> None:
        """The process ends itself."""
        assert PROCESS.get() is process
        causes = _leaves(sys.exc_info()[1])
        self._tell(f"{process} ends itself: {causes!r}")
        if all(isinstance(cause, Fenced | ClockSetBack) for cause in causes):
            self.on_fenced(type(causes[0]).__name__)
        else:
            self.on_failure(f"{process} ends itself: {causes!r}")
        # Not from within one of its own callbacks: they are what ends.
        self.loop.call_soon(self.kill, process, context=self.loop.outside)

    def newest(self, name: str) -> Process:
        return self.network.routes[name][0]

    def actor(self, name: str) -> Any:
        return self.network.routes[name][1]

    def edges(self) -> list[tuple[Process, EdgeActor]]:
        """The edges a client can reach now."""
        routes = (self.network.routes[f"edge-{index}"] for index in range(self.config.edges))
        return [(process, edge) for process, edge in routes if process.alive and edge.gateway is not None]

    def is_split(self) -> bool:
        """Are two incarnations of an actor alive?"""
        alive = [process.name for process in self.processes if process.alive]
        return len(set(alive)) < len(alive)

    def end(self) -> None:
        """End every process, so that no task is left behind."""
        for process in self.processes:
            self.kill(process)


def _leaves(error: BaseException | None) -> list[BaseException | None]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]
