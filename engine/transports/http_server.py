"""uvicorn as an edge uses it: the listening socket, the HTTP protocol with limits of its own, and the settings.

uvicorn bounds neither a request's head nor the time it takes; a client that sends one byte a minute, or headers without end,
would hold memory for ever. And it logs query strings, which may contain tokens: its loggers stay below warnings.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Iterator, MutableSet
from typing import Any, Final, NamedTuple, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from engine.api import publish_endpoint
from engine.auth.tokens import Principal, RawHeaders
from engine.config import Config
from engine.errors import Overloaded, Unavailable
from engine.http import error_responses
from engine.http.problems import Problem
from engine.transports import websocket_handshake
from engine.transports.asgi import TRANSPORT
from engine.transports.websocket_transport import HandshakeProtocol

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


class FastPaths(NamedTuple):
    """What plain requests are answered by without ASGI."""

    open_socket: websocket_handshake.OpenSocket
    publisher: publish_endpoint.PublishEndpoint
    refused: Counter[int]  # by status


class EdgeHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with a bounded head, which shows its transport to streams, leaves no cycle behind and knows short ways."""

    limits: Config  # set by `build`
    short_ways: FastPaths | None  # likewise

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._plain: list[bytes] | None = None  # of a plain publish request: its body, as far as it is here
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
        if self._plain is not None:
            self._go_long_way()
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
        if self._may_publish():
            self._plain = []
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of its body."""
        if self._plain is not None:
            self._plain.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """It is here as a whole."""
        if self._plain is not None and self.short_ways is not None:
            body, self._plain = b"".join(self._plain), None
            self._publish(body, self.short_ways)
        else:
            super().on_message_complete()

    def _may_publish(self) -> bool:
        return (
            self.short_ways is not None
            and publish_endpoint.plain(self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers)
            and self.parser.should_keep_alive()
            and self._nothing_under_way()
            and not self.flow.write_paused  # uvicorn knows how to wait for a client that does not read
        )

    def _nothing_under_way(self) -> bool:
        earlier: RequestResponseCycle | None = self.cycle
        return earlier is None or earlier.response_complete

    def _go_long_way(self) -> None:
        """Its body is still on the way: uvicorn knows how to wait for it."""
        parts, self._plain = self._plain, None
        super().on_headers_complete()
        for part in parts or ():
            super().on_body(part)

    def _publish(self, body: bytes, ways: FastPaths) -> None:
        """Answer a plain publish request."""
        self._unset_keepalive_if_required()  # an answer within the same read may have armed it
        # As in HttpToolsProtocol.on_headers_complete: what it asks of the request under way, it asks of this.
        self.cycle = cycle = RequestResponseCycle(
            self.scope,
            self.transport,
            self.flow,
            self.logger,
            self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=True,
            on_response=self.on_response_complete,
        )
        try:
            principal = ways.publisher.admit(self.headers, b"")
        except (Problem, Overloaded) as error:
            self._refuse(cycle, error, ways)
            return
        task = self.loop.create_task(self._published(cycle, body, publish_endpoint.content_type(self.headers), principal, ways))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _published(
        self, cycle: RequestResponseCycle, body: bytes, content_type: str | None, principal: Principal, ways: FastPaths
    ) -> None:
        try:
            answer = await ways.publisher.publish(body, content_type, principal)
        except Exception as error:
            if not isinstance(error, Problem | Overloaded | Unavailable):
                self.logger.error("a publish request failed", exc_info=error)  # a bug
            self._refuse(cycle, error, ways)
        else:
            self._answer(cycle, 202, publish_endpoint.headers(answer), answer)

    def _refuse(self, cycle: RequestResponseCycle, error: Exception, ways: FastPaths) -> None:
        refusal = error_responses.refusal(error, ways.refused)
        self._answer(cycle, refusal.status_code, refusal.raw_headers, bytes(refusal.body))

    def _answer(self, cycle: RequestResponseCycle, status: int, headers: RawHeaders, body: bytes) -> None:
        """In one write, where uvicorn needs two: a `send` of the kernel's less."""
        cycle.response_started = cycle.response_complete = True
        answered, cycle.on_response = cycle.on_response, _nothing  # else this and the cycle would hold each other until a full collection
        if cycle.disconnected:
            return
        close = not cycle.keep_alive
        self.transport.write(publish_endpoint.response(STATUS_LINE[status], [*cycle.default_headers, *headers], body, close=close))
        if close:
            self.transport.close()
        answered()

    def handle_websocket_upgrade(self) -> None:
        """It asks for a WebSocket: another protocol takes over."""
        if not self._open_socket():
            super().handle_websocket_upgrade()
        # The parser holds bound methods of this object: a cycle that would live until the next full collection.
        self.parser = None  # type: ignore[assignment]  # as uvicorn does in connection_lost

    def _open_socket(self) -> bool:
        """Grant a plain request; `False` when it is not plain, or not granted (`engine.transports.websocket_handshake`)."""
        if self.short_ways is None or not self._nothing_under_way():
            return False
        opening = websocket_handshake.plain(self.scope["method"], self.scope["http_version"], self.url, self.headers)
        if opening is None:
            return False
        try:
            connection = self.short_ways.open_socket(self.headers, opening.query_string, opening.subprotocols)
        except (Problem, Unavailable):
            return False
        self.connections.discard(self)
        self.transport.write(websocket_handshake.answer(opening, self.server_state.default_headers))
        connection.begin(self.transport, cast("MutableSet[Any]", self.connections))
        return True

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _nothing() -> None:
    """As `on_response` of an answered request."""


class EdgeServer(uvicorn.Server):
    """uvicorn's server without its signal handlers: signals are the actor's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


def build(application: ASGIApp, config: Config, short_ways: FastPaths | None = None) -> EdgeServer:
    """A server for the application; run it with `serve(sockets=[bind(...)])`. Ends within `drain_ms` of `should_exit`.

    Args:
        application: answers every request.
        config: the engine's settings.
        short_ways: around the application; without them it answers every request.
    """
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
    bound = {"limits": config, "short_ways": short_ways}
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
