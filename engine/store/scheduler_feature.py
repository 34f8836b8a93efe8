"""The seam between a scheduler and its features: observers of what passes. `engine.actors.scheduler_features` has the list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from engine.config import Config


class SchedulerPorts(Struct, frozen=True):
    """Loans of a scheduler to its features.

    Attributes:
        name: of the scheduler's actor.
    """

    config: Config
    name: str


class SchedulerObserver(Protocol):
    """A feature that is told what passes, a batch at a time. It changes nothing."""

    def received(self, session: str, records: Sequence[Any], /) -> None:
        """Records of an edge or a shard, before they are handled."""

    def sent(self, records: Sequence[tuple[str, Any]], /) -> None:
        """(session, record) for edges and shards."""


class SchedulerFeature(Struct, frozen=True):
    """One feature on one scheduler.

    Attributes:
        observer: is told what passes; None: it need not know.
        counts: plain numbers of the scheduler's row in the status; None: it has none.
        drain: exports what only this process has, before it ends; None: there is nothing.
    """

    observer: SchedulerObserver | None = None
    counts: Callable[[], Mapping[str, int]] | None = None
    drain: Callable[[], Awaitable[None]] | None = None
