"""The seam between a shard and its features: storage for records that leave its users, and observers of what passes.

`engine.actors.shard_features` has the list.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct
from redis.asyncio import Redis

from engine.config import Config
from engine.core.commit.judge import MakeJudge
from engine.core.mailbox.judge_state import JudgeKinds
from engine.core.shard.mailbox_store import DeadLetter
from engine.core.shard.user_handlers import UserHandlers
from engine.core.wire.records import Timer


class ShardPorts(Struct, frozen=True):
    """Loans of a shard to its features.

    Attributes:
        name: of the shard's actor.
        first: the first storage server, which has what all shards share.
    """

    config: Config
    name: str
    first: Redis


StoreActions = Callable[[Sequence[Timer]], Awaitable[tuple[list[str], list[str]]]]
"""Stores the actions of fired timers, each once. Returns ids of timers: those that took effect, and those that found no room.

Raises StorageUnavailable; a repeat changes nothing for those that were stored."""

StoreDeadLetters = Callable[[Sequence[DeadLetter]], Awaitable[None]]
"""Stores refused messages. Raises StorageUnavailable; a repeat may store some twice."""


class ShardObserver(Protocol):
    """A feature that is told what passes, a batch at a time. It changes nothing."""

    def received(self, session: str, records: Sequence[Any], /) -> None:
        """Records of an edge, before they are handled."""

    def closed(self, session: str, /) -> None:
        """A session of an edge has ended: nothing of it is answered any more."""

    def sent(self, to_edges: Sequence[tuple[str, Any]], to_schedulers: Iterable[tuple[int, Any]], /) -> None:
        """(session, record) for edges, and (partition, record) for schedulers."""

    def fired(self, timers: Sequence[Timer], /) -> None:
        """Timers of a scheduler, before they are handled."""

    def decided(self, records: Sequence[Any], /) -> None:
        """Records of a group that is about to be written."""


class ShardFeature(Struct, frozen=True):
    """One feature on one shard.

    Attributes:
        observer: is told what passes; None: it need not know.
        counts: plain numbers of the shard's row in the status; None: it has none.
        drain: exports what only this process has, before it ends; None: there is nothing.
        judge: makes the judge of the shard (`engine.core.commit.judge`), in place of those of features before it, which it extends; None:
            it has none.
        judge_kinds: what this judge stores, with what those before it store.
        handlers: of requests about users, by their kinds.
        store_actions: takes the actions of fired timers; None: it takes none.
        store_dead_letters: takes messages that clients refused; None: it takes none.
    """

    observer: ShardObserver | None = None
    counts: Callable[[], Mapping[str, int]] | None = None
    drain: Callable[[], Awaitable[None]] | None = None
    judge: MakeJudge | None = None
    judge_kinds: JudgeKinds = JudgeKinds()
    handlers: UserHandlers = {}
    store_actions: StoreActions | None = None
    store_dead_letters: StoreDeadLetters | None = None


def judging(features: Sequence[ShardFeature]) -> ShardFeature:
    """The last of the features that has a judge: it extends those before."""
    return next((feature for feature in reversed(features) if feature.judge is not None), ShardFeature())


async def refuse_actions(timers: Sequence[Timer]) -> tuple[list[str], list[str]]:
    """`StoreActions` of a shard without the feature: the timers wait in the storage of schedulers."""
    return [], [timer.sid for timer in timers]


async def drop_dead_letters(letters: Sequence[DeadLetter]) -> None:
    """`StoreDeadLetters` of a shard without the feature: the messages end, and are counted."""
