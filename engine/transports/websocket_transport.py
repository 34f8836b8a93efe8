"""WebSockets on the engine's own server: uvicorn's handshake, then frames straight to and from the transport.

    TCP --> uvicorn HttpToolsProtocol --upgrade--> HandshakeProtocol (uvicorn's sansio protocol; ASGI, Starlette, routes)
                   |                                    | `take_over`, once accepted
                   | a plain request                    v
                   +--- `engine.transports.websocket_handshake` ------> DirectWebSocket: the transport's protocol from then on

Every handshake that is not plain, and every refusal, is uvicorn's and Starlette's. An accepted connection leaves both: its
transport gets a protocol of its own, the ASGI call returns, and the request, its headers, tasks and queues are freed. An
idle connection is then a transport and one slotted object.

Reading. Frames are found by their headers (RFC 6455, section 5.2). What comes with nearly every read, a complete masked text
frame, is unmasked here; so are pongs. Everything else (fragments, pings, close, binary, errors) goes to a
`ServerProtocol` of the websockets library, made when it is needed and dropped when it is idle. Incomplete frames wait here,
at most one of `frame_bytes_max`, so the library always stands at a frame boundary.

Writing. A server does not mask: a frame is its header and the payload, handed to the transport as they are.

Backpressure. The transport's high-water mark is 0: it tells the moment the kernel takes less than everything. Unsent
bytes end the connection with 4413 when they pass `send_buffer_bytes_max`, or stand still for `send_stall_ms`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableSet
from typing import Any, Final, cast

from uvicorn.config import Config as UvicornConfig
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from engine.auth.tokens import Principal
from engine.core.wire.records import Welcome
from engine.gateway.connection import Cursor, Progress
from engine.gateway.gateway import GOING_AWAY, Gateway
from engine.transports.websocket_protocol import TOO_SLOW, TOO_SLOW_HINT, Verify, WebSocketSession

try:
    from websockets.speedups import apply_mask
except ImportError:  # a platform for which the library has no compiled part: ten times as slow, and right
    from websockets.utils import apply_mask

EXTENSION: Final = "notify.socket"
"""Key of `scope["extensions"]` under which the protocol of the connection is found: `{"protocol": HandshakeProtocol}`."""

ABNORMAL_CLOSURE: Final = 1006

_FINAL_TEXT: Final = 0x81
_FINAL_PONG: Final = 0x8A

quiet = logging.getLogger("engine.edge.handshake")
"""In place of uvicorn's logger: its lines contain the query string, and a query string may contain a token."""
quiet.setLevel(logging.WARNING)


class _NoTransport(asyncio.Transport):
    """What a protocol holds after its transport was given away."""

    def close(self) -> None:
        """The transport is somebody else's to close."""

    def is_closing(self) -> bool:
        """It is not there any more."""
        return True

    def abort(self) -> None:
        """As `close`."""


class HandshakeProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol until the connection is accepted; for `uvicorn.Config(ws=...)`."""

    def __init__(
        self,
        config: UvicornConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.logger = quiet
        self.conn.logger = quiet
        self.conn.debug = False
        self._early = b""  # what the client sent behind its handshake, before the answer

    def handle_connect(self, event: Request) -> None:
        """The request is complete: show this protocol to the application."""
        super().handle_connect(event)
        if not self.handshake_complete:
            self.scope["extensions"][EXTENSION] = {"protocol": self}

    def data_received(self, data: bytes) -> None:
        """Bytes of the client. Frames that come before the answer to the handshake wait, and so does the client."""
        if self.handshake_initiated and not self.handshake_complete:
            self._early += data
            self.transport.pause_reading()
            return
        super().data_received(data)
        if not self.handshake_initiated:
            # The request is complete, and the library could not read it: a line beyond its limit, a body. uvicorn says nothing then.
            self.transport.write(b"".join(self.conn.data_to_send()) or _UNREADABLE)
            self.transport.close()

    async def receive(self) -> Any:
        """The next ASGI event, for applications that do not take over."""
        if self._early and self.handshake_complete and not self.disconnected:
            early, self._early = self._early, b""
            self.transport.resume_reading()
            super().data_received(early)
        return await super().receive()

    def take_over(self, connection: DirectWebSocket) -> bool:
        """Give the transport to `connection`, which begins; `False` when the client has gone already.

        To be called right after `websocket.accept`, before control returns to the event loop.
        """
        transport = self.transport
        if transport.is_closing() or self.disconnected or not self.handshake_complete:
            return False
        self.transport = _NoTransport()
        self.connections.discard(self)
        self.scope = {}  # type: ignore[typeddict-item]  # it refers to this object: leave no cycle behind
        _drop(self.conn)
        connection.begin(transport, cast("MutableSet[Any]", self.connections))
        if self._early:
            transport.resume_reading()
            connection.data_received(self._early)
        return True


class DirectWebSocket(WebSocketSession, asyncio.Protocol):
    """A WebSocket on a transport of its own. See the module's theory of operation."""

    __slots__ = ("_connections", "_corked", "_fragments", "_library", "_progress", "_tail", "_timer", "_transport", "_written")

    def __init__(self, gateway: Gateway, owner: Principal, cursor: Cursor, device: str, verify: Verify) -> None:
        super().__init__(gateway, owner, cursor, device, verify)
        self._transport: asyncio.Transport = _NOWHERE
        self._connections: MutableSet[Any] | None = None
        self._library: ServerProtocol | None = None  # exists while something odd is going on
        self._fragments: list[Frame] = []  # of an unfinished message
        self._tail = b""  # the beginning of an incomplete frame
        self._timer: asyncio.TimerHandle | None = None  # of the closing handshake
        self._corked: list[bytes] | None = None  # frames that leave with the welcome
        self._progress: Progress | None = None  # while bytes are unsent
        self._written = 0

    def begin(self, transport: asyncio.Transport, connections: MutableSet[Any]) -> None:
        """Take the transport of an accepted WebSocket and attach.

        Args:
            transport: where the frames go.
            connections: the server's live protocols, whose end it awaits when it shuts down.
        """
        self._transport = transport
        self._connections = connections
        connections.add(self)
        transport.set_write_buffer_limits(high=0)
        transport.set_protocol(self)
        self.gateway.attach(self)

    # -- Reading. ----------------------------------------------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        """Bytes of the client."""
        if self._tail:
            data = self._tail + data
            self._tail = b""
        position, end = 0, len(data)
        while end - position >= 6 and data[position] == _FINAL_TEXT and self._library is None:
            size = data[position + 1] - 0x80
            start = position + 6
            stop = start + size
            if not 0 <= size < 126 or stop > end:
                break
            self.text(apply_mask(data[start:stop], data[start - 4 : start]))
            position = stop
        while position < end:
            position = self._read_frame(data, position, end)

    def _read_frame(self, data: bytes, position: int, end: int) -> int:
        """Handle the frame at `position`, whatever it is. Returns where the next one begins; `end` when it is incomplete."""
        self.heard = True
        library = self._library
        if library is not None and library.state is not OPEN:
            self._feed(library, data[position:])
            return end
        start, size = _header(data, position, end)
        allowed = self.gateway.config.frame_bytes_max
        if library is not None and library.current_size is not None:
            allowed -= library.current_size
        if size == _BROKEN or size > allowed:
            self._feed(library, data[position:])
            return end
        stop = start + size
        if size == _INCOMPLETE or stop > end:
            self._tail = data[position:]
            return end
        if data[position] == _FINAL_TEXT and library is None:
            self.text(apply_mask(data[start:stop], data[start - 4 : start]))
        elif data[position] == _FINAL_PONG and size < 126:
            self.heartbeat.pong(apply_mask(data[start:stop], data[start - 4 : start]), self.gateway.clock())
        else:
            self._feed(library, data[position:stop])
        return stop

    def _feed(self, library: ServerProtocol | None, data: bytes) -> None:
        """Give the library whole frames, or what breaks the protocol, and do what it says."""
        if library is None:
            library = self._open_library()
        library.receive_data(data)
        for event in library.events_received():
            frame = cast("Frame", event)
            if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                self._fragments.append(frame)
                if frame.fin:
                    self._message()
        self._write_all(library.data_to_send())
        if library.parser_exc is not None:
            # Half-close and read on: a transport closed with unread bytes sends a reset, which would overtake the close frame.
            self.gateway.detach(self, ABNORMAL_CLOSURE if library.close_sent is None else library.close_sent.code)
            if not self._transport.is_closing():
                self._transport.write_eof()
            self._await_close()
        elif library.close_rcvd is not None:
            self.gateway.detach(self, library.close_rcvd.code)
            self._transport.close()
        elif library.state is OPEN and library.current_size is None:
            self._library = None
            _drop(library)

    def _message(self) -> None:
        fragments, self._fragments = self._fragments, []
        if fragments[0].opcode is Opcode.TEXT:
            self.text(b"".join(fragment.data for fragment in fragments))
        else:
            self.binary()

    def _open_library(self) -> ServerProtocol:
        library = self._library
        if library is None:
            library = self._library = ServerProtocol(state=OPEN, max_size=self.gateway.config.frame_bytes_max, logger=quiet)
        return library

    # -- Writing. ----------------------------------------------------------------------------------------------------------
    def on_welcome(self, record: Welcome) -> None:
        # A returning user is welcomed with messages: one system call for both is 5 % of what a storm costs.
        self._corked = []
        super().on_welcome(record)

    def flush(self) -> None:
        corked, self._corked = self._corked, None
        if corked and not self._transport.is_closing():
            self._put(b"".join(corked))

    def write(self, text: bytes) -> None:
        """Send one text frame."""
        if self.ended:
            return
        size = len(text)
        if size < 126:
            self._put(b"\x81%c%b" % (size, text))
        elif size < 1 << 16:
            self._put(b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), text))
        else:
            self._put(b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), text))

    def ping(self, payload: bytes) -> None:
        """Send a ping frame."""
        self._put(b"\x89%c%b" % (len(payload), payload))

    def _put(self, data: bytes) -> None:
        if self._corked is not None:
            self._corked.append(data)
            return
        self._written += len(data)
        self._transport.write(data)
        if self.unsent and self._transport.get_write_buffer_size() > self.gateway.config.send_buffer_bytes_max:
            self.close(TOO_SLOW, TOO_SLOW_HINT)

    def _write_all(self, chunks: list[bytes]) -> None:
        self.flush()
        data = b"".join(chunks)
        if data and not self._transport.is_closing():
            self._put(data)

    def pause_writing(self) -> None:
        """The kernel took less than everything."""
        self.unsent = True
        if not self.ended:
            self._progress = Progress(0, self.gateway.clock())
            self.gateway.backlog.add(self)

    def resume_writing(self) -> None:
        """Nothing is unsent."""
        self.unsent = False
        self._progress = None
        self.gateway.backlog.discard(self)

    def check_backlog(self, now_ms: int) -> None:
        """Bytes are unsent: is the client taking any?"""
        progress = self._progress
        taken = self._written - self._transport.get_write_buffer_size()
        if progress is not None and progress.stalled_ms(taken, now_ms) > self.gateway.config.send_stall_ms:
            self.close(TOO_SLOW, TOO_SLOW_HINT)

    # -- The end. ----------------------------------------------------------------------------------------------------------
    def close(self, code: int, reason: str) -> None:
        """Send a close frame and wait for the client's, `close_timeout_ms` at most.

        Behind bytes that a client does not take, the close frame waits like them: then the wait ends with a reset.
        """
        if self.ended:
            return
        self.gateway.detach(self, code)
        library = self._open_library()
        library.send_close(code, reason)
        self._write_all(library.data_to_send())
        self._await_close()

    def _await_close(self) -> None:
        if self._timer is None:
            timeout_s = self.gateway.config.close_timeout_ms / 1000
            self._timer = asyncio.get_running_loop().call_later(timeout_s, self._transport.abort)

    def shutdown(self) -> None:
        """uvicorn's server stops."""
        self.close(GOING_AWAY, "going away")

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport has ended, with or without a closing handshake."""
        self.gateway.detach(self, ABNORMAL_CLOSURE)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connections is not None:
            self._connections.discard(self)
        if self._library is not None:
            _drop(self._library)
            self._library = None
        self._transport = _NOWHERE


_NOWHERE: Final = _NoTransport()

_UNREADABLE: Final = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

_INCOMPLETE: Final = -1
_BROKEN: Final = -2


def _header(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Where the payload of the frame at `position` begins, and its size: `_INCOMPLETE`, or `_BROKEN` when it is not masked."""
    if end - position < 2:
        return 0, _INCOMPLETE
    size = data[position + 1] - 0x80
    if size < 0:
        return 0, _BROKEN
    start = position + 6
    if size < 126:
        return start, size
    width = 2 if size == 126 else 8
    if end - position < 2 + width:
        return 0, _INCOMPLETE
    return start + width, int.from_bytes(data[position + 2 : position + 2 + width], "big")


def _drop(library: ServerProtocol) -> None:
    """Free a library object now: its parser is a generator that refers to it, a cycle that would wait for the collector."""
    library.parser.close()
