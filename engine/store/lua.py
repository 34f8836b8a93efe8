"""Lua scripts, which Redis runs atomically: the place where fencing and writing are one step.

A script's first reply element is a word: OK, FENCED (a newer epoch owns the keys), LOST (storage lacks what it had confirmed),
or one of the script's own. Each script does all its refusing before its first write, so that it happens whole or not at all;
Redis itself refuses (out of memory, read-only, disk full) at the first write of a script and never later.

What one writer at a time may do is in `scripts/fenced`: each of these begins with `scripts/fenced.lua`.

A server forgets its scripts when it restarts, when a replica takes over, and at SCRIPT FLUSH, which may come between two commands of a
pipeline. It says so instead of running one; then it gets the text, and what it did not run is sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from pathlib import Path
from typing import Any, Final

import redis.asyncio as redis
from msgspec import Struct
from redis.exceptions import NoScriptError, RedisError

from engine.config import Config
from engine.errors import DataLost, Fenced, StorageUnavailable
from engine.store.keys import replication_key

_FOLDER = Path(__file__).parent / "scripts"


class Replicas(Struct, frozen=True):
    """How many replicas must have a write, in their memory, before it counts, and how long they have for it.

    It is asked with WAIT, which counts from the connection's last write. A script that finds its work done by an earlier copy
    of itself, or answers from what somebody else wrote, has written nothing; so a write of its own goes before every WAIT. And
    because replication is one ordered stream, a replica that has this write has everything written before it, by anyone.
    """

    count: int = 0
    timeout_ms: int = 1000

    @staticmethod
    def wanted(config: Config) -> Replicas:
        """What the configuration asks for."""
        return Replicas(config.redis_replicas_min, config.redis_replicas_timeout_ms)

    def ask(self, pipeline: Any) -> None:
        """Add the question to a pipeline, behind what it is about; the last reply goes to `check`."""
        if self.count:
            pipeline.set(replication_key(), b"")
            pipeline.execute_command("WAIT", self.count, self.timeout_ms)

    def check(self, replies: list[Any], what: str) -> None:
        """Take the replies to the question off the end. Raises StorageUnavailable when too few replicas have it."""
        if not self.count:
            return
        reached, written = replies.pop(), replies.pop()
        for reply in (written, reached):
            if isinstance(reply, Exception):
                raise StorageUnavailable(f"{what}: {reply}") from reply
        if reached < self.count:
            raise StorageUnavailable(f"{what}: {reached} of {self.count} replicas had it after {self.timeout_ms} ms")


NO_REPLICAS: Final = Replicas()


async def _execute(client: redis.Redis, *command: Any) -> Any:
    return await client.execute_command(*command)  # type: ignore[no-untyped-call]


class Script:
    """One script of the `scripts` folder, sent by its hash once the server knows it."""

    def __init__(self, name: str) -> None:
        folder, _, self.name = name.rpartition("/")
        prologue = (_FOLDER / f"{folder}.lua").read_bytes() if folder else b""
        self._text = prologue + (_FOLDER / f"{name}.lua").read_bytes()
        self._sha = sha1(self._text, usedforsecurity=False).hexdigest()

    async def run(self, client: redis.Redis, keys: Sequence[str], args: Sequence[Any], replicas: Replicas = NO_REPLICAS) -> list[Any]:
        """Run it; returns the reply after its first word has been looked at.

        Raises:
            Fenced: a newer epoch owns the keys; nothing was written.
            DataLost: storage has lost what this script builds on; nothing was written.
            StorageUnavailable: no answer, or too few replicas have it; whether it ran is unknown.
        """
        if replicas.count:
            return (await self.run_many(client, [(keys, args)], replicas))[0]
        try:
            try:
                reply = await _execute(client, "EVALSHA", self._sha, len(keys), *keys, *args)
            except NoScriptError:
                reply = await _execute(client, "EVAL", self._text, len(keys), *keys, *args)
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"{self.name}: {error}") from error
        return self.checked(reply)

    async def run_many(
        self, client: redis.Redis, calls: Sequence[tuple[Sequence[str], Sequence[Any]]], replicas: Replicas = NO_REPLICAS
    ) -> list[list[Any]]:
        """Run it several times, each run atomic by itself, in one round trip. Raises like `run`.

        The runs must not build on each other: where the server has forgotten the script, those that it did not know it for come last.
        """
        if not calls:
            return []
        replies = await self._round_trip(client, calls, replicas)
        unknown = [at for at in range(len(calls)) if isinstance(replies[at], NoScriptError)]
        if unknown:
            again = await self._round_trip(client, [calls[at] for at in unknown], replicas, load=True)
            for at in unknown:
                replies[at] = again.pop(0)
            replies[len(calls) :] = again  # of the replicas: what they have now, they have with everything before it
        for reply in replies[: len(calls)]:
            if isinstance(reply, Exception):
                raise StorageUnavailable(f"{self.name}: {reply}") from reply
        checked = [self.checked(reply) for reply in replies[: len(calls)]]
        replicas.check(replies, self.name)
        return checked

    async def _round_trip(
        self, client: redis.Redis, calls: Sequence[tuple[Sequence[str], Sequence[Any]]], replicas: Replicas, load: bool = False
    ) -> list[Any]:
        """A reply to each call, an error as itself, and the replies that `replicas.check` takes. Raises StorageUnavailable."""
        try:
            pipeline = client.pipeline(transaction=False)
            if load:
                pipeline.execute_command("SCRIPT LOAD", self._text)
            for keys, args in calls:
                pipeline.execute_command("EVALSHA", self._sha, len(keys), *keys, *args)
            replicas.ask(pipeline)
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"{self.name}: {error}") from error
        return replies[1:] if load else replies

    def checked(self, reply: list[Any]) -> list[Any]:
        """The reply itself, unless it says FENCED or LOST."""
        if reply[0] == b"FENCED":
            raise Fenced(f"{self.name}: epoch {reply[1].decode()} owns the keys now")
        if reply[0] == b"LOST":
            raise DataLost(f"{self.name}: storage has lost {reply[1].decode()}, it is {reply[2].decode() or 'not there'}")
        return reply
