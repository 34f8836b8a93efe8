"""WebSocket frames (RFC 6455) between a client's transport and `WebSocketSession`, and the handshakes that need the general path.

    HttpProtocol --any other upgrade--> HandshakeProtocol (uvicorn's sans-I/O protocol; ASGI, Starlette, routes)
         |                                  | `take_over`, once accepted
         | a plain, granted request         v
         +--------------------------> DirectWebSocket: the transport's protocol from then on

An accepted connection leaves ASGI: its transport gets a protocol of its own, the ASGI call returns, and the request, its headers,
tasks and queues are freed. An idle connection is then a transport and one slotted object.

Reading. Frames are found by their headers (RFC 6455, section 5.2). The common case, a complete masked text frame, is unmasked here, and
so are pongs. Everything else (fragments, pings, close, binary, errors) goes to a `ServerProtocol` of the websockets library, created
when it is needed and dropped when it is idle; each of these frames takes a token of the connection's budget, and a message has at most
`fragments_max` of them. An incomplete frame, at most `frame_bytes_max` of it, is buffered here until it is complete, however it is cut into
reads, so the library is always at a frame boundary. One that is not complete after `request_timeout_s`, or a message, ends the connection
with 1008 at the next heartbeat.

Writing. A server does not mask (section 5.1): a frame is its header and the payload, passed to the transport as they are.

Backpressure. The transport's high-water mark is 0, so `pause_writing` is called as soon as the kernel takes less than everything. Unsent
bytes end the connection with 4413 when they exceed `send_buffer_bytes_max`, when none leaves for `send_stall_ms`, or when those of all
connections exceed `send_buffers_bytes_max` and it has the most.
"""

from __future__ import annotations

import asyncio
import logging
from codecs import utf_8_decode
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
from engine.transports.websocket_protocol import INVALID_DATA, NOT_UTF8, POLICY_VIOLATION, TOO_SLOW, TOO_SLOW_HINT, Verify, WebSocketSession

try:
    from websockets.speedups import apply_mask
except ImportError:  # the library has no compiled part for this platform; the Python one takes ten times as long
    from websockets.utils import apply_mask

EXTENSION: Final = "notify.socket"
"""Key of `scope["extensions"]` under which the protocol of the connection is found: `{"protocol": HandshakeProtocol}`."""

ABNORMAL_CLOSURE: Final = 1006

TOO_MANY_FRAGMENTS: Final = "a message in too many fragments"

UNFINISHED: Final = "an incomplete frame for too long"

_FINAL_TEXT: Final = 0x81
_FINAL_PONG: Final = 0x8A

quiet = logging.getLogger("engine.edge.handshake")
"""In place of uvicorn's logger: its lines contain the query string, and a query string may contain a token."""
quiet.setLevel(logging.WARNING)


class _NoTransport(asyncio.Transport):
    """The transport of a protocol that has handed over its own: closed, and closing it does nothing."""

    def close(self) -> None:
        """Do nothing: the transport belongs to another protocol."""

    def is_closing(self) -> bool:
        return True

    def abort(self) -> None:
        """Do nothing, as `close`."""


class HandshakeProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol, until the application has accepted the connection and `take_over` is called."""

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
        self._early = b""  # received after the handshake request, before the response

    def handle_connect(self, event: Request) -> None:
        """The request is complete: put this protocol into its scope."""
        super().handle_connect(event)
        if not self.handshake_complete:
            self.scope["extensions"][EXTENSION] = {"protocol": self}

    def data_received(self, data: bytes) -> None:
        """Bytes of the client. Frames that arrive before the response to the handshake are buffered, and reading pauses."""
        if self.handshake_initiated and not self.handshake_complete:
            self._early += data
            self.transport.pause_reading()
            return
        super().data_received(data)
        if not self.handshake_initiated:
            # The library could not parse the request (a line over its limit, a body); uvicorn sends nothing in that case.
            self.transport.write(b"".join(self.conn.data_to_send()) or _UNREADABLE)
            self.transport.close()

    async def receive(self) -> Any:
        """The next ASGI event, for an application that does not call `take_over`."""
        if self._early and self.handshake_complete and not self.disconnected:
            early, self._early = self._early, b""
            self.transport.resume_reading()
            super().data_received(early)
        return await super().receive()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.close_sent:
            self.handshake_complete = True  # by a refusal; uvicorn 0.54 forgets it, and would log that the application has not answered

    def take_over(self, connection: DirectWebSocket) -> bool:
        """Hand the transport over to `connection`, which begins. Returns false when the client has already disconnected.

        Call it right after `websocket.accept`, before control returns to the event loop.
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


