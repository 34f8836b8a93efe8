"""Servers that do what networks and restarts do: drop, repeat, fall silent, refuse. Scripted by the tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import Request, Response, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed

DEADLINE_S = 60.0
Handler = Callable[["Peer"], Awaitable[None]]


class Peer:
    """The server's side of one connection."""

    def __init__(self, socket: ServerConnection, number: int) -> None:
        self.socket = socket
        self.number = number
        assert socket.request is not None
        self.query = {name: values[0] for name, values in parse_qs(urlsplit(socket.request.path).query).items()}
        self.token = socket.request.headers["Authorization"].removeprefix("Bearer ")
        self.frames: list[dict[str, Any]] = []

    async def say(self, type_: str, **members: Any) -> None:
        await self.socket.send(json.dumps({"type": type_, **members}))

    async def welcome(self, **members: Any) -> None:
        fast = {"delays_ms": [5], "jitter": 0}
        defaults = {"connection": f"c{self.number}", "user": "u1", "epoch": "7", "seq": 0, "resumed": "new", "from": 1, "reconnect": fast}
        await self.say("welcome", **{**defaults, **members})

    async def send(self, *seqs: int, attempt: int = 1) -> None:
        common = {"type": "t", "priority": "normal", "ts": 1, "attempt": attempt}
        await self.say(
            "messages", messages=[{"seq": seq, "id": f"m{seq}", "event_id": f"7-{seq}", "data": {"n": seq}, **common} for seq in seqs]
        )

    async def hear(self) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE_S):
            frame = json.loads(await self.socket.recv())
        if frame["type"] == "ack" and "seq" in frame:
            frame.pop("ts")  # of every ACK, and never the same
        self.frames.append(frame)
        return frame

    async def hear_ack(self, seq: int) -> None:
        while True:
            frame = await self.hear()
            if frame.get("seq", 0) >= seq:
                return

    def drop(self) -> None:
        """End the connection without a closing handshake."""
        self.socket.transport.abort()


class Server:
    """Runs one handler per connection, in order; the last one serves all further connections."""

    def __init__(self, handlers: list[Handler | tuple[int, dict[str, str], str]]) -> None:
        self.handlers = handlers
        self.peers: list[Peer] = []
        self.attempts = 0
        self.errors: list[BaseException] = []
        self.url = ""

    def _next(self) -> Handler | tuple[int, dict[str, str], str]:
        return self.handlers[min(self.attempts, len(self.handlers)) - 1]

    def answer_handshake(self, socket: ServerConnection, request: Request) -> Response | None:
        self.attempts += 1
        handler = self._next()
        if isinstance(handler, tuple):
            status, headers, body = handler
            return Response(status, "Refused", Headers({**headers, "Content-Length": str(len(body))}), body.encode())
        return None

    async def serve(self, socket: ServerConnection) -> None:
        handler = self._next()
        assert not isinstance(handler, tuple)
        peer = Peer(socket, self.attempts)
        self.peers.append(peer)
        try:
            await handler(peer)
        except ConnectionClosed:
            pass  # the client left, which some scripts expect
        except Exception as error:
            self.errors.append(error)
            raise


@asynccontextmanager
async def misbehaving(*handlers: Handler | tuple[int, dict[str, str], str]) -> AsyncIterator[Server]:
    server = Server(list(handlers))
    options: dict[str, Any] = {"subprotocols": ["notify.v1.json"], "ping_interval": None, "close_timeout": 0.2}
    async with serve(server.serve, "127.0.0.1", 0, process_request=server.answer_handshake, **options) as listening:
        server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        yield server
    assert not server.errors


def sending(*seqs: int) -> Handler:
    """A script: welcome the client, send these messages, and stay."""

    async def script(peer: Peer) -> None:
        await peer.welcome()
        if seqs:
            await peer.send(*seqs)
        await stay(peer)

    return script


async def stay(peer: Peer) -> None:
    """Keep listening until the client leaves."""
    while True:
        await peer.hear()
