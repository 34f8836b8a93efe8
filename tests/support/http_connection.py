"""One HTTP connection of an edge without a socket: the real protocol on a transport that records, in front of any ASGI application."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import httptools
import uvicorn
from uvicorn.server import ServerState

from engine.config import Config
from engine.gateway.paced_turns import PacedTurns
from engine.transports.http_protocol import FastPaths, HttpProtocol
from engine.transports.open_sockets import OpenSockets
from tests.support.edge_world import SECRET
from tests.support.waiting import until

FILES_MAX = 1 << 20


async def whole_body(receive: Any) -> bytes | None:
    """The body of a request, as an application reads it; None when the client left before its end."""
    body = b""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message["body"]
        more = message["more_body"]
    return body


async def respond(send: Any, body: bytes, status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


class RecordingTransport(asyncio.Transport):
    """Keeps what is written; a test plays the client by calling the protocol."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.writes = 0
        self.closed = False
        self.aborted = False
        self.reading = True
        self.half_closed = False
        self.unsent = 0
        self.peer: tuple[str, int] | None = None
        self.resumed: Callable[[], None] = lambda: None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.peer if name == "peername" else default

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write_eof(self) -> None:
        self.half_closed = True

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        assert not self.closed, "written after the end"
        assert not self.half_closed, "written after the end"
        self.written += data
        self.writes += 1

    def close(self) -> None:
        self.closed = True

    @property
    def ended(self) -> bool:
        """Has the client been told that nothing more comes?"""
        return self.closed or self.half_closed

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True
        asyncio.get_running_loop().call_soon(self.resumed)


class Responses:
    """What an HTTP client reads in the bytes of one connection."""

    def __init__(self, data: bytes) -> None:
        self.statuses: list[int] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.complete = 0
        self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.bodies.append(b"")
        self.headers.append({})

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[-1][name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        self.statuses.append(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        self.bodies[-1] += body

    def on_message_complete(self) -> None:
        self.complete += 1


class HttpClient:
    """A connection to `application`, and the client's end of it."""

    def __init__(self, application: Any, fast_paths: FastPaths | None = None, **settings: Any) -> None:
        config = uvicorn.Config(application, ws="none", lifespan="off", log_config=None, interface="asgi3")
        config.load()
        self.transport = RecordingTransport()
        self.server_state = ServerState()
        engine = Config(jwt_secret=SECRET, **settings)
        self.protocol = HttpProtocol(
            config,
            self.server_state,
            {},
            settings=engine,
            open_sockets=OpenSockets(engine, FILES_MAX),
            openings=PacedTurns(engine.openings_per_s),
            fast_paths=fast_paths,
        )
        self._sent: deque[bytes] = deque()  # and not read yet
        self.transport.resumed = self._deliver
        self.protocol.connection_made(self.transport)

    def send(self, *parts: bytes) -> None:
        """Send bytes, each part in a read of its own."""
        self._sent += parts
        self._deliver()

    def sending(self, *parts: bytes) -> HttpClient:
        """As `send`; returns itself."""
        self.send(*parts)
        return self

    def _deliver(self) -> None:
        while self._sent and self.transport.reading and not self.transport.closed:
            self.protocol.data_received(self._sent.popleft())

    def leave(self) -> None:
        """The client closes its end."""
        self.transport.closed = True
        self.protocol.connection_lost(None)

    def responses(self) -> Responses:
        return Responses(self.transport.written)

    async def answered(self, count: int) -> Responses:
        """What has arrived, once so many responses are complete."""
        await until(lambda: self.transport.written and self.responses().complete >= count)
        return self.responses()
