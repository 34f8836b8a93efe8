"""The load generator: many WebSocket clients (picows, a protocol in C) and a publisher, in one process and one event loop.

Every client keeps books: what arrived, in which order, twice or never. Latency counts from the moment a message was meant
to be sent, not from when the generator got round to it, so a stalled server cannot hide behind a stalled generator.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

now_s = time.monotonic


class Data(msgspec.Struct):
    """The payload: who it is for, its number among that user's messages, when it was meant to be sent."""

    n: int
    due: float
    note: str = "paid by card, thank you for your order"


class Message(msgspec.Struct):
    seq: int
    event_id: str
    data: Data


class Frame(msgspec.Struct):
    type: str
    messages: list[Message] = []


_frames = msgspec.json.Decoder(Frame)
_encoder = msgspec.json.Encoder()


class Books:
    """What all clients together have received."""

    def __init__(self) -> None:
        self.received = self.repeated = self.out_of_order = self.disconnects = 0
        self.latencies_s: list[float] = []
        self.last_s = 0.0
        self._target = 0
        self._reached: asyncio.Future[None] | None = None

    def count(self, messages: int) -> None:
        self.received += messages
        if self._reached is not None and self.received >= self._target and not self._reached.done():
            self._reached.set_result(None)

    async def reach(self, target: int, patience_s: float = 10.0) -> bool:
        """Wait until `target` messages have arrived; False when nothing has for `patience_s`."""
        while self.received < target:
            before = self.received
            self._target, self._reached = target, asyncio.get_running_loop().create_future()
            done, _ = await asyncio.wait({self._reached}, timeout=patience_s)
            if not done and self.received == before:
                return False
        return True


class Client(WSListener):
    """One user's connection; acknowledges every frame with one cumulative ACK."""

    def __init__(self, books: Books, user: str) -> None:
        self.books = books
        self.user = user
        self.cursor = ""
        self.newest = 0
        self.transport: WSTransport | None = None
        self.welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.leaving = False

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if not self.leaving:
            self.books.disconnects += 1
        if not self.welcomed.done():
            self.welcomed.set_exception(ConnectionError("closed before the welcome"))

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.TEXT:
            return
        text = _frames.decode(frame.get_payload_as_memoryview())
        if text.type == "messages":
            self.on_messages(transport, text.messages)
        elif text.type == "welcome" and not self.welcomed.done():
            self.welcomed.set_result(None)

    def on_messages(self, transport: WSTransport, messages: list[Message]) -> None:
        books, now, fresh = self.books, now_s(), 0
        last = messages[-1]
        transport.send(WSMsgType.TEXT, b'{"type":"ack","seq":%d}' % last.seq)
        self.cursor = last.event_id
        for message in messages:
            if message.seq <= self.newest:
                books.repeated += 1
                continue
            if message.seq != self.newest + 1 and self.newest:
                books.out_of_order += 1
            self.newest = message.seq
            fresh += 1
            books.latencies_s.append(now - message.data.due)
        books.last_s = now
        books.count(fresh)

    def drop(self) -> None:
        """Cut the connection without a closing handshake."""
        self.leaving = True
        assert self.transport is not None
        self.transport.underlying_transport.abort()


async def connect(books: Books, port: int, user: str, token: str, cursor: str = "") -> Client:
    client = Client(books, user)
    query = f"?last_event_id={cursor}" if cursor else ""
    headers = {"Authorization": f"Bearer {token}", "Sec-WebSocket-Protocol": "notify.v1.json"}
    await ws_connect(lambda: client, f"ws://127.0.0.1:{port}/v1/ws{query}", extra_headers=headers, websocket_handshake_timeout=60)
    await asyncio.wait_for(client.welcomed, 60)
    return client


async def connect_all(books: Books, port: int, users: list[str], token: Callable[[str], str], at_once: int = 50) -> list[Client]:
    gate = asyncio.Semaphore(at_once)

    async def one(user: str) -> Client:
        async with gate:
            return await connect(books, port, user, token(user))

    return await asyncio.gather(*map(one, users))


class Publisher:
    """A keep-alive HTTP connection that publishes JSON arrays, round robin over the users."""

    def __init__(self, users: list[str], token: str) -> None:
        self._users = users
        self._head = (
            f"POST /v1/notifications HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        )
        self.sent = 0

    async def open(self, port: int) -> Publisher:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        return self

    def close(self) -> None:
        self._writer.close()

    async def publish(self, dues_s: list[float]) -> None:
        """One request with a message per due time; returns when it was answered 202."""
        items = []
        for due in dues_s:
            user = self._users[self.sent % len(self._users)]
            items.append({"user": user, "type": "order.paid", "data": Data(self.sent, due)})
            self.sent += 1
        body = _encoder.encode(items)
        self._writer.write(f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        answer = await self._reader.readexactly(length)
        if b" 202 " not in head[:20]:
            raise RuntimeError(f"{head[:60]!r} {answer[:300]!r}")
