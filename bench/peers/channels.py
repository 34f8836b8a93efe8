"""Django Channels with Celery, driven by the load generator."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import msgspec
from picows import WSFrame, WSMsgType, WSTransport, ws_connect
from redis.asyncio import Redis

from bench.books import Books, Data, Ledger, Listener
from bench.load import CONNECT_TIMEOUT_S
from bench.peers.peer import PROGRAMS, Peer
from bench.system import Publisher

WORKERS: Final = 2
_QUEUE_S: Final = 0.2  # between two looks at Celery's queue
_encode = msgspec.json.Encoder().encode


class _Frame(msgspec.Struct):
    """A payload, or the greeting."""

    hello: str = ""
    to: int = 0
    n: int = 0
    due: float = 0.0


_frames = msgspec.json.Decoder(_Frame)


class _Client(Listener):
    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.TEXT:
            return
        payload = frame.get_payload_as_memoryview()
        text = _frames.decode(payload)
        if text.hello:
            self.ready.set_result(None)
            return
        transport.send(WSMsgType.TEXT, b'{"ack":%d}' % text.n)
        self.books.bytes_delivered += len(payload)
        self.books.take(self.ledger, Data(text.to, text.n, text.due), self.books.clock())


class _Tasks(Publisher):
    """Publishing is `apply_async` in a process of the publisher's own; it is answered when the tasks are in the queue."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    async def publish(self, messages: Sequence[Data]) -> int:
        return await asyncio.to_thread(self._say, _encode([(f"user-u{data.to}", data) for data in messages]))

    async def broadcast(self, data: Data) -> int:
        return await asyncio.to_thread(self._say, _encode([("all", data)]))

    def _say(self, line: bytes) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()
        if not self._process.stdout.readline():
            raise RuntimeError("the publisher's process ended")
        return len(line)

    def close(self) -> None:
        """The process ends with the peer."""


class ChannelsCelery(Peer):
    """`bench/peers/programs/channels_site.py`: uvicorn with one worker, Celery with two."""

    name = "channels-celery"
    acknowledges = "a JSON frame; the server forgets it"

    async def start(self) -> None:
        programs = self.programs
        self._port = await programs.start_site("channels_site:application")
        quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
        celery = (sys.executable, "-m", "celery", "-A", "channels_site:celery_app")
        programs.start("worker", *celery, "worker", "-c", str(WORKERS), "-l", "WARNING", *quiet)
        async with asyncio.timeout(60):
            while not await self._consumers():
                await asyncio.sleep(_QUEUE_S)

    async def _consumers(self) -> int:
        """How many clients wait for Celery's queue."""
        async with Redis.from_url(self.programs.redis_url) as redis:
            return sum(client["cmd"] == "brpop" for client in await redis.client_list())

    async def connect(self, books: Books, ledger: Ledger) -> Listener:
        client = _Client(books, ledger)
        url = f"ws://127.0.0.1:{self._port}/ws/u{ledger.user}"
        await ws_connect(lambda: client, url, websocket_handshake_timeout=CONNECT_TIMEOUT_S)
        await client.ready
        return client

    async def publisher(self, users: int) -> Publisher:
        process = self.programs.start("", sys.executable, str(PROGRAMS / "channels_site.py"), pipes=True)
        assert process.stdout is not None
        await asyncio.to_thread(process.stdout.readline)  # its start must not fall into what is measured
        return _Tasks(process)

    async def digested(self) -> None:
        async with Redis.from_url(self.programs.redis_url) as redis:
            while await redis.llen("celery") or await redis.hlen("unacked"):
                await asyncio.sleep(_QUEUE_S)
