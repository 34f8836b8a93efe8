"""The seam between the controller and its features: looks at what it finds out. `engine.actors.controller_features` has the list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from msgspec import Struct
from redis.asyncio import Redis

from engine.config import Config

ActorRow = Mapping[str, Any]
"""What the status has of one actor."""

ActorRows = Mapping[str, Sequence[ActorRow]]
"""By role: `shard`, `scheduler`, `edge`, and those of features."""


class ControllerPorts(Struct, frozen=True):
    """Loans of the controller to its features.

    Attributes:
        stores: all of them, the first one first.
        rows: of all actors.
        serving: the rows of a role that serve.
        totals: sums over rows, and quantiles of the recent past, as in the status.
        redis: the state of storage, as in the status.
        servers: the Redis server of each store, by the store's index.
        settled: neither does a slot move nor an actor start or leave.
        waiting: by role in the plural, further actors that are wanted and wait for a machine.
        want: (who wants it, numbers of actors or `sharing`) -> stored. Raises StorageUnavailable.
        now_ms: milliseconds that never step.
        wall_ms: since the epoch.
    """

    config: Config
    stores: Sequence[Redis]
    rows: Callable[[], ActorRows]
    serving: Callable[[str], Sequence[ActorRow]]
    totals: Callable[[ActorRows], Mapping[str, Any]]
    redis: Callable[[], Mapping[str, Any]]
    servers: Callable[[], Mapping[int, str]]
    settled: Callable[[], bool]
    waiting: Callable[[], Mapping[str, int]]
    want: Callable[..., Awaitable[None]]
    now_ms: Callable[[], float]
    wall_ms: Callable[[], int]


class ControllerFeature(Struct, frozen=True):
    """One feature of the controller.

    Attributes:
        look: awaited after each round in which storage answered; None: it does not look.
        run: its task, which lives as long as the controller does; None: it has none.
        status: members that it adds to members of the status; None: it has none.
    """

    look: Callable[[], Awaitable[None]] | None = None
    run: Callable[[], Coroutine[Any, Any, None]] | None = None
    status: Callable[[], Mapping[str, Mapping[str, Any]]] | None = None
