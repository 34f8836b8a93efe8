"""The seam between a shard and its features: storage for records that leave its users. `engine.actors.shard_features` has the list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct
from redis.asyncio import Redis

from engine.config import Config
from engine.core.shard.mailbox_store import DeadLetter
from engine.core.wire.records import Timer


class ShardPorts(Struct, frozen=True):
    """Loans of a shard to its features.

    Attributes:
        first: the first storage server, which has what all shards share.
    """

    config: Config
    first: Redis


StoreActions = Callable[[Sequence[Timer]], Awaitable[tuple[list[str], list[str]]]]
"""Stores the actions of fired timers, each once. Returns ids of timers: those that took effect, and those that found no room.

Raises StorageUnavailable; a repeat changes nothing for those that were stored."""

StoreDeadLetters = Callable[[Sequence[DeadLetter]], Awaitable[None]]
"""Stores refused messages. Raises StorageUnavailable; a repeat may store some twice."""


class ShardFeature(Struct, frozen=True):
    """One feature on one shard.

    Attributes:
        store_actions: takes the actions of fired timers; None: it takes none.
        store_dead_letters: takes messages that clients refused; None: it takes none.
    """

    store_actions: StoreActions | None = None
    store_dead_letters: StoreDeadLetters | None = None


async def refuse_actions(timers: Sequence[Timer]) -> tuple[list[str], list[str]]:
    """`StoreActions` of a shard without the feature: the timers wait in the storage of schedulers."""
    return [], [timer.sid for timer in timers]


async def drop_dead_letters(letters: Sequence[DeadLetter]) -> None:
    """`StoreDeadLetters` of a shard without the feature: the messages end, and are counted."""
