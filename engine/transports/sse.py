"""SSE and long polling: the same gateway, two more encodings, for clients whose way to us carries no WebSocket.

SSE (WHATWG HTML, section 9.2). One response without end. A message is an event with `id:` (the cursor), `event: message`
and `data:`; `welcome`, `revoke`, `gap`, `drain` and `close` are events without id, so the browser's cursor stays that of the last
message. Comments keep intermediaries awake. Two tasks per stream: one writes, one awaits the client's leaving.

Long polling. One request is one short connection: attach, wait for the first messages or a gap, answer, detach. What was
answered is pending again until the next request presents it as its cursor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.types import Message, Receive, Scope, Send

from engine.auth.tokens import Principal
from engine.core.model.message import object_bytes
from engine.core.wire import client_frames
from engine.core.wire import records as wire
from engine.gateway.connection import Connection, Cursor, Outbox, Progress
from engine.gateway.gateway import GOING_AWAY, Gateway
from engine.http.problems import too_many_requests, unavailable
from engine.transports.http_server import TRANSPORT
from engine.transports.websocket_protocol import TOKEN_EXPIRED, TOO_SLOW

SSE_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-store"),
    (b"x-accel-buffering", b"no"),  # nginx buffers responses unless told otherwise
)
_CLIENT_LEFT: Final = 1001
_TOO_MANY_CONNECTIONS: Final = 4409
_LINE_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")


def event(name: str, data: bytes, event_id: str = "") -> bytes:
    """One server-sent event. A line break in JSON can only stand between tokens, so a space does as well there."""
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
        """Answer the request with the stream; returns when it has ended."""
        self._transport = scope.get("extensions", {}).get(TRANSPORT, {}).get("transport")
        await send({"type": "http.response.start", "status": 200, "headers": [*SSE_HEADERS, *headers]})
        self._push(b"retry: %d\n\n" % self.gateway.config.reconnect_delays_ms[0])
        self.gateway.attach(self)
        leaving = asyncio.ensure_future(_client_left(receive))
        self._writer = asyncio.ensure_future(self._write_all(send))
        try:
            await asyncio.wait((self._writer, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.gateway.detach(self, _CLIENT_LEFT)
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
            if self._writer.cancelled() and self._transport is not None:
                self._transport.abort()
                await leaving  # the server notices the end of its transport in the next turn of the loop
            leaving.cancel()

    async def _write_all(self, send: Send) -> None:
        async def body(chunks: list[bytes]) -> None:
            seq = self.sent
            await send({"type": "http.response.body", "body": b"".join(chunks), "more_body": True})
            # A server takes an event whole and waits before it takes the next one: an empty one waits for the client.
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
            self._too_slow()
        elif self._progress is None:
            self._progress = Progress(self._outbox.passes, self.gateway.clock())
            self.gateway.backlog.add(self)

    def on_announced(self) -> None:
        """Plain SSE has no ACKs on the stream: what was written makes room in the shard's window."""
        if self.kind == wire.SSE and not self.ended:
            self.gateway.written(self, self._written)

    def on_welcome(self, record: wire.Welcome) -> None:
        """The first event."""
        self._push(event("welcome", client_frames.welcome(self.welcome_frame(record))))

    def on_messages(self, messages: Sequence[tuple[int, int, bytes]]) -> None:
        """One event each, one write for all."""
        epoch = self.epoch
        fresh = self.sent if self._outbox.size else -1  # what still waits in the buffer is not repeated
        self._push(
            b"".join(
                event("message", object_bytes(epoch, seq, attempt, body), f"{epoch}-{seq}")
                for seq, attempt, body in messages
                if seq > fresh or attempt == 1
            )
        )

    def on_revoke(self, ids: Sequence[str]) -> None:
        """Handled elsewhere."""
        self._push(event("revoke", client_frames.revoke(ids)))

    def on_gap(self, first: int, last: int) -> None:
        """Gone."""
        self._push(event("gap", client_frames.gap(first, last)))

    def drain(self, after_ms: int) -> None:
        """Tell when to reconnect, in the browser's own way too."""
        self._push(b"retry: %d\n" % max(after_ms, 1) + event("drain", client_frames.drain(after_ms)))
        self.close(GOING_AWAY, "going away")

    def close(self, code: int, reason: str) -> None:
        """Say why, and end the response."""
        if self.ended:
            return
        self._push(event("close", msgspec.json.encode({"type": "close", "code": code, "reason": reason})))
        if not self.ended:  # the push may have found it too slow
            self.gateway.detach(self, code)
            self._outbox.finish()

    def _too_slow(self) -> None:
        self.gateway.detach(self, TOO_SLOW)
        if self._writer is not None:
            self._writer.cancel()

    def check(self, now_ms: int, wall_ms: int) -> int:
        """Comment heartbeats, token expiry."""
        if wall_ms >= self.expires_ms:
            self.close(TOKEN_EXPIRED, "the token has expired")
        elif now_ms >= self._beat_ms:
            self._beat_ms = now_ms + self.gateway.config.heartbeat_ms
            self._push(b":\n\n")
        return min(self._beat_ms, now_ms + max(self.expires_ms - wall_ms, 0))

    def check_backlog(self, now_ms: int) -> None:
        """Bytes wait: does the client take any?"""
        if not self._outbox.size:
            self._progress = None
            self.gateway.backlog.discard(self)
        elif self._progress is not None and self._progress.stalled_ms(self._outbox.passes, now_ms) > self.gateway.config.send_stall_ms:
            self._too_slow()


