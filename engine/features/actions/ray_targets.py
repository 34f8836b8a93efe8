"""Methods of named Ray actors as targets: found by namespace and name in the engine's own cluster, called with one dict.

The method gets `{"key", "tenant", "user", "due", "message"}`, see `engine.features.actions.event_body`. It is done when it returns,
whatever it returns. An exception may pass; so may an actor that does not exist yet or has died. A method that the actor does not have is
refused for good, and so is one that does not take the call's argument.

The rules file names the actors, and whoever writes it trusts them: Ray unpickles in the engine's process what they raise and return.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import msgspec
import ray
from ray.exceptions import RayError

from engine.core.model.action import ActorTarget
from engine.errors import ActionFailed
from engine.features.actions.event_body import event_body
from engine.features.actions.store import QueuedAction

REASON_CHARS_MAX: Final = 300
"""Of a failure, in a dead letter and in logs."""

_THREADS: Final = ThreadPoolExecutor(8, "find-target")
"""A lookup lasts for as long as Ray's control service is away. Those that wait for it take no thread that others need."""


class RayTargets:
    """Calls actors.

    Args:
        own_namespace: the engine's, whose actors are no targets.
    """

    def __init__(self, own_namespace: str) -> None:
        self._own_namespace = own_namespace
        self._handles: dict[tuple[str, str], Any] = {}

    async def call(self, target: ActorTarget, action: QueuedAction) -> None:
        """Call the method with an action. Returns when it has returned. Raises ActionFailed."""
        if target.namespace == self._own_namespace:
            raise ActionFailed("the engine's own actors are no targets", final=True)
        name = (target.namespace, target.actor)
        method = getattr(self._handles.get(name), target.method, None)
        if method is None:  # not known, or of an actor that another one with more methods has replaced
            method = getattr(await self._find(target), target.method, None)
        if method is None:
            self._handles.pop(name, None)
            raise ActionFailed(f"the actor {target.actor} has no method {target.method}", final=True)
        try:
            await method.remote(msgspec.json.decode(event_body(action)))
        except RayError as error:
            self._handles.pop(name, None)  # an actor of this name may be another one next time
            cause = getattr(error, "cause", None) or error
            raise ActionFailed(f"{type(cause).__name__}: {cause}"[:REASON_CHARS_MAX]) from error
        except Exception as error:  # of the call itself: a signature that takes no single argument, for example
            raise ActionFailed(f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX], final=True) from error

    async def _find(self, target: ActorTarget) -> Any:
        """The actor's handle. Asks Ray's control service, in a thread: it may be away for long."""
        try:
            look_up = partial(ray.get_actor, target.actor, namespace=target.namespace)
            handle = await asyncio.get_running_loop().run_in_executor(_THREADS, look_up)
        except (ValueError, RayError) as error:
            raise ActionFailed(f"no actor {target.actor} in the namespace {target.namespace}") from error
        self._handles[target.namespace, target.actor] = handle
        return handle
