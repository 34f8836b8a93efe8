"""The seam between the process of a feature's actor and the feature. `engine.actors.feature_actors` has the list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct
from redis.asyncio import Redis

from engine.config import Config
from engine.errors import StorageUnavailable

EdgeAnswer = tuple[int, dict[str, str], bytes]
"""Status, headers with names in lower case, body."""


class EdgePublisher(Protocol):
    """Publishes notifications and events for every tenant, through one edge of several."""

    async def publish(self, tenant: str, path: str, bodies: Sequence[bytes]) -> list[EdgeAnswer]:
        """The answer to each body, in their order. The edge stops after a 429, a 5xx or 20 s: there may be fewer answers than bodies.

        Args:
            tenant: of the notifications or events.
            path: `/v1/notifications`, `/v1/events` or another endpoint that the scope `publish` may POST to.
            bodies: of one request each, JSON.

        Raises:
            Unavailable: no edge answered. Some of the requests may have taken effect, so send them again under the same ids.
        """


class ActorPorts(Struct, frozen=True):
    """Loans of the process to the feature.

    Attributes:
        index: of the actor among those of its role.
        redis: the first store.
        edges: publishes for the feature.
    """

    config: Config
    index: int
    redis: Redis
    edges: EdgePublisher


class StatusLine(NamedTuple):
    """The line of `engine status` about an actor, beside its row of the table; `is_fault`: the part does less than it should."""

    part: str
    text: str
    is_fault: bool = False


class Work(Protocol):
    """The work of such an actor; `Work(now_ms)` makes one, with the wall clock in ms."""

    def stats(self) -> dict[str, Any]:
        """Gauges and counters by name, from memory; also before `run`."""

    async def run(self, ports: ActorPorts) -> None:
        """Work; never returns. An exception ends the process."""

    async def answer(self, *question: Any) -> Any:
        """Answer an edge. Raises StorageUnavailable; so does work that edges ask nothing."""
        raise StorageUnavailable("it answers no questions")

    async def drain(self) -> None:
        """Finish what can be finished now; nothing where the work keeps nothing."""
