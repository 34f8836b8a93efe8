"""The library's pool of connections, and its connections, without what a command that need not wait has no use for.

Between a command and its reply the library takes a lock, sets two deadlines, makes a task of the write and keeps statistics that
nobody reads: of the 46 us that a script run costs here beside the sockets, these take 25. A shard runs several hundred a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

import hiredis
from redis.asyncio import BlockingConnectionPool
from redis.asyncio.connection import AbstractConnection

_UNSENT_BYTES_MAX: Final = 1 << 16
"""Written and not yet taken by the kernel: beyond it the writer waits, `redis_timeout_ms` at most."""


class ConnectionPool(BlockingConnectionPool):
    """Lends a free connection at once; who has to wait for one does as the library has it."""

    async def get_connection(self, command_name: Any = None, *keys: Any, **options: Any) -> Any:
        """A connection that is open. Raises ConnectionError when none was free within the pool's timeout, or Redis does not answer."""
        maintained = getattr(self, "_in_maintenance", False)  # a managed Redis moves: the library changes the pool under its lock
        if maintained or not self.can_get_connection():
            return await super().get_connection()  # type: ignore[no-untyped-call]
        connection: AbstractConnection = self.get_available_connection()  # type: ignore[no-untyped-call]
        try:
            await self.ensure_connection(connection)
        except BaseException:
            await self.release(connection)
            raise
        return connection


class Hearing(AbstractConnection):
    """What a connection's class becomes, so that it hears every cancellation, packs in C and writes without a task.

    A cancellation is never lost here. Until Python 3.12 `asyncio.wait_for` swallows one that arrives while what it waits for has just
    ended, and the library connects and writes through it: a task that is always in a call of it could not be ended. Each connection
    therefore counts the cancellations of its task before and after, raises what was swallowed, and closes itself, because a reply may
    be under way.
    """

    def pack_command(self, *args: Any) -> list[bytes]:
        """The bytes of a command, in C: argument by argument in Python they cost 1.3 us each."""
        name, *rest = args
        return [hiredis.pack_command((*name.split(), *rest))]

    async def _connect(self) -> None:
        await self._hear(super()._connect())  # type: ignore[no-untyped-call,safe-super]

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Hand packed commands to the transport; waits only while the server takes nothing."""
        writer = self._writer
        if not self.is_connected or writer is None or not isinstance(command, list):
            await self._hear(super().send_packed_command(command, check_health))
            return
        try:
            writer.writelines(command)
        except BaseException:
            await self.disconnect(nowait=True)
            raise
        if writer.transport.get_write_buffer_size() > _UNSENT_BYTES_MAX:
            await self._hear(super().send_packed_command([], check_health))

    async def _hear(self, call: Awaitable[None]) -> None:
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        await call
        if task.cancelling() > before:
            await self.disconnect(nowait=True)
            raise asyncio.CancelledError
