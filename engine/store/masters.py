"""What connections share that look for their master themselves: behind Sentinel, in a Redis Cluster, and by a name that moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import urlsplit

from redis.asyncio import Connection
from redis.exceptions import ConnectionError, ReadOnlyError, ResponseError

_READ_ONLY: Final = " -READONLY "
"""In the error of a script, whose own error Redis 6.2 only quotes."""


def host_and_port(text: str, port: int, of: str) -> tuple[str, int]:
    """Of one host in a URL that names several. Raises ValueError.

    Args:
        port: where it names none.
        of: what the host is, for the error.
    """
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(f"{text!r} is not HOST:PORT of a {of}")
    return parts.hostname, parts.port or port


async def greet_master(connection: Any) -> None:
    """Authenticate, then verify that the server reports the role of master."""
    await connection.on_connect()
    await connection.send_command("ROLE", check_health=False)
    (role, *_) = await connection.read_response()
    if role != b"master":
        raise ConnectionError(f"{connection.host}:{connection.port} is not the master yet, or no longer")


class ToMaster(Connection):
    """Mixin for connection classes: a connection to a server that was demoted is closed at its first write, so that the next one is made to
    whoever is the master then."""

    async def read_response(self, *arguments: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*arguments, **options)
        except ResponseError as error:
            if not isinstance(error, ReadOnlyError) and _READ_ONLY not in str(error):
                raise
            await self.disconnect()
            raise ConnectionError(f"{self.host}:{self.port} is no longer the master: {error}") from error


class MasterSearch:
    """One question for all who ask at once: where connections are lost together, each would otherwise open one more to ask with.

    Args:
        find: the address of the master; raises ConnectionError when it is not found.
    """

    def __init__(self, find: Callable[[], Awaitable[tuple[str, int]]]) -> None:
        self._find = find
        self._search: asyncio.Future[tuple[str, int]] | None = None

    async def master(self) -> tuple[str, int]:
        """Its address. Raises as `find`."""
        search = self._search
        if search is None or search.done():
            search = self._search = asyncio.ensure_future(self._find())
            search.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever asked may have left
        return await asyncio.shield(search)
