"""The actors in Ray: how they are created, found by their names, and ended.

Ray stores a class of actors once, and each process of an actor loads it from there. What is stored of ours is the name of a module and
of a class: so a process that Ray starts later runs the code that is on its node then, and has the methods of that version. A spare process
(`engine.actors.spares`) has loaded it before, and ends when it gets an actor after that was replaced.

Each process loads the module of its own actor only: users wait for a shard that is replaced, and loading what an edge needs as well took
two fifths of its start.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from engine.actors import loaded_code
from engine.actors.feature_actors import FEATURE_ROLES, FEATURES
from engine.actors.ray_figures import RayFigures
from engine.config import Config
from engine.store.sealed_config import SealedConfig

CONTROLLER: Final = "controller"
"""Name of the controller in the engine's namespace. The others are named after role and index."""


def place_of(role: str) -> str:
    """The resource of which an actor of this role takes one."""
    return f"engine_{role}"


def resources_of(config: Config, role: str, *, guest: bool = False) -> dict[str, float]:
    """What an actor of this role asks of its node: one place, or nothing where any node will do."""
    anywhere = config.place == "anywhere" or guest or role in FEATURE_ROLES  # these have nothing but connections
    return {} if anywhere else {place_of(role): 1}


log = logging.getLogger(__name__)


def actor_options(config: Config, name: str, resources: dict[str, float]) -> dict[str, Any]:
    """Options of every actor of an engine: found by name, restarted without limit, calls never repeated by Ray."""
    return {
        "name": name,
        "namespace": config.namespace,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "max_task_retries": 0,
        "max_concurrency": 1000,  # parked link calls: a few per peer
        "num_cpus": 0,
        "resources": resources,
        "scheduling_strategy": "SPREAD",  # over the nodes with room; Ray's default fills one before it takes the next
        "enable_task_events": False,
    }


_PROCESS: Final = ("drain", "stats", "unlock")
_SERVER: Final = (*_PROCESS, "address", "exchange")
_CLASSES: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "Controller": (
        "engine.actors.controller",
        (
            "connections_of", "created", "drain_edge", "public_config", "rebalance", "scale", "slow_clients", "status", "stop", "unlock",
            "upgrade",
        ),
    ),
    "Shard": ("engine.actors.shard", (*_SERVER, "adopt", "hand_over", "slot_loads", "slow_clients")),
    "Scheduler": ("engine.actors.scheduler", (*_SERVER, "follow")),
    "Edge": ("engine.actors.edge", (*_PROCESS, "connections_of", "hand_over", "ingest", "release", "request")),
    "Placeholder": ("engine.actors.spares", ("up",)),
    **{actor.class_name: ("engine.actors.feature_process", (*_PROCESS, "ask")) for actor in FEATURES},
}  # fmt: skip
"""Of each class, its module and its public coroutines: what others need to create an actor and to call it. Only its own process loads the
module: for the controller, those of shards and edges would be 0.4 s of its start and 20 MB."""

_GC_THRESHOLDS: Final = (10_000, 100, 100)
"""Allocations between collections of young objects, and how many of these make one of older ones: records are acyclic and die young,
connections leave no cycles. The default of 700 costs a fifth of the import of an edge's modules, about 5 % of a shard's CPU and, with
3 000 connections, 2 % of an edge's; a full collection over 200 000 users would delay a shard that recovers them, and one over 200 000
timers those that are due. With 50 000, one of young objects took 40 to 60 ms when thousands of clients came back at once."""


def ray_side(name: str, methods: Collection[str], load: Callable[[], type]) -> type:
    """A class for Ray's actors with these methods, and no others: Ray stores it by its name in this module.

    Of a class itself Ray lets everyone call private methods too, and it adds `__ray_call__`, which executes what its caller sends.

    Args:
        methods: coroutines of the actor.
        load: returns the actor's class, in its process.
    """

    def construct(self: Any, *arguments: Any, **named: Any) -> None:
        if loaded_code.changed():
            log.warning("this process loaded its code before that was replaced: it ends, and %s starts in another one", name)
            os._exit(1)
        gc.set_threshold(*_GC_THRESHOLDS)
        actor = load()
        gc.collect()  # what the imports left: ten megabytes
        self.actor = actor(*arguments, **named)
        if "stats" in methods:
            # Ray calls this in the actor's event loop. A call of the actor to itself fails while Ray has not told it that it is alive.
            self.actor.begin()

    shown = type(name, (), {})  # its name is the process's while a method runs
    added = {"__module__": __name__, "__ray_actor_class__": shown}  # with the second it looks as if Ray had added what it adds
    return type(name, (), {"__init__": construct, **{method: _forwarded(method) for method in methods}, **added})


def _forwarded(name: str) -> Callable[..., Awaitable[Any]]:
    async def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        return await getattr(self.actor, name)(*arguments, **named)

    return forward


def __getattr__(name: str) -> Any:
    """The classes of the actors as Ray has them, such as `Shard`."""
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()[name] = ray_side(name, _CLASSES[name][1], partial(_load, name))
    return made


def _load(name: str) -> type:
    found: type
    module = import_module(_CLASSES[name][0])
    kind = next((kind for kind in FEATURES if kind.class_name == name), None)
    found = getattr(module, name) if kind is None else module.process_of(kind)
    return found


