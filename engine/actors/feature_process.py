"""The shell of an actor that belongs to a feature: start, end and proofs of the process. The feature does the rest (`Work`).

It is ready as soon as it is the newest process of its name. The engine needs it for nothing, so its work may wait for other services.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

from engine.actors.actor_process import REAL, Process, ProcessContext
from engine.actors.edge_requests import EdgeRequests, any_edge
from engine.actors.feature_actors import FeatureActor
from engine.actors.incarnation import Incarnation
from engine.api.actor_feature import ActorPorts, Work
from engine.config import Config
from engine.errors import StorageUnavailable
from engine.store.sealed_config import SealedConfig


class FeatureProcess(Process):
    """An actor of a feature; see the module's text. `process_of` makes a subclass for each kind."""

    role: ClassVar[str]
    make: ClassVar[Callable[[Callable[[], int]], Work]]

    def __init__(self, config: Config | SealedConfig, index: int, context: ProcessContext = REAL) -> None:
        super().__init__(config, index, context)
        self.work = type(self).make(self._now_ms)

    async def stats(self) -> dict[str, Any]:
        """Gauges and counters by name, from memory."""
        return {**self._vitals(), **self.work.stats()}

    async def ask(self, *question: Any, proof: bytes = b"") -> Any:
        """The answer to an edge, see `Work.answer`.

        Raises:
            NotProven: it is not the engine that asks.
            StorageUnavailable: there is no answer now.
        """
        self._lock.check("ask", proof)
        if not self._ready.is_set():
            raise StorageUnavailable(f"the {self.role} is starting")
        return await self.work.answer(*question)

    async def drain(self, proof: bytes = b"") -> None:
        """Finish what can be finished now. No effect until the actor is ready."""
        self._lock.check("drain", proof)
        if self._ready.is_set():
            await self.work.drain()

    async def _run(self) -> None:
        async with self._context.connect(self._config) as client:
            incarnation = Incarnation(self._credentials.name, client)
            await self._retry_storage(incarnation.begin)
            self._context.tune_memory()
            edges = EdgeRequests(partial(any_edge, self._config.namespace), self._lock.proof)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.work.run(ActorPorts(self._config, self._index, client, edges)))
                tasks.create_task(incarnation.watch(self._config.health_ms))
                await asyncio.sleep(0)  # the work has begun, and can be asked and drained
                self._ready.set()


def process_of(actor: FeatureActor) -> type[FeatureProcess]:
    """The class of such actors. Loads the feature's module."""
    make = getattr(import_module(actor.module), actor.class_name)
    return type(actor.class_name, (FeatureProcess,), {"role": actor.role, "make": make})
