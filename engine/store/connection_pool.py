"""redis-py's connection pool and connections with a fast path for commands that need not wait, and reliable cancellation.

Between a command and its reply redis-py takes a lock, sets two deadlines, makes a task of the write and collects statistics: 25 of the
46 us that a script run costs beside the socket I/O. A shard runs several hundred a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

import hiredis
from redis.asyncio import BlockingConnectionPool
from redis.asyncio.connection import AbstractConnection

_UNSENT_BYTES_MAX: Final = 1 << 16
"""Bytes in the transport's buffer beyond which the writer waits, `redis_timeout_ms` at most."""


class ConnectionPool(BlockingConnectionPool):
    """Returns a free connection without taking a lock; waiting for one is left to redis-py."""

    mixins: tuple[type[AbstractConnection], ...] = ()
    """What the connections of this kind of pool need before `CancellableConnection`."""

    async def get_connection(self, command_name: Any = None, *keys: Any, **options: Any) -> Any:
        """An open connection. Raises ConnectionError when none is free within the pool's timeout, or Redis does not answer."""
        maintained = getattr(self, "_in_maintenance", False)  # a managed Redis is moving: redis-py changes the pool under its lock
        if maintained or not self.can_get_connection():
            return await super().get_connection()  # type: ignore[no-untyped-call]
        connection: AbstractConnection = self.get_available_connection()  # type: ignore[no-untyped-call]
        try:
            await self.ensure_connection(connection)
        except BaseException:
            await self.release(connection)
            raise
        return connection


class CancellableConnection(AbstractConnection):
    """Mixin for connection classes: propagates every cancellation, packs commands in C and writes without a task.

    Until Python 3.12 `asyncio.wait_for` swallows a cancellation that arrives just after the awaited call has ended (gh-86296), and
    redis-py connects and writes through it, so a task that always is in such a call could not be cancelled. Each call therefore compares
    the task's cancellation count before and after, raises a swallowed cancellation, and closes the connection, because a reply may
    be outstanding.
    """

    def pack_command(self, *args: Any) -> list[bytes]:
        """The encoded command, packed in C: in Python each argument costs 1.3 us."""
        name, *rest = args
        return [hiredis.pack_command((*name.split(), *rest))]

    async def _connect(self) -> None:
        await self._propagate_cancellation(super()._connect())  # type: ignore[no-untyped-call,safe-super]

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Write packed commands to the transport; waits only while its buffer is above `_UNSENT_BYTES_MAX`."""
        writer = self._writer
        if not self.is_connected or writer is None or not isinstance(command, list):
            await self._propagate_cancellation(super().send_packed_command(command, check_health))
            return
        try:
            writer.writelines(command)
        except BaseException:
            await self.disconnect(nowait=True)
            raise
        if writer.transport.get_write_buffer_size() > _UNSENT_BYTES_MAX:
            await self._propagate_cancellation(super().send_packed_command([], check_health))

    async def _propagate_cancellation(self, call: Awaitable[None]) -> None:
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        await call
        if task.cancelling() > before:
            await self.disconnect(nowait=True)
            raise asyncio.CancelledError
