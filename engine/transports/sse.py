"""Server-sent events (WHATWG HTML, section 9.2), for clients whose network path carries no WebSocket.

One response without end. The first event is `welcome`, with the reconnection time (`retry:`). A message is an event with `id:` (the
cursor), `event: message` and `data:`. `welcome`, `early`, `revoke`, `gap`, `drain` and `close` are events without `id`, so the
browser's cursor stays that of the last message. A comment per heartbeat interval keeps intermediaries from closing an idle stream. A
stream has two tasks: one writes, one waits for the client to disconnect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from engine.auth.tokens import Principal
from engine.core.model.message import object_bytes
from engine.core.wire import client_frames
from engine.core.wire import records as wire
from engine.gateway.connection import Connection, Cursor, Outbox, Progress
from engine.gateway.gateway import GOING_AWAY, TOKEN_REFUSED, Gateway
from engine.transports.asgi import TRANSPORT, until_disconnected
from engine.transports.websocket_protocol import TOO_SLOW

SSE_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-store"),
    (b"x-accel-buffering", b"no"),  # nginx buffers responses otherwise
)
_CLIENT_LEFT: Final = 1006  # a stream has no closing handshake: whether the client or the network ended it is unknown
_COMMENT: Final = b":\n"
"""Without an empty line behind it, which some clients take for the end of an event without data (httpx-sse does, so does the block of a
lone `retry:`)."""
_BEHIND_BYTES: Final = 64 << 10
"""Unsent bytes from which a client is behind: some frames of what arrives while one is written."""

_LINE_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")


def event(name: str, data: bytes, event_id: str = "") -> bytes:
    """One server-sent event.

    Args:
        data: JSON. A line break in it can only stand between tokens, where a space means the same; in an event it would end the line.
    """
    head = f"id: {event_id}\nevent: {name}\ndata: " if event_id else f"event: {name}\ndata: "
    return b"%b%b\n\n" % (head.encode(), data.translate(_LINE_BREAKS))


class EventStream(Connection):
    """One SSE response.

    Args:
        explicit: `?ack=explicit`: unacknowledged messages are repeated on this stream, as on a WebSocket.
    """

    __slots__ = ("_beat_ms", "_outbox", "_progress", "_transport", "_writer", "_written")

    def __init__(self, gateway: Gateway, owner: Principal, cursor: Cursor, device: str, *, explicit: bool) -> None:
        super().__init__(gateway, owner, wire.SSE_EXPLICIT if explicit else wire.SSE, cursor, device)
        self._outbox = Outbox(gateway.config.send_buffer_bytes_max)
        self._progress: Progress | None = None  # while bytes are unsent
        self._writer: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._written = 0  # highest sequence number the server has taken from us
        self._beat_ms = gateway.clock() + gateway.config.heartbeat_ms

    async def run(self, scope: Scope, receive: Receive, send: Send, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Answer the request with the stream; return when it has ended.

        Args:
            headers: of the response, beside `SSE_HEADERS`.
        """
        self._transport = scope.get("extensions", {}).get(TRANSPORT, {}).get("transport")
        await send({"type": "http.response.start", "status": 200, "headers": [*SSE_HEADERS, *headers]})
        self._push(_COMMENT)  # the response's head leaves with it, before the shard has answered
        self.gateway.attach(self)
        leaving = asyncio.ensure_future(until_disconnected(receive))
        self._writer = asyncio.ensure_future(self._write_all(send))
        try:
            await asyncio.wait((self._writer, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.gateway.detach(self, _CLIENT_LEFT)
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
            if self._writer.cancelled() and self._transport is not None:
                self._transport.abort()
                await leaving  # the server learns of the abort in the next iteration of the event loop
            leaving.cancel()

    async def _write_all(self, send: Send) -> None:
        async def body(chunks: list[bytes]) -> None:
            seq = self.sent
            await send({"type": "http.response.body", "body": b"".join(chunks), "more_body": True})
            # `send` waits for the client before it writes, not after: an empty event returns once the first one has left.
            await send({"type": "http.response.body", "body": b"", "more_body": True})
            if seq > self._written:
                self._written = seq
                self.on_announced()

        await self._outbox.pump(body)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _push(self, chunk: bytes) -> None:
        if self.ended:
            return
        if not self._outbox.push(chunk):
            self.too_slow()
        elif self._progress is None:
            self._progress = Progress(self._taken, self.gateway.clock())
            self.gateway.backlog.add(self)

    @property
    def _taken(self) -> tuple[int, int]:
        """Changes when the client takes something: sends completed, and what the present one has left in the transport."""
        return self._outbox.passes, 0 if self._transport is None else self._transport.get_write_buffer_size()

    def on_announced(self) -> None:
        """Report what was written: plain SSE has no ACKs, so this is what opens the shard's in-flight window again."""
        if self.kind == wire.SSE and not self.ended:
            self.gateway.written(self, self._written)

    def on_welcome(self, record: wire.Welcome) -> None:
        retry = b"retry: %d\n" % self.gateway.config.reconnect_delays_ms[0]
        self._push(retry + event("welcome", client_frames.welcome(self.welcome_frame(record))))

    def on_messages(self, messages: Sequence[tuple[int, int, bytes]]) -> None:
        """Send one event per message, all in one write. A retry of what is still in the buffer is left out."""
        epoch = self.epoch
        fresh = self.sent if self._outbox.size else -1
        self._push(
            b"".join(
                event("message", object_bytes(epoch, seq, attempt, body), f"{epoch}-{seq}")
                for seq, attempt, body in messages
                if seq > fresh or attempt == 1
            )
        )

    def write_frame(self, kind: str, frame: bytes) -> None:
        self._push(event(kind, frame))

    def on_transient(self, kind: str, frame: bytes) -> None:
        """Send an event of this kind, unless the client is behind."""
        if self._outbox.size < _BEHIND_BYTES:
            self.write_frame(kind, frame)

    def drain(self, after_ms: int) -> None:
        """Send when to reconnect, as `retry:` for browsers and as a `drain` event, and end the response."""
        self._push(b"retry: %d\n" % max(after_ms, 1) + event("drain", client_frames.drain(after_ms)))
        self.close(GOING_AWAY, "going away")

    def close(self, code: int, reason: str) -> None:
        if self.ended:
            return
        self._push(event("close", msgspec.json.encode({"type": "close", "code": code, "reason": reason})))
        if not self.ended:  # the push may have found it too slow
            self.gateway.detach(self, code)
            self._outbox.finish()

    def too_slow(self) -> None:
        self.gateway.detach(self, TOO_SLOW)
        if self._writer is not None:
            self._writer.cancel()

    def check(self, now_ms: int, wall_ms: int) -> int:
        """Send a comment when a heartbeat is due; end the response when the token has expired. Returns when to check again, in ms."""
        if wall_ms >= self.expires_ms:
            self.close(TOKEN_REFUSED, "the token has expired")
        elif now_ms >= self._beat_ms:
            self._beat_ms = now_ms + self.gateway.config.heartbeat_ms
            self._push(_COMMENT)
        return min(self._beat_ms, now_ms + max(self.expires_ms - wall_ms, 0))

    def check_backlog(self, now_ms: int) -> int:
        """End the stream when the client has taken none of the unsent bytes for `send_stall_ms`."""
        if not self._outbox.size:
            self._progress = None
            self.gateway.backlog.discard(self)
        elif self._progress is not None and self._progress.stalled_ms(self._taken, now_ms) > self.gateway.config.send_stall_ms:
            self.too_slow()
        return 0 if self.ended else self._outbox.size