_GCS_TIMEOUT_S: Final = 1.0

_LOCAL_PER_CORE: Final = 4
"""Actors of a role for each core of the one machine: more share a core that is busy with them, and take 200 MB each."""

_LOCAL_LEAST: Final = 8
"""On the smallest machine, for those who try what several do."""

_SPARE_S: Final = 0.2
"""Until a placeholder is ended. Its process takes longer to start; when it is up by then it was an idle one, and the next one is not."""


def _class_of(name: str) -> type:
    """The class of this name, the same one whenever it is asked for."""
    found: type = globals().get(name) or __getattr__(name)
    return found


def remote_class(in_ray: type) -> Any:
    """The factory of such actors."""
    return ray.remote(in_ray)


class RayActors:
    """What the controller asks of Ray, and shows there. The simulator has one of its own."""

    def __init__(self) -> None:
        self._figures: RayFigures | None = None
        self._untold = False  # a warning was logged

    def show(self, namespace: str, rows: Iterable[Mapping[str, Any]], now_ms: float) -> None:
        """Have the figures of an engine's processes among Ray's metrics, every few seconds."""
        if self._figures is None:
            self._figures = RayFigures(namespace)
        self._figures.report(rows, now_ms)

    async def names(self, namespace: str) -> set[str]:
        """Of the actors that exist, also those that Ray is about to start again. Asked as `places`. Raises RayError."""
        found = await asyncio.to_thread(ray.util.list_named_actors, all_namespaces=True)
        return {entry["name"] for entry in found if entry["namespace"] == namespace}

    async def places(self) -> dict[str, tuple[int, int]]:
        """By role, how many places for its actors the nodes offer, and how many of these are free.

        Asked in a thread: Ray's client blocks, and waits for a control service that is away. Raises RayError.
        """
        offered, free = await asyncio.to_thread(lambda: (ray.cluster_resources(), ray.available_resources()))  # type: ignore[no-untyped-call]
        named = {role: place_of(role) for role in ("shard", "scheduler", "edge")}
        return {role: (int(offered.get(name, 0)), int(free.get(name, 0))) for role, name in named.items()}

    async def capacity(self, *, by_cores: bool) -> dict[str, int]:
        """By role, how many actors the nodes carry: as many as they offer places, or where actors need no place, by the cores.

        Asked as `places`. Raises RayError.
        """
        if not by_cores:
            return {role: offered for role, (offered, _) in (await self.places()).items()}
        cores: float = (await asyncio.to_thread(ray.cluster_resources)).get("CPU", 0)
        return dict.fromkeys(("shard", "scheduler", "edge"), max(_LOCAL_LEAST, int(_LOCAL_PER_CORE * cores)))

    def create(self, given: Config | SealedConfig, role: str, index: int, *, guest: bool = False) -> Any:
        """The handle of the actor of this name, created when there is none. A guest starts on any node, whatever places that offers."""
        config = given.public if isinstance(given, SealedConfig) else given
        options = actor_options(config, f"{role}-{index}", resources_of(config, role, guest=guest))
        arguments = (given, index, config.port) if role == "edge" else (given, index)
        return remote_class(_class_of(role.capitalize())).options(**options).remote(*arguments)

    async def draining_nodes(self) -> dict[str, int]:
        """Ids of the nodes that are to go, and by when, in milliseconds since the epoch; 0: no deadline.

        Asked in a thread: Ray's client blocks. Ray places no actor on such a node. The call is no public one: a Ray that lacks it tells of
        no node, and those on it start elsewhere when it has gone. Raises RayError.
        """
        try:
            ask = ray._private.worker.global_worker.gcs_client.get_draining_nodes  # type: ignore[attr-defined]
        except AttributeError as error:
            if not self._untold:
                log.warning("this Ray does not tell which nodes are to go: %s", error)
                self._untold = True
            return {}
        found: dict[str, int] = await asyncio.to_thread(ask, timeout=_GCS_TIMEOUT_S)
        return found

    async def start_spares(self, node_id: str, count: int) -> bool:
        """Have Ray start so many processes on this node that no actor has (`engine.actors.spares`); False when Ray cannot."""
        options = {
            "num_cpus": 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
            "enable_task_events": False,
        }
        for _ in range(2):
            placeholders = [remote_class(_class_of("Placeholder")).options(**options).remote() for _ in range(count)]
            try:
                calls = [asyncio.ensure_future(placeholder.up.remote()) for placeholder in placeholders]
                up, starting = await asyncio.wait(calls, timeout=_SPARE_S)
            finally:
                for placeholder in placeholders:
                    ray.kill(placeholder)
            for call in starting:
                call.cancel()
            for call in up:
                if (error := call.exception()) is not None:
                    log.info("no spare process on node %s: %s", node_id, error)
                    return False
            if not up:
                break
        return True

    def end_self(self) -> None:
        """End the actor of this process for good."""
        self.kill(ray.get_runtime_context().current_actor, restart=False)

    def kill(self, handle: Any, *, restart: bool) -> None:
        """End the actor's process; with `restart` Ray starts the next one."""
        ray.kill(handle, no_restart=not restart)