class Poll(Connection):
    """One long-polling request."""

    __slots__ = ("_expecting", "_gaps", "_hangup", "_messages", "_ready", "_resumed", "_seq", "_waited")

    def __init__(self, gateway: Gateway, owner: Principal, cursor: Cursor, device: str) -> None:
        super().__init__(gateway, owner, wire.POLL, cursor, device)
        self._messages: list[bytes] = []
        self._gaps: list[dict[str, int]] = []
        self._expecting = True
        self._waited = False  # as long as it was asked to
        self._resumed = ""
        self._seq = 0
        self._hangup: tuple[int, str] | None = None
        self._ready = asyncio.Event()

    async def run(self, receive: Receive, wait_s: float) -> bytes:
        """Wait for something to answer, `wait_s` at most, or for the client to leave. Returns the body of the answer.

        Raises:
            Problem: the shard hung up, or has not even welcomed the connection in time.
        """
        self.gateway.attach(self)
        leaving = asyncio.ensure_future(_client_left(receive))
        ready = asyncio.ensure_future(self._ready.wait())
        try:
            await asyncio.wait((ready, leaving), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if self._expecting and not self._ready.is_set() and not leaving.done():
                # A short wait must not make a mailbox look empty: the shard has not spoken yet, or promised more.
                self._waited = True
                grace_s = self.gateway.config.poll_grace_ms / 1000
                await asyncio.wait((ready, leaving), timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            leaving.cancel()
            self.gateway.detach(self, 0)
        return self._answer()

    def _answer(self) -> bytes:
        if self._hangup is not None:
            code, reason = self._hangup
            raise too_many_requests(reason, 1) if code == _TOO_MANY_CONNECTIONS else unavailable(reason, 1)
        if not self.welcomed:
            raise unavailable("no answer in time", 1)
        gaps = b"" if not self._gaps else b',"gaps":%b' % msgspec.json.encode(self._gaps)
        return b'{"messages":[%b],"last_event_id":"%b-%d","resumed":"%b"%b}' % (
            b",".join(self._messages),
            self.epoch.encode(),
            self._seq,
            self._resumed.encode(),
            gaps,
        )

    def on_welcome(self, record: wire.Welcome) -> None:
        """Everything before `from_seq` needs no delivery: the cursor to come back with, if nothing comes."""
        self._resumed = record.resumed
        self._seq = max(record.from_seq - 1, 0)
        self._expecting = record.head >= record.from_seq
        if self._waited and not self._expecting:
            self._ready.set()

    def on_messages(self, messages: Sequence[tuple[int, int, bytes]]) -> None:
        """The answer."""
        for seq, attempt, body in messages:
            self._messages.append(object_bytes(self.epoch, seq, attempt, body))
            self._seq = max(self._seq, seq)
        self._ready.set()

    def on_gap(self, first: int, last: int) -> None:
        """The answer too; messages behind it in the same batch still come along, the waiting task runs after them."""
        self._gaps.append({"from": first, "to": last})
        self._seq = max(self._seq, last)
        self._ready.set()

    def on_revoke(self, ids: Sequence[str]) -> None:
        """Says nothing to a client that has no message yet."""

    def drain(self, after_ms: int) -> None:
        """Answer with what there is."""
        self.close(GOING_AWAY, "going away")

    def close(self, code: int, reason: str) -> None:
        """Answer at once."""
        if not self.ended:
            if not (self._messages or self._gaps):
                self._hangup = (code, reason)
            self.gateway.detach(self, code)
            self._ready.set()

    def check(self, now_ms: int, wall_ms: int) -> int:
        """The request has its own end."""
        return now_ms + self.gateway.config.heartbeat_max_ms


async def _client_left(receive: Receive) -> None:
    while True:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            return
