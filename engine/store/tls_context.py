"""The TLS context of connections to Redis: one for all with the same options, made anew once a file of theirs has changed.

redis-py makes a context for each connection, and each loads the authorities of the operating system: 15 to 50 ms in which the process does
nothing else. An edge opens dozens of connections at once when a server comes back. Their time was up before they were open.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from redis.asyncio import SSLConnection
from redis.asyncio.connection import RedisSSLContext

_shared: dict[tuple[Any, ...], tuple[list[int], RedisSSLContext]] = {}  # by options: of which state of the files


class SharedContext(SSLConnection):
    """Mixin for connection classes that may speak TLS."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context = shared(self.ssl_context)


def shared(context: RedisSSLContext) -> RedisSSLContext:
    """The one that this process has for these options and the present files, or this one."""
    options = tuple(repr(getattr(context, name)) for name in RedisSSLContext.__slots__ if name != "context")
    files = [_changed_ns(path) for path in (context.keyfile, context.certfile, context.ca_certs, context.ca_path) if path]
    if _shared.get(options, (None,))[0] != files:
        _shared[options] = files, context
    return _shared[options][1]


def _changed_ns(path: str) -> int:
    with suppress(OSError):
        return Path(path).stat().st_mtime_ns
    return 0
