"""Centrifugo with Redis, driven by the load generator: its JSON protocol over WebSockets to the clients, its HTTP API from publishers.

Each user has a channel, and all users share one for broadcasts. Redis keeps the last messages of a channel (history). A returning client
names its offset and epoch in each channel, and the server sends what followed (recovery). Positioning lets the server notice a message
that Redis PUB/SUB lost.

What Centrifugo does not do here: its protocol has no acknowledgement of a message, so it repeats none and does not know whether one
arrived. Its Redis writes nothing to disk. Both interfaces run in insecure mode: neither clients nor publishers present a token.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from picows import WSFrame, WSMsgType, WSTransport, ws_connect

from bench.books import Books, Data, Ledger, Listener
from bench.load import CONNECT_TIMEOUT_S
from bench.peers.peer import Peer
from bench.system import Publisher, Refused
from tests.support.free_port import free_port
from tests.support.load.poster import Poster

_EVERYBODY: Final = "all"
_HISTORY_SIZE: Final = 100  # messages of a channel; a storm misses 20
_HISTORY_TTL: Final = "72h"  # as long as the engine keeps a message by default
_CONNECT_ID: Final = 1
_SUBSCRIBE_IDS: Final = (2, 3)  # to the user's channel, and to everybody's
_PING: Final = b"{}"  # either way

_encode = msgspec.json.Encoder().encode


class _Publication(msgspec.Struct):
    data: Data
    offset: int = 0


class _Push(msgspec.Struct):
    channel: str
    pub: _Publication | None = None
    unsubscribe: dict[str, Any] | None = None


class _Subscription(msgspec.Struct):
    epoch: str = ""
    offset: int = 0
    publications: list[_Publication] = []


class Reply(msgspec.Struct):
    """A line of a frame: the answer to the command of this `id`, or a push; an empty one is a ping."""

    id: int = 0
    push: _Push | None = None
    subscribe: _Subscription | None = None
    error: dict[str, Any] | None = None


class Position(msgspec.Struct):
    """How far a client has read a channel; without an epoch it has not subscribed yet."""

    offset: int = 0
    epoch: str = ""


replies = msgspec.json.Decoder(Reply).decode_lines
_positions = msgspec.json.Decoder(dict[str, Position]).decode


def subscribe(number: int, channel: str, position: Position) -> bytes:
    """The command of this id; it asks for recovery from the position, where there is one."""
    recovery = {"recover": True, "offset": position.offset, "epoch": position.epoch} if position.epoch else {}
    return _encode({"id": number, "subscribe": {"channel": channel, **recovery}})


def published(messages: Sequence[tuple[str, Data]]) -> tuple[str, bytes]:
    """Path and body of the request that publishes these to their channels.

    A batch runs in parallel, at half the cost, unless it has two messages of a channel: these must keep their order.
    """
    publications = [{"channel": channel, "data": data} for channel, data in messages]
    if len(publications) == 1:
        return "/api/publish", _encode(publications[0])
    parallel = len({channel for channel, _ in messages}) == len(messages)
    return "/api/batch", _encode({"commands": [{"publish": publication} for publication in publications], "parallel": parallel})


def _channel(user: int) -> str:
    return f"user:{user}"


class _Client(Listener):
    def __init__(self, books: Books, ledger: Ledger) -> None:
        super().__init__(books, ledger)
        self._channels = dict(zip(_SUBSCRIBE_IDS, (_channel(ledger.user), _EVERYBODY), strict=True))
        self._read = _positions(ledger.position) if ledger.position else {channel: Position() for channel in self._channels.values()}
        self._awaited = set(self._channels.values())

    def on_ws_connected(self, transport: WSTransport) -> None:
        super().on_ws_connected(transport)
        commands = [subscribe(number, channel, self._read[channel]) for number, channel in self._channels.items()]
        transport.send(WSMsgType.TEXT, b"\n".join((_encode({"id": _CONNECT_ID, "connect": {}}), *commands)))

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.TEXT:
            return
        payload, now = frame.get_payload_as_memoryview(), self.books.clock()
        for reply in replies(payload):
            if reply.error is not None:
                self._refused(reply.error)
            elif reply.push is not None:
                self._pushed(transport, reply.push, now)
            elif reply.subscribe is not None:
                self._subscribed(self._channels[reply.id], reply.subscribe, now)
            elif not reply.id:
                transport.send(WSMsgType.TEXT, _PING)
                return
        self.books.bytes_delivered += len(payload)
        self.ledger.position = _encode(self._read).decode()

    def _pushed(self, transport: WSTransport, push: _Push, now: float) -> None:
        if push.pub is not None:
            self._take(self._read[push.channel], push.pub, now)
        elif push.unsubscribe is not None:  # the server doubts the position: clients subscribe again, and recover
            number = next(number for number, channel in self._channels.items() if channel == push.channel)
            transport.send(WSMsgType.TEXT, subscribe(number, push.channel, self._read[push.channel]))

    def _subscribed(self, channel: str, subscription: _Subscription, now: float) -> None:
        read = self._read[channel]
        for publication in subscription.publications:
            self._take(read, publication, now)
        read.offset, read.epoch = subscription.offset, subscription.epoch
        self._awaited.discard(channel)
        if not self._awaited and not self.ready.done():
            self.ready.set_result(None)

    def _take(self, read: Position, publication: _Publication, now: float) -> None:
        read.offset = publication.offset
        self.books.take(self.ledger, publication.data, now)

    def _refused(self, error: dict[str, Any]) -> None:
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(f"refused: {error}"))


class _Api(Publisher):
    def __init__(self, poster: Poster) -> None:
        self._poster = poster

    async def publish(self, messages: Sequence[Data]) -> int:
        return await self._post([(_channel(data.to), data) for data in messages])

    async def broadcast(self, data: Data) -> int:
        return await self._post([(_EVERYBODY, data)])

    async def _post(self, messages: Sequence[tuple[str, Data]]) -> int:
        path, body = published(messages)
        status, _, answer = await self._poster.request("POST", path, body)
        if status != 200 or b'"error"' in answer:  # of a command, in an answer that is 200
            raise Refused(f"{status}: {answer[:300]!r}", None)
        return len(body)

    def close(self) -> None:
        self._poster.close()


class Centrifugo(Peer):
    """The server that is on PATH."""

    name = "centrifugo"
    acknowledges = "nothing: the protocol has no acknowledgement"
    recovers = "history of the channel in Redis, by offset and epoch"

    @staticmethod
    def program() -> str | None:
        """The server's path; None where there is none."""
        return shutil.which("centrifugo")

    @classmethod
    def absence(cls) -> str:
        if cls.program() is not None:
            return ""
        return "there is no Centrifugo on PATH; https://centrifugal.dev/docs/getting-started/installation has its releases"

    @classmethod
    def version(cls) -> str:
        program = cls.program()
        told = subprocess.run([program, "version"], capture_output=True, text=True, check=False).stdout if program else ""
        return told.removeprefix("Centrifugo v").partition(" ")[0]

    async def start(self) -> None:
        program = self.program()
        if program is None:
            raise RuntimeError(self.absence())
        self._port = free_port()
        options = {"history_size": _HISTORY_SIZE, "history_ttl": _HISTORY_TTL, "force_positioning": True, "force_recovery": True}
        settings = {
            "http_server": {"address": "127.0.0.1", "port": self._port},
            "http_api": {"insecure": True},
            "client": {"insecure": True},
            "engine": {"type": "redis", "redis": {"address": self.programs.redis_url}},
            "channel": {"without_namespace": options, "namespaces": [{"name": "user", **options}]},
            "usage_stats": {"disabled": True},
            "log": {"level": "error"},
        }
        file = self.programs.folder / "centrifugo.json"
        file.write_bytes(_encode(settings))
        self.programs.start("broker", program, "--config", str(file))
        await self.programs.listening(self._port)

    async def connect(self, books: Books, ledger: Ledger) -> Listener:
        client = _Client(books, ledger)
        url = f"ws://127.0.0.1:{self._port}/connection/websocket"
        await ws_connect(lambda: client, url, websocket_handshake_timeout=CONNECT_TIMEOUT_S)
        await client.ready
        return client

    async def publisher(self, users: int) -> Publisher:
        return _Api(await Poster.open(self._port, "Content-Type: application/json\r\n"))
