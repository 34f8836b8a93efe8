"""The actors in Ray: how they are created, found by their names, and ended.

Ray stores a class of actors once, and each process of an actor loads it from there. What is stored of ours is the name of a module and
of a class: so a process that Ray starts later runs the code that is on its node then, and has the methods of that version.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final

import ray

from engine.actors import edge, scheduler, shard
from engine.config import Config
from engine.store.sealed_config import SealedConfig


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


def ray_side(actor: type, module: str) -> type:
    """A class for Ray's actors with the public coroutines of this one as its methods, and no others.

    Assign it to the name of the actor's class in this module: it is pickled by name, and the process is named after it.

    Of a class itself Ray lets everyone call private methods too, and it adds `__ray_call__`, which executes what its caller sends.
    """

    def construct(self: Any, *arguments: Any, **named: Any) -> None:
        self.actor = actor(*arguments, **named)

    methods = {name: _forwarded(name) for name, _ in inspect.getmembers(actor, inspect.iscoroutinefunction) if not name.startswith("_")}
    # With `__ray_actor_class__` it looks as if Ray had added what it adds.
    made = {"__init__": construct, **methods, "__module__": module, "__ray_actor_class__": actor}
    return type(actor.__name__, (), made)


def _forwarded(name: str) -> Callable[..., Awaitable[Any]]:
    async def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        return await getattr(self.actor, name)(*arguments, **named)

    return forward


Shard: Final = ray_side(shard.Shard, __name__)
Scheduler: Final = ray_side(scheduler.Scheduler, __name__)
Edge: Final = ray_side(edge.Edge, __name__)

_GCS_TIMEOUT_S: Final = 1.0


def remote_class(in_ray: type) -> Any:
    """The factory of such actors."""
    return ray.remote(in_ray)


class RayActors:
    """What the controller asks of Ray's control service. The simulator has one of its own."""

    def names(self, namespace: str) -> set[str]:
        """Of the actors that exist, also those that Ray is about to start again."""
        return {entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True) if entry["namespace"] == namespace}

    def has_room(self, role: str) -> bool:
        """Whether a node has a place free for an actor of this role. Asks Ray's control service, and waits for it."""
        return float(ray.available_resources().get(f"engine_{role}", 0)) >= 1  # type: ignore[no-untyped-call]

    def create(self, given: Config | SealedConfig, role: str, index: int, *, guest: bool = False) -> Any:
        """The handle of the actor of this name, created when there is none. A guest starts on any node, whatever places that offers."""
        config = given.public if isinstance(given, SealedConfig) else given
        options = actor_options(config, f"{role}-{index}", {} if guest else {f"engine_{role}": 1})
        if role == "shard":
            return remote_class(Shard).options(**options).remote(given, index)
        if role == "scheduler":
            return remote_class(Scheduler).options(**options).remote(given, index)
        return remote_class(Edge).options(**options).remote(given, index, config.port)

    async def draining_nodes(self) -> dict[str, int]:
        """Ids of the nodes that are to go, and by when, in milliseconds since the epoch; 0: no deadline.

        Asked in a thread: Ray's client blocks. Ray places no actor on such a node. Raises RayError.
        """
        gcs = ray._private.worker.global_worker.gcs_client  # type: ignore[attr-defined]
        found: dict[str, int] = await asyncio.to_thread(gcs.get_draining_nodes, timeout=_GCS_TIMEOUT_S)
        return found

    def kill(self, handle: Any, *, restart: bool) -> None:
        """End the actor's process; with `restart` Ray starts the next one."""
        ray.kill(handle, no_restart=not restart)
