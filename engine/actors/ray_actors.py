"""The actors in Ray: how they are created, found by their names, and ended."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import ray

from engine.actors.edge import Edge
from engine.actors.scheduler import Scheduler
from engine.actors.shard import Shard
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


def remote_class(actor: type) -> Any:
    """A class for Ray's actors with the public coroutines of this one as its methods, and no others.

    Of a class itself Ray lets everyone call private methods too, and it adds `__ray_call__`, which executes what its caller sends.
    """

    def construct(self: Any, *arguments: Any, **named: Any) -> None:
        self.actor = actor(*arguments, **named)

    methods = {name: _forwarded(name) for name, _ in inspect.getmembers(actor, inspect.iscoroutinefunction) if not name.startswith("_")}
    # With `__ray_actor_class__` it looks as if Ray had added what it adds.
    made = {"__init__": construct, **methods, "__module__": actor.__module__, "__ray_actor_class__": actor}
    return ray.remote(type(actor.__name__, (), made))


def _forwarded(name: str) -> Callable[..., Awaitable[Any]]:
    async def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        return await getattr(self.actor, name)(*arguments, **named)

    return forward


class RayActors:
    """What the controller asks of Ray's control service. The simulator has one of its own."""

    def names(self, namespace: str) -> set[str]:
        """Of the actors that exist, also those that Ray is about to start again."""
        return {entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True) if entry["namespace"] == namespace}

    def create(self, given: Config | SealedConfig, role: str, index: int) -> Any:
        """The handle of the actor of this name, created when there is none."""
        config = given.public if isinstance(given, SealedConfig) else given
        options = actor_options(config, f"{role}-{index}", {f"engine_{role}": 1})
        if role == "shard":
            return remote_class(Shard).options(**options).remote(given, index)
        if role == "scheduler":
            return remote_class(Scheduler).options(**options).remote(given, index)
        return remote_class(Edge).options(**options).remote(given, index, config.port)

    def kill(self, handle: Any, *, restart: bool) -> None:
        """End the actor's process; with `restart` Ray starts the next one."""
        ray.kill(handle, no_restart=not restart)
