"""The engine's protocol as the load generator speaks it: listeners (picows, a protocol in C) and publishers.

One process and one event loop hold them all. A listener decodes every message and acknowledges every frame with one cumulative
ACK, as the clients of the engine do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from picows import WSFrame, WSMsgType, WSTransport, ws_connect

from bench.books import Books, Data, Ledger, Listener
from bench.system import Publisher, Refused
from tests.support.load.poster import Poster

CONNECT_TIMEOUT_S: Final = 60
SERVER_ITEMS_MAX: Final = 1000  # `items_max`: of one request, `users` expanded


class Message(msgspec.Struct):
    seq: int
    event_id: str
    data: Data


class Frame(msgspec.Struct):
    type: str
    messages: list[Message] = []


decode_frame = msgspec.json.Decoder(Frame).decode
_encode = msgspec.json.Encoder().encode


class Client(Listener):
    """One user's connection; acknowledges every frame of messages with one cumulative ACK."""

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.TEXT:
            return
        payload = frame.get_payload_as_memoryview()
        self.books.bytes_delivered += len(payload)
        text = decode_frame(payload)
        if text.type == "messages":
            self.on_messages(transport, text.messages)
        elif text.type == "welcome" and not self.ready.done():
            self.ready.set_result(None)

    def on_messages(self, transport: WSTransport, messages: list[Message]) -> None:
        transport.send(WSMsgType.TEXT, take(self.books, self.ledger, messages))


def take(books: Books, ledger: Ledger, messages: Sequence[Message]) -> bytes:
    """Enter the messages of a frame in the books; returns the ACK."""
    last, now = messages[-1], books.clock()
    ledger.position = last.event_id
    for message in messages:
        books.take(ledger, message.data, now)
    return b'{"type":"ack","seq":%d}' % last.seq


async def connect(books: Books, ledger: Ledger, port: int, token: str, host: str = "127.0.0.1") -> Client:
    """A welcomed connection. Raises what picows raises when it is refused, and ConnectionError when it is closed at once."""
    client = Client(books, ledger)
    query = f"?last_event_id={ledger.position}" if ledger.position else ""
    headers = {"Authorization": f"Bearer {token}", "Sec-WebSocket-Protocol": "notify.v1.json"}
    await ws_connect(
        lambda: client,
        f"ws://{host}:{port}/v1/ws{query}",
        extra_headers=headers,
        websocket_handshake_timeout=CONNECT_TIMEOUT_S,
    )
    await client.ready
    return client


class HttpPublisher(Publisher):
    """Publishes JSON arrays to the engine.

    Args:
        name: of a user, by its number.
        users: how many a broadcast is for; used where the engine knows no broadcast.
    """

    def __init__(self, poster: Poster, name: Callable[[int], str], users: int) -> None:
        self._poster = poster
        self._name = name
        self._users = users
        self.broadcasts_as = "broadcast"

    @classmethod
    async def open(cls, port: int, token: str, name: Callable[[int], str], users: int, host: str = "127.0.0.1") -> HttpPublisher:
        """Connect to an edge."""
        head = f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        return cls(await Poster.open(port, head, host), name, users)

    async def publish(self, messages: Sequence[Data]) -> int:
        return await self.publish_items([{"user": self._name(data.to), "type": "order.paid", "data": data} for data in messages])

    async def publish_items(self, items: Sequence[dict[str, object]]) -> int:
        """Items as PROTOCOL.md has them."""
        body = _encode(items)
        status, retry, answer = await self._post(body)
        if status != 202:
            raise Refused(f"{status}: {answer[:300]!r}", float(retry) if retry is not None and status in (429, 503) else None)
        return len(body)

    async def _post(self, body: bytes) -> tuple[int, str | None, bytes]:
        """Status, `Retry-After` and body of the answer."""
        status, headers, answer = await self._poster.request("POST", "/v1/notifications", body)
        return status, headers.get("retry-after"), answer

    async def broadcast(self, data: Data) -> int:
        """As `broadcast`, or as lists of users where the engine answers that it cannot: `broadcasts_as` says which."""
        if self.broadcasts_as == "broadcast":
            try:
                return await self.publish_items([{"broadcast": True, "type": "order.paid", "data": data}])
            except Refused as refused:
                if refused.retry_after_s is not None:
                    raise
                self.broadcasts_as = "users"
        sent = 0
        for first in range(0, self._users, SERVER_ITEMS_MAX):
            names = [self._name(user) for user in range(first, min(first + SERVER_ITEMS_MAX, self._users))]
            sent += await self.publish_items([{"users": names, "type": "order.paid", "data": data}])
        return sent

    def close(self) -> None:
        self._poster.close()
