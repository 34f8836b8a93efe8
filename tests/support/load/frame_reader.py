"""A client for many messages a second (picows, a protocol in C) that keeps account of their numbers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import msgspec
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from tests.support.load.flood import Data


class Message(msgspec.Struct):
    seq: int
    priority: str
    attempt: int
    data: Data


class Frame(msgspec.Struct):
    type: str
    messages: list[Message] = []
    from_: int = msgspec.field(default=0, name="from")
    to: int = 0
    seq: int = 0
    resumed: str = ""


_frames: Final = msgspec.json.Decoder(Frame)


class Reader(WSListener):
    """One user's client: acknowledges every frame, and knows every number it was told of."""

    def __init__(self, user: str, *, acknowledges: bool = True) -> None:
        self.user = user
        self.seen: set[int] = set()  # delivered, or announced as gone
        self.newest = 0
        self.out_of_order = self.repeated = self.gaps = 0
        self.high_s: list[tuple[float, float]] = []  # (when a message was due, how long it took)
        self.closed: tuple[int, str] | None = None
        self.welcomed = asyncio.get_running_loop().create_future()
        self._acknowledges = acknowledges
        self.transport: WSTransport | None = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            reason = frame.get_close_message() or b""
            self.closed = int(frame.get_close_code()), bytes(reason).decode() if isinstance(reason, bytes | bytearray) else str(reason)
        if frame.msg_type != WSMsgType.TEXT:
            return
        told = _frames.decode(frame.get_payload_as_memoryview())
        if told.type == "messages":
            self._take(told.messages)
            if self._acknowledges:
                transport.send(WSMsgType.TEXT, b'{"type":"ack","seq":%d}' % self.newest)
        elif told.type == "gap":
            self.gaps += told.to - told.from_ + 1
            self._pass(told.from_)
            self.seen.update(range(told.from_, told.to + 1))
            self.newest = max(self.newest, told.to)
        elif told.type == "welcome":
            self.newest = max(self.newest, told.from_ - 1)
            if not self.welcomed.done():
                self.welcomed.set_result(None)

    def _pass(self, seq: int) -> None:
        """The next new number is this one: everything between must have been told."""
        self.out_of_order += seq <= self.newest or seq > self.newest + 1

    def _take(self, messages: Sequence[Message]) -> None:
        now = time.monotonic()
        for message in messages:
            if message.seq in self.seen:
                self.repeated += 1
                continue
            self._pass(message.seq)
            self.newest = max(self.newest, message.seq)
            self.seen.add(message.seq)
            if message.priority == "high":
                self.high_s.append((message.data.due, now - message.data.due))

    async def connect(self, port: int, token: str) -> Reader:
        """Returns when it is welcomed."""
        headers = {"Authorization": f"Bearer {token}", "Sec-WebSocket-Protocol": "notify.v1.json"}
        await ws_connect(lambda: self, f"ws://127.0.0.1:{port}/v1/ws", extra_headers=headers, websocket_handshake_timeout=60)
        await self.welcomed
        return self

    def drop(self) -> None:
        """Cut the connection."""
        if self.transport is not None:
            self.transport.underlying_transport.abort()
