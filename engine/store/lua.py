"""Lua scripts, which Redis runs atomically, so that a fencing check and the write it protects are one step.

The first element of a script's reply is a status: OK, FENCED (a newer epoch owns the keys), NEWER (storage holds what memory has not
seen), LOST (storage lacks a write it had confirmed), BEHIND (it lacks one it had not confirmed: too few replicas had it, and one
without it was promoted), or one that the script defines. A script makes all its checks before its first write, so it applies whole or
not at all;
Redis itself rejects writes (out of memory, read-only, disk full) at the first write of a script and never later.

The text of `scripts/FOLDER.lua` is put before each script of a folder. Scripts for one writer at a time are in `fenced`. Those of a feature
are in its folder.

A script declares its keys, and of a collection of keys that it chooses from (buckets, users) their common prefix: all are in one store.

Each script declares one key more, which never exists and which it does not see: while a Redis Cluster moves the store key by key, it
refuses scripts that declare a key that is not there (`engine.store.cluster`). No other server notices.

A server loses its loaded scripts when it restarts, when a replica is promoted, and at SCRIPT FLUSH, which may run between two
commands of a pipeline. It answers NOSCRIPT then; the script is loaded and the calls it did not run are sent again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha1
from pathlib import Path
from typing import Any, Final, Self

import redis.asyncio as redis
from msgspec import Struct
from redis.exceptions import NoScriptError, RedisError

from engine.config import Config
from engine.errors import DataLost, Fenced, StorageUnavailable
from engine.store.keys import ABSENT_KEY, REPLICATION_KEY

_FOLDER = Path(__file__).parent / "scripts"

_WITHOUT_ABSENT: Final = b"KEYS[#KEYS] = nil "


class Replicas(Struct, frozen=True):
    """How many replicas must have a write in memory before it is confirmed, and how long to wait for them.

    WAIT counts from the connection's last write. A script that finds its work done already writes nothing, so each WAIT is preceded
    by a write to `REPLICATION_KEY`. Replication is one ordered stream: a replica that has this write has all earlier ones, of any
    connection.
    """

    count: int = 0
    timeout_ms: int = 1000

    @staticmethod
    def wanted(config: Config) -> Replicas:
        return Replicas(config.redis_replicas_min, config.redis_replicas_timeout_ms)

    def ask(self, pipeline: Any) -> None:
        """Append the WAIT to a pipeline, behind the writes it is for; pass the replies to `check`."""
        if self.count:
            pipeline.set(REPLICATION_KEY, b"")
            pipeline.execute_command("WAIT", self.count, self.timeout_ms)

    def check(self, replies: list[Any], what: str) -> None:
        """Remove the replies to `ask` from the end of `replies`. Raises StorageUnavailable when too few replicas have the writes."""
        if not self.count:
            return
        reached, written = replies.pop(), replies.pop()
        for reply in (written, reached):
            if isinstance(reply, Exception):
                raise StorageUnavailable(f"{what}: {reply}") from reply
        if reached < self.count:
            raise StorageUnavailable(f"{what}: {reached} of {self.count} replicas had it after {self.timeout_ms} ms")


NO_REPLICAS: Final = Replicas()


class Script:
    """One script, called by its SHA-1 once the server has loaded it.

    Args:
        library: another one whose text is put before it, behind that of the folder.
        place: where it is, the kernel's scripts by default.
    """

    def __init__(self, name: str, library: str = "", place: Path = _FOLDER) -> None:
        self.name = name
        folder = name.rpartition("/")[0]
        self._text = _WITHOUT_ABSENT + b"".join((place / f"{part}.lua").read_bytes() for part in (folder, library, name) if part)
        self._sha = sha1(self._text, usedforsecurity=False).hexdigest()

    @classmethod
    def beside(cls, module: str, name: str) -> Self:
        """The script of a feature that stands beside this module, its `__file__`."""
        return cls(name, place=Path(module).parent)

    async def run(self, client: redis.Redis, keys: Sequence[str], args: Sequence[Any], replicas: Replicas = NO_REPLICAS) -> list[Any]:
        """Run it; returns the reply, whose status is none of FENCED, NEWER, LOST and BEHIND.

        Raises:
            Fenced: a newer epoch owns the keys, or storage is newer than memory; nothing was written.
            DataLost: storage has lost a write that this script depends on; nothing was written.
            StorageUnavailable: no reply, or too few replicas have it; it may have run. Or storage lacks what was to be repeated first.
        """
        if replicas.count:
            return (await self.run_many(client, [(keys, args)], replicas))[0]
        execute: Callable[..., Awaitable[list[Any]]] = client.execute_command
        try:
            try:
                reply = await execute("EVALSHA", self._sha, len(keys) + 1, *keys, ABSENT_KEY, *args)
            except NoScriptError:
                reply = await execute("EVAL", self._text, len(keys) + 1, *keys, ABSENT_KEY, *args)
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"{self.name}: {error}") from error
        return reply if reply[0] == b"OK" else self.checked(reply)

    async def run_many(
        self, client: redis.Redis, calls: Sequence[tuple[Sequence[str], Sequence[Any]]], replicas: Replicas = NO_REPLICAS
    ) -> list[list[Any]]:
        """Run it several times in one round trip, each run atomic by itself. Raises like `run`.

        The runs must not depend on each other's order: those answered with NOSCRIPT are repeated after the others.
        """
        if not calls:
            return []
        if len(calls) == 1 and not replicas.count:
            return [await self.run(client, *calls[0])]
        replies = await self._round_trip(client, calls, replicas)
        unknown = [at for at in range(len(calls)) if isinstance(replies[at], NoScriptError)]
        if unknown:
            again = await self._round_trip(client, [calls[at] for at in unknown], replicas, load=True)
            for at in unknown:
                replies[at] = again.pop(0)
            replies[len(calls) :] = again  # of the later WAIT, which includes the first round trip
        for reply in replies[: len(calls)]:
            if isinstance(reply, Exception):
                raise StorageUnavailable(f"{self.name}: {reply}") from reply
        checked = [self.checked(reply) for reply in replies[: len(calls)]]
        replicas.check(replies, self.name)
        return checked

    async def _round_trip(
        self, client: redis.Redis, calls: Sequence[tuple[Sequence[str], Sequence[Any]]], replicas: Replicas, load: bool = False
    ) -> list[Any]:
        """The reply to each call, an error reply as the exception, then the replies for `replicas.check`. Raises StorageUnavailable."""
        try:
            pipeline = client.pipeline(transaction=False)
            if load:
                pipeline.execute_command("SCRIPT LOAD", self._text)
            for keys, args in calls:
                pipeline.execute_command("EVALSHA", self._sha, len(keys) + 1, *keys, ABSENT_KEY, *args)
            replicas.ask(pipeline)
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"{self.name}: {error}") from error
        return replies[1:] if load else replies

    def checked(self, reply: list[Any]) -> list[Any]:
        """Return the reply. Raises Fenced, DataLost or StorageUnavailable when its status says so."""
        if reply[0] == b"FENCED":
            raise Fenced(f"{self.name}: epoch {reply[1].decode()} owns the keys now")
        if reply[0] == b"NEWER":
            raise Fenced(f"{self.name}: storage has a newer page of {reply[1].decode()} than memory")
        if reply[0] == b"LOST":
            raise DataLost(f"{self.name}: storage has lost {reply[1].decode()}, it is {reply[2].decode() or 'not there'}")
        if reply[0] == b"BEHIND":
            raise StorageUnavailable(f"{self.name}: storage lacks {reply[1].decode()}, which it had not confirmed")
        return reply
