"""Mosquitto, driven by the load generator: MQTT 3.1.1 over WebSockets to the clients and over TCP from publishers, QoS 1 both ways.

Sessions are persistent, so a client that returns gets what it missed. What the broker does not do: it writes sessions to its file now and
then, not before it acknowledges, so a crash loses what it had accepted; it checks no token.
"""

from __future__ import annotations

import asyncio
import getpass
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from picows import WSFrame, WSMsgType, WSTransport, ws_connect

from bench.books import Books, Data, Ledger, Listener
from bench.load import CONNECT_TIMEOUT_S
from bench.peers.peer import Peer
from bench.system import Publisher
from tests.support.free_port import free_port

CONNECT: Final = 0x10
CONNACK: Final = 0x20
PUBLISH: Final = 0x30
PUBACK: Final = 0x40
SUBSCRIBE: Final = 0x82
SUBACK: Final = 0x90

_QOS_1: Final = 0x02
_EVERYBODY: Final = "all"
_PACKET_IDS: Final = 65_535
_PUBACK_BYTES: Final = 4
_CONNACK_BYTES: Final = 4

_settings = """listener {tcp} 127.0.0.1
listener {websockets} 127.0.0.1
protocol websockets
allow_anonymous true
user {user}
persistence true
persistence_location {folder}/
set_tcp_nodelay true
log_type error
""".format


def packet(kind: int, body: bytes) -> bytes:
    """A control packet: its first byte, the length of what follows in groups of seven bits, and that."""
    length, size = bytearray(), len(body)
    while True:
        size, group = size >> 7, size & 0x7F
        length.append(group | (0x80 if size else 0))
        if not size:
            return bytes((kind, *length)) + body


def packets(buffer: bytearray) -> Iterator[tuple[int, bytes]]:
    """The whole packets at the beginning of `buffer`, first byte and body; takes them out of it."""
    while True:
        size, shift, at = 0, 0, 1
        while True:
            if at >= len(buffer):
                return
            size |= (buffer[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if buffer[at - 1] < 0x80:
                break
        if len(buffer) < at + size:
            return
        kind, body = buffer[0], bytes(buffer[at : at + size])
        del buffer[: at + size]
        yield kind, body


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _connect(client: str) -> bytes:
    """Without a clean session and without a keep-alive."""
    return packet(CONNECT, _text("MQTT") + b"\x04\x00\x00\x00" + _text(client))


def _publish(topic: str, number: int, payload: bytes) -> bytes:
    return packet(PUBLISH | _QOS_1, _text(topic) + struct.pack(">H", number) + payload)


class _Client(Listener):
    def __init__(self, books: Books, ledger: Ledger) -> None:
        super().__init__(books, ledger)
        self._buffer = bytearray()
        self._decode = msgspec.json.Decoder(Data).decode

    def on_ws_connected(self, transport: WSTransport) -> None:
        super().on_ws_connected(transport)
        transport.send(WSMsgType.BINARY, _connect(f"c{self.ledger.user}"))

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type not in (WSMsgType.BINARY, WSMsgType.CONTINUATION):
            return
        self._buffer += frame.get_payload_as_memoryview()
        for kind, body in packets(self._buffer):
            if kind & 0xF0 == PUBLISH:
                after_topic = 2 + int.from_bytes(body[:2], "big")
                transport.send(WSMsgType.BINARY, packet(PUBACK, body[after_topic : after_topic + 2]))
                self.books.bytes_delivered += len(body)
                self.books.take(self.ledger, self._decode(body[after_topic + 2 :]), self.books.clock())
            elif kind == CONNACK and not self.ledger.position:
                topics = b"".join(_text(topic) + b"\x01" for topic in (f"u/{self.ledger.user}", _EVERYBODY))
                transport.send(WSMsgType.BINARY, packet(SUBSCRIBE, b"\x00\x01" + topics))
            elif kind in (CONNACK, SUBACK) and not self.ready.done():
                self.ledger.position = "subscribed"  # which the session remembers
                self.ready.set_result(None)


class _Topics(Publisher):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0
        self._encode = msgspec.json.Encoder().encode

    async def publish(self, messages: Sequence[Data]) -> int:
        return await self._send([(f"u/{data.to}", data) for data in messages])

    async def broadcast(self, data: Data) -> int:
        return await self._send([(_EVERYBODY, data)])

    async def _send(self, items: Sequence[tuple[str, Data]]) -> int:
        """All at once; the broker acknowledges each."""
        written = b"".join(_publish(topic, self._next(), self._encode(data)) for topic, data in items)
        self._writer.write(written)
        await self._reader.readexactly(_PUBACK_BYTES * len(items))
        return len(written)

    def _next(self) -> int:
        self._number = self._number % _PACKET_IDS + 1
        return self._number

    def close(self) -> None:
        self._writer.close()


class Mosquitto(Peer):
    """The broker that is on PATH, or where Debian puts it."""

    name = "mosquitto"
    acknowledges = "MQTT PUBACK (QoS 1)"
    recovers = "queue of the persistent session"
    needs_redis = False

    @staticmethod
    def program() -> str | None:
        """The broker's path; None where there is none."""
        return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")

    @classmethod
    def absence(cls) -> str:
        return "" if cls.program() is not None else "there is no Mosquitto; on Debian and Ubuntu: apt install mosquitto"

    @classmethod
    def version(cls) -> str:
        program = cls.program()
        told = subprocess.run([program, "-h"], capture_output=True, text=True, check=False).stdout if program else ""
        return told.partition("version ")[2].partition("\n")[0]

    async def start(self) -> None:
        program = self.program()
        if program is None:
            raise RuntimeError(self.absence())
        self._tcp, self._websockets, self._publishers = free_port(), free_port(), 0
        file = self.programs.folder / "mosquitto.conf"
        user = getpass.getuser()  # root's, else, goes on as a user of its own, who could not write here
        file.write_text(_settings(tcp=self._tcp, websockets=self._websockets, folder=self.programs.folder, user=user))
        self.programs.start("broker", program, "-c", str(file))
        await self.programs.listening(self._websockets)

    async def connect(self, books: Books, ledger: Ledger) -> Listener:
        client = _Client(books, ledger)
        url, headers = f"ws://127.0.0.1:{self._websockets}/mqtt", {"Sec-WebSocket-Protocol": "mqtt"}
        await ws_connect(lambda: client, url, websocket_handshake_timeout=CONNECT_TIMEOUT_S, extra_headers=headers)
        await client.ready
        return client

    async def publisher(self, users: int) -> Publisher:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._tcp)
        self._publishers += 1
        writer.write(_connect(f"publisher-{self._publishers}"))
        await reader.readexactly(_CONNACK_BYTES)
        return _Topics(reader, writer)
