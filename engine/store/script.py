"""Lua scripts, which Redis runs atomically: the place where fencing and writing are one step.

A script's first reply element is a word: OK, FENCED (a newer epoch owns the keys), or one of the script's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from pathlib import Path
from typing import Any

import redis.asyncio as redis
from redis.exceptions import NoScriptError, RedisError

from engine.errors import Fenced, StorageUnavailable

_FOLDER = Path(__file__).parent / "scripts"


async def _execute(client: redis.Redis, *command: Any) -> Any:
    return await client.execute_command(*command)  # type: ignore[no-untyped-call]


class Script:
    """One script of the `scripts` folder, sent by its hash once the server knows it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._text = (_FOLDER / f"{name}.lua").read_bytes()
        self._sha = sha1(self._text, usedforsecurity=False).hexdigest()

    async def run(self, client: redis.Redis, keys: Sequence[str], args: Sequence[Any]) -> list[Any]:
        """Run it; returns the reply after its first word has been looked at.

        Raises:
            Fenced: a newer epoch owns the keys; nothing was written.
            StorageUnavailable: no answer; whether it ran is unknown.
        """
        try:
            try:
                reply = await _execute(client, "EVALSHA", self._sha, len(keys), *keys, *args)
            except NoScriptError:
                reply = await _execute(client, "EVAL", self._text, len(keys), *keys, *args)
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"{self.name}: {error}") from error
        return self.checked(reply)

    async def run_many(self, client: redis.Redis, calls: Sequence[tuple[Sequence[str], Sequence[Any]]]) -> list[list[Any]]:
        """Run it several times in one round trip, each run atomic by itself. Raises like `run`."""
        if not calls:
            return []
        try:
            pipeline = client.pipeline(transaction=False)
            pipeline.execute_command("SCRIPT LOAD", self._text)
            for keys, args in calls:
                pipeline.execute_command("EVALSHA", self._sha, len(keys), *keys, *args)
            replies = await pipeline.execute()
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"{self.name}: {error}") from error
        return [self.checked(reply) for reply in replies[1:]]

    def checked(self, reply: list[Any]) -> list[Any]:
        """The reply itself, unless it says FENCED."""
        if reply[0] == b"FENCED":
            raise Fenced(f"{self.name}: epoch {reply[1].decode()} owns the keys now")
        return reply
