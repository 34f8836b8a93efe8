"""The HTTP server of an edge: its listening socket, and uvicorn's server with the connections of `engine.transports.http_protocol`.

uvicorn accepts connections, keeps the `Date` header current and shuts down. Its loggers stay at warnings: their lines contain query
strings, which may contain tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import socket
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, cast

import uvicorn
from starlette.types import ASGIApp

from engine.config import Config
from engine.core.model.period import until_next
from engine.gateway.paced_turns import PacedTurns
from engine.transports.http_protocol import FastPaths, HttpProtocol
from engine.transports.open_sockets import OpenSockets, raise_file_limit

BACKLOG: Final = 4096
"""Connections that the kernel queues until they are accepted: a reconnect storm is thousands within a second. Linux's own cap."""


_DATE_S: Final = 1.0
"""Between two values of the `Date` header, which has whole seconds."""

_DROP_SYN: Final = b"".join(
    struct.pack("HBBI", *instruction)
    for instruction in (
        (0x30, 0, 0, 13),  # A = the TCP flags
        (0x54, 0, 0, 0x12),  # A &= SYN | ACK
        (0x15, 0, 1, 0x02),  # SYN alone, the request for a connection?
        (0x06, 0, 0, 0),  # drop it
        (0x06, 0, 0, 0xFFFFFFFF),  # keep anything else
    )
)
"""A classic BPF program (Linux, packet(7)): the bytes of a packet that a socket keeps, from its TCP header on."""

_SO_ATTACH_FILTER: Final = 26  # <asm-generic/socket.h>


def drop_new(listener: socket.socket) -> None:
    """Let the kernel drop requests for new connections to this socket; handshakes under way go on.

    A listening socket that is closed resets the connections in its queue and the handshakes under way, also where others listen on the
    port. A dropped request is repeated by the client's kernel a second later, and then goes to a socket that still listens. So after this,
    accept for the longest round trip, then close. Elsewhere than on Linux this does nothing.
    """
    program = ctypes.create_string_buffer(_DROP_SYN)
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(_DROP_SYN) // 8, ctypes.addressof(program)))


def bind(config: Config, port: int) -> socket.socket:
    """A socket bound to `config.host`, not yet listening; edges of one machine share the port.

    Raises:
        OSError: the address is not of this machine, or something else listens on the port.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(config.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Accepted sockets inherit both. The kernel would keep a connection with unacknowledged bytes for 15 minutes.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, config.client_timeout_ms)
        if config.socket_send_buffer_bytes:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.socket_send_buffer_bytes)
        listener.bind(address)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


class EdgeServer(uvicorn.Server):
    """uvicorn's server without its signal handlers, since the actor handles signals, and with one wake-up a second instead of ten."""

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[], None]) -> None:
        self._exit = asyncio.Event()
        self._on_listening = on_listening
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self._on_listening()

    @property
    def should_exit(self) -> bool:
        """Whether it is to end. Setting it ends it at once."""
        return self._exit.is_set()

    @should_exit.setter
    def should_exit(self, wanted: bool) -> None:
        if wanted:
            self._exit.set()

    async def main_loop(self) -> None:
        """Keep the `Date` header current until it is to end."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until_next(time.monotonic(), _DATE_S)):
                    await self._exit.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handler."""
        yield


def build(
    application: ASGIApp, config: Config, fast_paths: FastPaths | None = None, on_listening: Callable[[], None] = lambda: None
) -> EdgeServer:
    """A server for the application; run it with `serve(sockets=[bind(...)])`. It ends within `drain_ms` of `should_exit`.

    Args:
        application: answers every request that no fast path takes.
        fast_paths: answer plain requests without the application.
        on_listening: called when clients can connect.
    """
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
    open_sockets, openings = OpenSockets(config, raise_file_limit()), PacedTurns(max(config.openings_per_s, config.connections_per_s))
    return EdgeServer(
        uvicorn.Config(
            application,
            loop="none",  # it runs in the caller's
            http=cast(
                "type[Any]", partial(HttpProtocol, settings=config, open_sockets=open_sockets, openings=openings, fast_paths=fast_paths)
            ),
            ws="none",  # `HttpProtocol` hands WebSockets over by itself; what follows is for `HandshakeProtocol`
            ws_max_size=config.frame_bytes_max,
            ws_per_message_deflate=False,  # 40 KiB and 20 us per message for payloads of a few hundred bytes
            ws_ping_interval=None,  # the gateway sends pings
            ws_ping_timeout=None,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=max(1, config.drain_ms // 1000),
        ),
        on_listening,
    )
