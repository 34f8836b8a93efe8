"""uvicorn as an edge uses it: the listening socket, the HTTP protocol with limits of its own, and the settings.

uvicorn bounds neither a request's head nor the time it takes; a client that sends one byte a minute, or headers without end,
would hold memory for ever. And it logs query strings, which may contain tokens: its loggers stay below warnings.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator, MutableSet
from typing import Any, Final, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from engine import handshake
from engine.config import Config
from engine.errors import Unavailable
from engine.problems import Problem
from engine.websocket import HandshakeProtocol

TRANSPORT: Final = "notify.transport"
"""Key of `scope["extensions"]` of HTTP requests: `{"transport": asyncio.Transport}`, so that a stream can end a client that
takes nothing."""

BACKLOG: Final = 4096
"""Connections the kernel holds until they are accepted: a reconnect storm is thousands within a second. Linux's own cap."""


def bind(config: Config, port: int) -> socket.socket:
    """A socket bound to `config.host`, not yet listening; edges of one machine share the port.

    Raises:
        OSError: the address is not of this machine, or the port is taken by something else.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(config.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Accepted sockets inherit both. A peer that vanished while bytes are on their way to it would else be kept for 15 minutes.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, config.client_timeout_ms)
        if config.socket_send_buffer_bytes:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.socket_send_buffer_bytes)
        listener.bind(address)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


class EdgeHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with a bounded head, which shows its transport to streams and leaves no cycle behind."""

    limits: Config  # set by `build`
    open_socket: handshake.OpenSocket | None  # likewise

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's narrowing
        """A client connected: its first request has to come in time."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.limits.request_timeout_s, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of the client."""
        in_head = self._in_head
        super().data_received(data)
        if self._in_head:
            if in_head:  # else it began somewhere in this read, which is bounded by itself
                self._head_bytes += len(data)
            if self._head_bytes > self.limits.request_head_bytes_max:
                self.send_400_response("The request's head is too large.")
            elif self._head_timer is None and not self.transport.is_closing():
                self._head_timer = self.loop.call_later(self.limits.request_timeout_s, self.transport.abort)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.scope["extensions"] = {TRANSPORT: {"transport": self.transport}}
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        """Its head is complete."""
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
        """It asks for a WebSocket: another protocol takes over."""
        if not self._open_socket():
            super().handle_websocket_upgrade()
        # The parser holds bound methods of this object: a cycle that would live until the next full collection.
        self.parser = None  # type: ignore[assignment]  # as uvicorn does in connection_lost

    def _open_socket(self) -> bool:
        """Grant a plain request; `False` when it is not plain, or not granted (`engine.handshake`)."""
        earlier: RequestResponseCycle | None = self.cycle
        if self.open_socket is None or (earlier is not None and not earlier.response_complete):
            return False
        opening = handshake.plain(self.scope["method"], self.scope["http_version"], self.url, self.headers)
        if opening is None:
            return False
        try:
            connection = self.open_socket(self.headers, opening.query_string, opening.subprotocols)
        except (Problem, Unavailable):
            return False
        self.connections.discard(self)
        self.transport.write(handshake.answer(opening, self.server_state.default_headers))
        connection.begin(self.transport, cast("MutableSet[Any]", self.connections))
        return True

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class EdgeServer(uvicorn.Server):
    """uvicorn's server without its signal handlers: signals are the actor's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


def build(application: ASGIApp, config: Config, open_socket: handshake.OpenSocket | None = None) -> EdgeServer:
    """A server for the application; run it with `serve(sockets=[bind(...)])`. Ends within `drain_ms` of `should_exit`.

    Args:
        application: answers every request.
        config: the engine's settings.
        open_socket: opens WebSockets the short way; without it the application is asked for every one.
    """
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
    bound = {"limits": config, "open_socket": open_socket and staticmethod(open_socket)}
    return EdgeServer(
        uvicorn.Config(
            application,
            loop="none",  # it runs in the caller's
            http=type("BoundedHttpProtocol", (EdgeHttpProtocol,), bound),
            ws=HandshakeProtocol,
            ws_max_size=config.frame_bytes_max,
            ws_per_message_deflate=False,  # 40 KiB and 20 us per message for payloads of a few hundred bytes
            ws_ping_interval=None,  # the gateway's ticker asks
            ws_ping_timeout=None,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=config.keep_alive_s,
            timeout_graceful_shutdown=max(1, config.drain_ms // 1000),
        )
    )
