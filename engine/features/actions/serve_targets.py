"""Deployments of Ray Serve as targets: methods called by a handle, in the engine's own cluster, with one dict.

The method gets what `engine.features.actions.event_body` makes, and is done when it returns. Serve chooses the replica, scales them and
repeats nothing. An exception may pass; so may a deployment that is not there yet, has no replica, or whose queue is full. A Ray without
Serve is refused for good.

    no handle --call--> handle         found in a thread: the first one imports Serve, which takes a second
    handle --the method raised--> handle
    handle --anything else, and no answer in time--> no handle; it is shut down, and the next one is found at the Serve that runs then

As with actors, whoever writes the rules file trusts its targets: Ray unpickles in the engine's process what they raise and return.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
from ray.exceptions import RayTaskError

from engine.core.model.action import ServeTarget
from engine.errors import ActionFailed
from engine.features.actions.event_body import event_body
from engine.features.actions.ray_targets import REASON_CHARS_MAX
from engine.features.actions.store import QueuedAction

log = logging.getLogger(__name__)

_THREADS: Final = ThreadPoolExecutor(8, "find-deployment")
"""A lookup lasts for as long as Serve's controller is silent. Those that wait for it take no thread that others need."""


class ServeTargets:
    """Calls deployments."""

    def __init__(self) -> None:
        self._handles: dict[tuple[str, str], Any] = {}

    async def call(self, target: ServeTarget, action: QueuedAction) -> None:
        """Call the method with an action. Returns when it has returned. Raises ActionFailed."""
        name = (target.app, target.deployment)
        handle: Any = self._handles.get(name)
        if handle is None:
            found = await asyncio.get_running_loop().run_in_executor(_THREADS, _find, target)
            handle = self._handles.setdefault(name, found)  # several calls may have looked for it
        answered = False
        try:
            await handle.options(method_name=target.method).remote(msgspec.json.decode(event_body(action)))
            answered = True
        except RayTaskError as error:
            answered = True
            cause = getattr(error, "cause", None) or error
            raise ActionFailed(f"{type(cause).__name__}: {cause}"[:REASON_CHARS_MAX]) from error
        except Exception as error:  # Serve raises what its handles, and Ray's, come upon
            raise ActionFailed(f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]) from error
        finally:
            if not answered and self._handles.get(name) is handle:
                del self._handles[name]
                await asyncio.shield(_shut_down(handle))


def _find(target: ServeTarget) -> Any:
    """A handle. Imports Serve, and asks its controller. Raises ActionFailed."""
    try:
        from ray import serve
    except ImportError as error:
        raise ActionFailed(f"Ray Serve is not installed where the engine runs: {error}", final=True) from error
    try:
        forget_controller()
        return serve.get_deployment_handle(target.deployment, app_name=target.app)
    except Exception as error:
        raise ActionFailed(f"no Ray Serve in the engine's cluster: {error}"[:REASON_CHARS_MAX]) from error


def forget_controller() -> None:
    """Have Serve look its controller up for the next handle.

    It keeps the controller, and every handle it has given, for the life of the process. After a shutdown, and another start, these answer
    `DeploymentUnavailableError` for ever. No public call forgets them.
    """
    from ray.serve import context

    context._set_global_client(None)  # type: ignore[no-untyped-call]


async def _shut_down(handle: Any) -> None:
    """End the tasks of a handle. Raises nothing: what is wrong with Serve is known by then."""
    try:
        await handle.shutdown_async()
    except Exception as error:
        log.info("a handle of Ray Serve could not be shut down: %r", error)