class _FrameProtocol(ServerProtocol):
    """The library's, which would answer a close between fragments with 1002. It is a close there too (RFC 6455, section 5.4)."""

    def recv_frame(self, frame: Frame) -> None:
        """Leave the message unfinished on a close."""
        if frame.opcode is Opcode.CLOSE:
            self.current_size = None
        super().recv_frame(frame)


class DirectWebSocket(WebSocketSession, asyncio.Protocol):
    """A WebSocket that is the protocol of its transport. See the module's theory of operation."""

    __slots__ = (
        "_began_ms",
        "_connections",
        "_corked",
        "_fragments",
        "_half_character",
        "_library",
        "_needed",
        "_progress",
        "_tail",
        "_timer",
        "_transport",
        "_written",
    )

    def __init__(self, gateway: Gateway, owner: Principal, cursor: Cursor, device: str, verify: Verify) -> None:
        super().__init__(gateway, owner, cursor, device, verify)
        self._transport: asyncio.Transport = _NOWHERE
        self._connections: MutableSet[Any] | None = None
        self._library: ServerProtocol | None = None  # exists while the general path is in use
        self._fragments: list[Frame] = []  # of an unfinished message
        self._half_character = b""  # of a text, at the end of its fragments
        self._tail = bytearray()  # the received part of an incomplete frame
        self._needed = 0  # bytes of it before it is worth a look
        self._began_ms = 0  # when the incomplete frame or message began
        self._timer: asyncio.TimerHandle | None = None  # of the closing handshake
        self._corked: list[bytes] | None = None  # frames to be written together with the welcome
        self._progress: Progress | None = None  # while bytes are unsent
        self._written = 0

    def begin(self, transport: asyncio.Transport, connections: MutableSet[Any]) -> None:
        """Take the transport of an accepted WebSocket and attach.

        Args:
            connections: the server's live protocols; it waits for their end when it shuts down.
        """
        self._transport = transport
        self._connections = connections
        connections.add(self)
        transport.set_protocol(self)  # first: it is to be told what the limit below makes of unsent bytes
        transport.set_write_buffer_limits(high=0)
        if transport.get_write_buffer_size():  # of a response before the upgrade, of which another protocol was told
            self.pause_writing()
        self.gateway.attach(self)

    # -- Reading. ----------------------------------------------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        if self._tail:
            self._tail += data
            if len(self._tail) < self._needed:
                self.heard = True
                return
            data = bytes(self._tail)
            self._tail = bytearray()
        elif not self._fragments:
            self._began_ms = 0
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
        """Handle the frame at `position`. Returns where the next one begins, or `end` when this one is incomplete."""
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
            if (position and not self._fragments) or not self._began_ms:
                self._began_ms = self.gateway.clock()  # else it had begun before this read
            self._tail += data[position:]
            self._needed = stop - position if size != _INCOMPLETE else 0
            return end
        if data[position] == _FINAL_TEXT and library is None:
            self.text(apply_mask(data[start:stop], data[start - 4 : start]))
        elif not self.spend(1):
            return end
        elif data[position] == _FINAL_PONG and size < 126:
            self.heartbeat.pong(apply_mask(data[start:stop], data[start - 4 : start]), self.gateway.clock())
        else:
            self._feed(library, data[position:stop])
        return stop

    def _feed(self, library: ServerProtocol | None, data: bytes) -> None:
        """Pass the library whole frames, or bytes that violate the protocol, and act on its events."""
        if library is None:
            library = self._open_library()
        library.receive_data(data)
        for event in library.events_received():
            frame = cast("Frame", event)
            if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT) and not self.ended:
                self._fragments.append(frame)
                if len(self._fragments) == 1:
                    self._began_ms = self.gateway.clock()
                if frame.fin:
                    self._message()
                elif not self._is_utf8(frame.data):
                    self.fail(INVALID_DATA, NOT_UTF8)
                elif len(self._fragments) >= self.gateway.config.fragments_max:
                    self.fail(POLICY_VIOLATION, TOO_MANY_FRAGMENTS)
        self._write_all(library.data_to_send())
        if library.parser_exc is not None:
            # Half-close and read on: closing a socket with unread bytes sends a reset, which would overtake the close frame.
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

    def _is_utf8(self, data: bytes | bytearray | memoryview) -> bool:
        """Is the text in fragments well-formed so far (RFC 6455, section 8.1)? The last fragment is checked with the whole."""
        if self._fragments[0].opcode is not Opcode.TEXT:
            return True
        text = self._half_character + bytes(data)
        try:
            self._half_character = text[utf_8_decode(text, "strict", False)[1] :]
        except UnicodeDecodeError:
            return False
        return True

    def _message(self) -> None:
        fragments, self._fragments = self._fragments, []
        self._half_character = b""
        if fragments[0].opcode is Opcode.TEXT:
            self.text(b"".join(fragment.data for fragment in fragments))
        else:
            self.binary()

    def _open_library(self) -> ServerProtocol:
        library = self._library
        if library is None:
            library = self._library = _FrameProtocol(state=OPEN, max_size=self.gateway.config.frame_bytes_max, logger=quiet)
        return library

    def eof_received(self) -> bool:
        """The client has left, with or without a closing handshake. When thousands have, the transport stays open until its turn."""
        return not self.gateway.closings.enter(self._transport.close)

    # -- Writing. ----------------------------------------------------------------------------------------------------------
    def on_welcome(self, record: Welcome) -> None:
        # Pending messages follow at once: one write for both saves 5 % of the cost of a reconnect storm.
        self._corked = []
        super().on_welcome(record)

    def flush(self) -> None:
        corked, self._corked = self._corked, None
        if corked and not self._transport.is_closing():
            self._put(b"".join(corked))

    def write(self, text: bytes) -> None:
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
        self._put(b"\x89%c%b" % (len(payload), payload))

    def _put(self, data: bytes) -> None:
        if self._corked is not None:
            self._corked.append(data)
            return
        self._written += len(data)
        self._transport.write(data)
        if self.unsent and self._transport.get_write_buffer_size() > self.gateway.config.send_buffer_bytes_max:
            self.too_slow()

    def _write_all(self, chunks: list[bytes]) -> None:
        self.flush()
        data = b"".join(chunks)
        if data and not self._transport.is_closing():
            self._put(data)

    def pause_writing(self) -> None:
        """The kernel took less than everything: watch the progress."""
        self.unsent = True
        if not self.ended:
            self._progress = Progress(0, self.gateway.clock())
            self.gateway.backlog.add(self)

    def resume_writing(self) -> None:
        self.unsent = False
        self._progress = None
        self.gateway.backlog.discard(self)

    def check_backlog(self, now_ms: int) -> int:
        """End the connection when none of the unsent bytes has left for `send_stall_ms`."""
        progress, unsent = self._progress, self._transport.get_write_buffer_size()
        if progress is not None and progress.stalled_ms(self._written - unsent, now_ms) > self.gateway.config.send_stall_ms:
            self.too_slow()
        return 0 if self.ended else unsent

    def too_slow(self) -> None:
        self.close(TOO_SLOW, TOO_SLOW_HINT)

    # -- The end. ----------------------------------------------------------------------------------------------------------
    def check(self, now_ms: int, wall_ms: int) -> int:
        """Heartbeat, token expiry, and a frame or message that is not complete after `request_timeout_s`."""
        due_ms = super().check(now_ms, wall_ms)
        if self.ended or not (self._tail or self._fragments):
            return due_ms
        end_ms = self._began_ms + self.gateway.config.request_timeout_s * 1000
        if now_ms >= end_ms:
            self.fail(POLICY_VIOLATION, UNFINISHED)
            return now_ms
        return min(due_ms, end_ms)

    def close(self, code: int, reason: str) -> None:
        """Send a close frame and wait up to `close_timeout_ms` for the client's; then abort the transport.

        For a client that does not read, the close frame stays in the buffer behind the other bytes, and the wait ends with the abort.
        """
        if self.ended:
            return
        self.gateway.detach(self, code)
        library = self._open_library()
        library.send_close(code, reason)
        self._write_all(library.data_to_send())
        self._await_close()

    def fail(self, code: int, reason: str) -> None:
        """Send a close frame, half-close, and discard what the client still sends: it must cost nothing any more.

        Closing a socket with unread bytes would send a reset, which would overtake the close frame.
        """
        if self.ended:
            return
        self.gateway.detach(self, code)
        self._fragments.clear()
        library = self._open_library()
        library.fail(code, reason)
        self._write_all(library.data_to_send())
        if not self._transport.is_closing():
            self._transport.write_eof()
        self._await_close()

    def _await_close(self) -> None:
        if self._timer is None:
            timeout_s = self.gateway.config.close_timeout_ms / 1000
            self._timer = asyncio.get_running_loop().call_later(timeout_s, self._transport.abort)

    def shutdown(self) -> None:
        """Close; for uvicorn, when the server stops."""
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
    """Where the payload of the frame at `position` begins, and its size, or `_INCOMPLETE`, or `_BROKEN` when it is not masked."""
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
    """Free a library object at once: its parser is a generator that refers to it, a cycle that only a full collection would free."""
    library.parser.close()
