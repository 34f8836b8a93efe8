"""The seam between an edge and its features: endpoints, and a task beside them. `engine.routes` has the list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from msgspec import Struct
from redis.asyncio import Redis

from engine.api.access import Access, Status
from engine.api.exposition.catalogue import FeatureMetrics
from engine.auth.tokens import Authenticator
from engine.config import Config
from engine.core.shard.slow_connections import SlowConnection
from engine.gateway.gateway import Gateway
from engine.http.endpoint_table import EndpointTable

CallActor = Callable[..., Awaitable[Any]]
"""A question to an actor of a feature, and its answer. Raises Unavailable."""

SlowClients = Callable[[int], Awaitable[Sequence[SlowConnection]]]
"""The slowest connections of all shards, at most so many. Raises Unavailable."""

FindActor = Callable[[str, str, str], CallActor]
"""(role, the actor as errors name it, its storage likewise) -> questions to it."""


class EdgePorts(Struct, frozen=True):
    """Loans of an edge to its features.

    Attributes:
        redis: the first store.
        stores: all of them.
        find_actor: of a feature with an actor of its own, `engine.actors.feature_actors`.
        name: of the edge.
        status: of the engine, as the controller answers it.
        slow_clients: of all shards.
    """

    config: Config
    gateway: Gateway
    authenticator: Authenticator
    redis: Redis
    stores: Sequence[Redis]
    find_actor: FindActor
    name: str
    status: Status
    slow_clients: SlowClients


class EdgeFeature(Struct, frozen=True):
    """One feature on one edge.

    Attributes:
        name: of its folder.
        table: makes its endpoints; None: it has none.
        run: its task, which lives as long as the edge does; None: it has none.
        drain: stores what only this edge has, before it ends or leaves its clients to others; None: there is nothing.
        prepare: awaited before the edge serves; None: there is nothing to read. Raises StorageUnavailable, and is repeated.
        stats: its members of the edge's row in the status, under its name; None: it has none.
        counts: plain numbers of that row; None: it has none.
        metrics: its metrics; None: it has none.
        is_degraded: whether it does less than it should, by the engine's status; None: that says nothing of it.
    """

    name: str
    table: Callable[[Access], EndpointTable] | None = None
    run: Callable[[], Coroutine[Any, Any, None]] | None = None
    drain: Callable[[], Coroutine[Any, Any, None]] | None = None
    prepare: Callable[[], Awaitable[None]] | None = None
    stats: Callable[[], Mapping[str, Any]] | None = None
    counts: Callable[[], Mapping[str, int]] | None = None
    metrics: FeatureMetrics | None = None
    is_degraded: Callable[[Mapping[str, Any]], bool] | None = None
