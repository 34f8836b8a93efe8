"""Requests of a feature's actor to an edge: Ray calls with a proof (`Edge.ingest`).

no edge      --publish-->                          one found by its name, at random
one edge     --it answers-->                       the same one again
             --it fails, or answers 429 or 503-->  no edge: the next request finds another
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import ray
from ray.exceptions import RayError

from engine.api.actor_feature import EdgeAnswer
from engine.errors import Unavailable

_EDGE: Final = "edge-"
_TIMEOUT_S: Final = 30.0
"""Three times the longest wait of an edge for a shard."""
_ELSEWHERE: Final = (429, 503)


class EdgeRequests:
    """An `engine.api.actor_feature.EdgePublisher`.

    Args:
        find: a handle of an edge. Raises ValueError: no edge runs.
        prove: makes the proof of a method's name.
    """

    def __init__(self, find: Callable[[], Awaitable[Any]], prove: Callable[[str], bytes]) -> None:
        self._find = find
        self._prove = prove
        self._edge: Any = None

    async def publish(self, tenant: str, path: str, bodies: Sequence[bytes]) -> list[EdgeAnswer]:
        """See the port."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                if self._edge is None:
                    self._edge = await self._find()
                answers: list[EdgeAnswer] = await self._edge.ingest.remote(tenant, path, list(bodies), proof=self._prove("ingest"))
        except (RayError, TimeoutError, ValueError, Unavailable, AttributeError) as error:  # AttributeError: an edge of an older version
            self._edge = None
            raise Unavailable(f"no edge answers: {type(error).__name__} {error}") from error
        if answers and answers[-1][0] in _ELSEWHERE:
            self._edge = None
        return answers


async def any_edge(namespace: str) -> Any:
    """The handle of an edge of this engine. Asked in a thread: Ray's client blocks. Raises ValueError: no edge runs."""
    return await asyncio.to_thread(_any_edge, namespace)


def _any_edge(namespace: str) -> Any:
    named: Any = ray.util.list_named_actors(all_namespaces=True)
    names = [entry["name"] for entry in named if entry["namespace"] == namespace and entry["name"].startswith(_EDGE)]
    if not names:
        raise ValueError("no edge runs")
    return ray.get_actor(random.choice(names), namespace=namespace)
