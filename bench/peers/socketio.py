"""python-socketio with acknowledgement callbacks, driven by the load generator: Engine.IO 4 and Socket.IO 5 packets over one WebSocket."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from picows import WSFrame, WSMsgType, WSTransport, ws_connect

from bench.books import Books, Data, Ledger, Listener
from bench.load import CONNECT_TIMEOUT_S
from bench.peers.peer import Peer
from bench.system import Publisher, Refused
from tests.support.load.poster import Poster

_events = msgspec.json.Decoder(tuple[str, Data])
_encode = msgspec.json.Encoder().encode


class _Client(Listener):
    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.TEXT:
            return
        packet = frame.get_payload_as_bytes()
        if packet.startswith(b"42"):  # an event, with the number of its callback
            start = packet.index(b"[")
            transport.send(WSMsgType.TEXT, b"43%b[]" % packet[2:start])
            self.books.bytes_delivered += len(packet)
            self.books.take(self.ledger, _events.decode(packet[start:])[1], self.books.clock())
        elif packet.startswith(b"2"):  # ping
            transport.send(WSMsgType.TEXT, b"3")
        elif packet.startswith(b"0"):  # open
            transport.send(WSMsgType.TEXT, b"40" + _encode({"user": f"u{self.ledger.user}"}))
        elif packet.startswith(b"40") and not self.ready.done():  # connected to the namespace
            self.ready.set_result(None)


class _Posts(Publisher):
    def __init__(self, poster: Poster) -> None:
        self._poster = poster

    async def publish(self, messages: Sequence[Data]) -> int:
        return await self._post([(f"u{data.to}", data) for data in messages])

    async def broadcast(self, data: Data) -> int:
        return await self._post([("all", data)])

    async def _post(self, items: Sequence[tuple[str, Data]]) -> int:
        body = _encode(items)
        status, _, answer = await self._poster.request("POST", "/publish", body)
        if status != 200:
            raise Refused(f"{status}: {answer[:300]!r}", None)
        return len(body)

    def close(self) -> None:
        self._poster.close()


class SocketIo(Peer):
    """`bench/peers/programs/socketio_site.py`: uvicorn with one worker, which also takes what is published."""

    name = "python-socketio"
    acknowledges = "Socket.IO acknowledgement callbacks"

    async def start(self) -> None:
        self._port = await self.programs.start_site("socketio_site:app")

    async def connect(self, books: Books, ledger: Ledger) -> Listener:
        client = _Client(books, ledger)
        url = f"ws://127.0.0.1:{self._port}/socket.io/?EIO=4&transport=websocket"
        await ws_connect(lambda: client, url, websocket_handshake_timeout=CONNECT_TIMEOUT_S)
        await client.ready
        return client

    async def publisher(self, users: int) -> Publisher:
        return _Posts(await Poster.open(self._port, "Content-Type: application/json\r\n"))
