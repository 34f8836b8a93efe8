"""Messages that grow, in Redis: a hash for each, the ids of each user, and what is due on each store.

    begun    the hash has a generation, the writer, the head, and chunks `c<offset>` that join to `size` bytes of text
    closed   `reason` says why: nothing is appended any more; any edge may publish the message
    ended    the message is published; the hash expires `growing_keep_s` later, and the ids of the user after the last of them

Each step is one script. A chunk names its generation and its offset, and that is the fence: an edge that was cut off can append only what
belongs at its offset, and nothing of an older generation. So any edge may store for a message, and no shard takes part. All keys of a user
are on the user's store. The due time is when the message ends unless something comes. Whoever takes one that is due moves it to the end of
a lease, so one whose edge has died is due again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import redis.asyncio as redis
from msgspec import Struct

from engine.config import Config
from engine.core.model.routing import slot_of, split_key, store_of
from engine.features.growing.core import ENDED, IDLE, REPLACED, Growth, Head
from engine.features.growing.keys import GROWING_DUE_KEY, GROWING_TENANTS_KEY, growing_key, growth_key
from engine.store.lua import NO_REPLICAS, Replicas, Script
from engine.store.storage_calls import StorageCalls

log = logging.getLogger(__name__)

_BEGIN: Final = Script.beside(__file__, "growing_begin")
_STORE: Final = Script.beside(__file__, "growing_store")
_CLOSE: Final = Script.beside(__file__, "growing_close")
_END: Final = Script.beside(__file__, "growing_end")
_TAKE: Final = Script("due_take")

_TAKEN_MAX: Final = 50
"""Messages taken at once: some milliseconds of work for each."""

_LONG_AGO_MS: Final = 1
"""The end of a message that is being erased. 0 is the score of one that grows."""

GONE: Final = "gone"
"""There is no such message, or it ended long ago."""

REFUSED: Final = "refused"
"""Its publisher has ended it, and its message was refused for good."""

_CLOSED: Final = {b"ENDED": ENDED, b"REFUSED": REFUSED, b"REPLACED": REPLACED, b"GONE": GONE}
_WORDS: Final[dict[int, str]] = {-1: ENDED, -2: REPLACED}
"""What the script says in place of a size."""


_head: Final = msgspec.msgpack.Decoder(Head)
_encode: Final = msgspec.msgpack.Encoder().encode


class StoredGrowth(Struct, frozen=True):
    """A message that grows, or grew, as storage has it.

    Attributes:
        reason: why it ends, "" where its publisher ended it; None while it grows.
        ending: of the message (`engine.features.growing.core.Head`).
        ended: its message is published.
    """

    generation: int
    head: Head
    text: bytes
    progress: bytes
    reason: str | None
    ending: bytes
    ended: bool


class TooManyGrow(Exception):
    """The user, or the tenant, has as many messages that grow as it may. `args[0]` says which."""


class GrowthBehind(Exception):
    """Storage has another size than the publisher gave. `args[0]` has it."""


class GrowingStore:
    """The messages that grow of all users.

    Args:
        clients: of the stores, the first one first.
        replicas: that must have a write before it is confirmed.
    """

    def __init__(self, clients: Sequence[redis.Redis], config: Config, replicas: Replicas = NO_REPLICAS) -> None:
        self._clients = clients
        self._config = config
        self._replicas = replicas

    @property
    def stores(self) -> int:
        return len(self._clients)

    def place(self, key: str) -> int:
        return store_of(slot_of(key), len(self._clients))

    async def begin(self, key: str, id: str, writer: str, head: Head, now_ms: int) -> tuple[str, int, int, tuple[str, bytes]]:
        """Begin a message, or find it. Returns OK (it begins), KNOWN or ENDED, its generation, how much is stored, why and how it ended.

        Raises StorageUnavailable, TooManyGrow.
        """
        keys = [growth_key(key, id), growing_key(key), GROWING_DUE_KEY, GROWING_TENANTS_KEY]
        config = self._config
        limits = config.growing_per_user_max, config.growing_per_tenant_max, config.growing_keep_s * 1000
        arguments = [id, writer, _encode(head), now_ms, self._due(now_ms), _member(key, id), split_key(key)[0], *limits]
        word, *rest = await _BEGIN.run(self._of(key), keys, arguments, self._replicas)
        if word == b"FULL":
            raise TooManyGrow(rest[0].decode())
        return word.decode(), int(rest[0]), int(rest[1]), (rest[2].decode(), rest[3])

    async def store(
        self, store: int, growths: Sequence[Growth], chunks: Sequence[tuple[int, bytes, bytes]], clock_ms: int, now_ms: int
    ) -> list[int | str]:
        """Append a chunk, (offset, text, progress), to each of these. Returns the sizes that are stored, ENDED or REPLACED in their place.

        `clock_ms`: the time on the clock of `Growth.due_ms`.

        Raises StorageUnavailable.
        """
        keys = [GROWING_DUE_KEY]
        arguments: list[Any] = [self._due(now_ms)]
        for growth, chunk in zip(growths, chunks, strict=True):
            keys.append(growth_key(growth.key, growth.id))
            arguments += [growth.generation, *chunk, _member(growth.key, growth.id) if self.moves_due(growth, clock_ms) else ""]
        _, *sizes = await _STORE.run(self._clients[store], keys, arguments, self._replicas)
        return [_WORDS.get(size, size) for size in sizes]

    async def close(
        self,
        key: str,
        id: str,
        generation: int | None,
        size: int,
        reason: str,
        ending: bytes,
        now_ms: int,
        lease_ms: int,
        progress: bytes = b"",
    ) -> StoredGrowth | str:
        """Close a message: from any generation for None, at any size for -1. Returns it as it was closed first, or what it is in its place.

        That is ENDED, IDLE where it ended by itself, REFUSED, REPLACED or GONE. `ending` b"" leaves the message as it began,
        `progress` b"" the one that is stored.

        Raises StorageUnavailable, GrowthBehind.
        """
        keys = [growth_key(key, id), GROWING_DUE_KEY]
        arguments = ["" if generation is None else generation, size, reason, ending, now_ms + lease_ms, _member(key, id), progress]
        word, *rest = await _CLOSE.run(self._of(key), keys, arguments, self._replicas)
        if word == b"SHORT":
            raise GrowthBehind(int(rest[0]))
        if word == b"OK":
            return _growth(dict(zip(rest[0][::2], rest[0][1::2], strict=True)))
        return IDLE if rest and rest[0] == IDLE.encode() else _CLOSED[word]

    async def end(self, key: str, id: str, now_ms: int, *, refused: bool = False) -> None:
        """The message is published, or refused for good. Raises StorageUnavailable."""
        keys = [growth_key(key, id), growing_key(key), GROWING_DUE_KEY, GROWING_TENANTS_KEY]
        arguments = [id, _member(key, id), split_key(key)[0], now_ms, self._config.growing_keep_s * 1000, int(refused)]
        await _END.run(self._of(key), keys, arguments, self._replicas)

    async def read_many(self, names: Sequence[tuple[str, str]]) -> list[StoredGrowth | None]:
        """The messages of these users with these ids; None for one that is not there, or cannot be read. Raises StorageUnavailable."""
        stored = await self._ask_all(names, lambda pipeline, growth: pipeline.hgetall(growth))
        return [_read(name, fields) if b"generation" in fields else None for name, fields in zip(names, stored, strict=True)]

    async def states(self, names: Sequence[tuple[str, str]]) -> list[tuple[int, int, bytes, str | None] | None]:
        """(generation, size, progress, reason) of each: what changes when a reader has something to read. Raises StorageUnavailable."""
        stored = await self._ask_all(names, lambda pipeline, growth: pipeline.hmget(growth, "generation", "size", "progress", "reason"))
        return [
            None if generation is None else (int(generation), int(size), progress or b"", None if reason is None else reason.decode())
            for generation, size, progress, reason in stored
        ]

    async def _ask_all(self, names: Sequence[tuple[str, str]], command: Callable[[Any, str], object]) -> list[Any]:
        """The reply to a command about each of these messages, in one request to each store that has some."""
        replies: list[Any] = [None] * len(names)
        for store, client in enumerate(self._clients):
            places = [place for place, (key, _) in enumerate(names) if self.place(key) == store]
            if not places:
                continue
            pipeline = client.pipeline(transaction=False)
            for place in places:
                command(pipeline, growth_key(*names[place]))
            for place, reply in zip(places, await _execute(pipeline), strict=True):
                replies[place] = reply
        return replies

    async def ids_of(self, key: str, *, ended: bool) -> list[str]:
        """Ids of the user's messages that grow; `ended`: and of those that have. Raises StorageUnavailable."""
        pipeline = self._of(key).pipeline(transaction=False)
        pipeline.zrangebyscore(growing_key(key), 0, "+inf" if ended else 0)
        (ids,) = await _execute(pipeline)
        return [id.decode() for id in ids]

    async def take(self, store: int, now_ms: int, lease_ms: int) -> list[tuple[str, str]]:
        """Take messages of a store that are due, and hold them for `lease_ms`. Returns users and ids. Raises StorageUnavailable."""
        arguments = [now_ms, now_ms + lease_ms, _TAKEN_MAX]
        _, *members = await _TAKE.run(self._clients[store], [GROWING_DUE_KEY], arguments)
        parted = (member.decode().rpartition("\n") for member in members)
        return [(key, id) for key, _, id in parted]

    async def erase(self, key: str) -> None:
        """Delete all messages of a user that grow, or have grown. Raises StorageUnavailable."""
        for id in await self.ids_of(key, ended=True):
            await self.end(key, id, _LONG_AGO_MS)  # it counts no more
            pipeline = self._of(key).pipeline(transaction=True)
            pipeline.delete(growth_key(key, id))
            pipeline.zrem(growing_key(key), id)
            await _execute(pipeline)

    def moves_due(self, growth: Growth, clock_ms: float) -> bool:
        """Does a write at this time move when the message ends by itself? One in a quarter of `growing_idle_s` does."""
        return clock_ms - growth.due_ms > self._config.growing_idle_s * 250

    def _due(self, now_ms: int) -> int:
        return now_ms + self._config.growing_idle_s * 1250  # the last part may move it no more

    def _of(self, key: str) -> redis.Redis:
        return self._clients[self.place(key)]


def _member(key: str, id: str) -> str:
    return f"{key}\n{id}"  # an id has no line feed


def _read(name: tuple[str, str], fields: dict[bytes, bytes]) -> StoredGrowth | None:
    try:
        return _growth(fields)
    except ValueError as error:
        log.error("message %s of %s grows no more, it cannot be read: %s", name[1], name[0], error)
        return None


def _growth(fields: dict[bytes, bytes]) -> StoredGrowth:
    chunks = sorted((int(name[1:]), chunk) for name, chunk in fields.items() if name[:1] == b"c")
    reason = fields.get(b"reason")
    return StoredGrowth(
        int(fields[b"generation"]),
        _head.decode(fields[b"head"]),
        b"".join([chunk for _, chunk in chunks]),
        fields.get(b"progress", b""),
        None if reason is None else reason.decode(),
        fields.get(b"ending", b""),
        b"ended" in fields,
    )


async def _execute(pipeline: Any) -> list[Any]:
    with StorageCalls("messages that grow"):
        replies: list[Any] = await pipeline.execute()
    return replies
