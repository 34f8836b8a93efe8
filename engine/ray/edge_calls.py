"""Requests to an engine by Ray calls: finds its edges, keeps to one that answers, and goes to another one when it does not.

States of an `EdgeCalls`; its owner is one event loop
    unknown   no edge is known: never looked, or the last one looked for is gone. A request looks for edges first
    known     the handles of the edges that had a name when they were last looked for; requests go to one of them

known -> known      after `LOOK_S`, by the next request: edges that were added are found; the choice stays if it is still there
known -> the next   a request got no answer, 429 or 503: the following ones go to the next edge
known -> unknown    there is no answer because the edge's actor is gone for good

Who starts where. An engine that is not there, is starting, or whose edges all restart is a `ConnectionError` here, and the caller repeats
(`engine.client.retried_requests`). Ray restarts an edge under the same handle; calls to it fail meanwhile. A call whose answer was lost may
have taken effect: what is sent must be idempotent, which everything that has an id is.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import ray
from ray.exceptions import ActorDiedError, RayError

from engine.client.http_connection import Response

EDGE: Final = "edge-"
"""The names of edges begin with it; their index follows."""

LOOK_S: Final = 30.0
"""Between two looks at which edges there are: one call to Ray's control service."""

NAMESPACE: Final = "engine"
"""The engine's own default."""

_ELSEWHERE: Final = (429, 503)


class EdgeCalls:
    """The carrier of one publisher or listener. From one event loop only.

    Args:
        namespace: of the engine.
        tenant: in whose name.
        user: who is, for requests of a client; "" to publish.
        inflight_max: calls under way; more wait for their turn.

    Attributes:
        engine: for error messages.
    """

    def __init__(self, namespace: str, tenant: str, user: str = "", *, inflight_max: int = 4) -> None:
        self.engine = f"the engine in Ray's namespace {namespace!r}"
        self._namespace = namespace
        self._tenant = tenant
        self._user = user
        self._slots = asyncio.Semaphore(inflight_max)
        self._edges: dict[str, Any] = {}
        self._chosen = ""
        self._looked_s = 0.0

    async def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout_s: float,
        on_turn: Callable[[], None] | None = None,
    ) -> Response:
        """Send one request; returns its answer. `on_turn` is called when it waits for no others any more.

        The headers of HTTP are not needed, and not sent.

        Raises:
            ConnectionError: there is no engine, or the edge did not answer in time; the request may have taken effect.
        """
        async with self._slots:
            if on_turn is not None:
                on_turn()
            name = "no edge"
            try:
                async with asyncio.timeout(timeout_s):
                    name, edge = await self._edge()
                    answer = await edge.request.remote(self._tenant, self._user, method, path, body)
            except ActorDiedError as error:
                self._edges = {}
                raise ConnectionError(f"{name} has ended") from error
            except AttributeError as error:
                raise ConnectionError(f"{name} has another version, which takes no requests of Ray jobs") from error
            except (RayError, TimeoutError) as error:
                self._go_on(name)
                raise ConnectionError(f"{name} does not answer: {_short(error)}") from error
            response = Response(*answer)
            if response.status in _ELSEWHERE:
                self._go_on(name)
            return response

    def close(self) -> None:
        """Do nothing: Ray closes its own connections."""

    async def _edge(self) -> tuple[str, Any]:
        """The name and the handle of the chosen edge."""
        if not self._edges or time.monotonic() - self._looked_s > LOOK_S:
            loop = asyncio.get_running_loop()
            names = await loop.run_in_executor(None, edge_names, self._namespace)
            self._edges = {name: self._edges.get(name) for name in names}
            self._looked_s = time.monotonic()
        if not self._edges:
            raise ConnectionError("no edge of it runs; it may be starting")
        if self._chosen not in self._edges:
            self._chosen = random.choice(list(self._edges))
        name = self._chosen
        handle = self._edges[name]
        if handle is None:
            try:
                handle = await asyncio.get_running_loop().run_in_executor(None, lambda: ray.get_actor(name, namespace=self._namespace))
            except ValueError:
                self._go_on(name)
                raise ConnectionError(f"{name} has gone") from None
            self._edges[name] = handle
        return name, handle

    def _go_on(self, failed: str) -> None:
        """Look again, and choose the next edge, unless another request that failed there did so already."""
        self._looked_s = 0.0
        if failed == self._chosen and failed in self._edges:
            names = list(self._edges)
            self._chosen = names[(names.index(failed) + 1) % len(names)]


def edge_names(namespace: str) -> list[str]:
    """Names of the edges that exist in a namespace, also those that Ray is about to start again.

    Raises:
        RuntimeError: this process is not connected to Ray.
    """
    if not ray.is_initialized():
        raise RuntimeError(
            "this process is not connected to Ray: call ray.init(address=...) with the address of the engine's cluster first"
        )
    named: Any = ray.util.list_named_actors(all_namespaces=True)
    return sorted(entry["name"] for entry in named if entry["namespace"] == namespace and entry["name"].startswith(EDGE))


def _short(error: BaseException) -> str:
    """The last line, which has the error; above it Ray has the traceback of the other process."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
