"""One edge without a socket: the real Starlette application and gateway, called as a server would, and fakes behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import uvloop

from engine.config import Config
from engine.routes import app
from tests.support.edge_world import SECRET, EdgeWorld
from tests.support.hostile_input import strict_json

ANSWER_TIMEOUT_S = 60.0
"""A hundred times what the slowest request here takes: it ends what would never end."""

NO_FAULT = frozenset({400, 401, 403, 404, 405, 409, 413, 415, 422, 426, 429, 503})
"""Statuses that tell a client of its own mistake or of a passing shortage."""


class Answer(NamedTuple):
    status: int
    headers: Mapping[bytes, bytes]
    body: bytes

    def told(self) -> Any:
        """The JSON value of the body."""
        return strict_json(self.body)

    def check(self, *good: int) -> None:
        """It is one of the good statuses, or a problem that explains itself (RFC 9457)."""
        if self.status in good:
            return
        assert self.status in NO_FAULT, (self.status, self.body)
        assert self.headers[b"content-type"] == b"application/problem+json", self
        problem = self.told()
        assert problem["status"] == self.status
        assert problem["title"]
        assert problem["detail"]


class EdgeInProcess:
    """An edge with an event loop of its own, so that plain hypothesis tests can ask it one thing after another."""

    def __init__(self, **settings: Any) -> None:
        self.config = Config(jwt_secret=SECRET, **settings)
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.world: EdgeWorld
        self._runner.run(self._start())

    async def _start(self) -> None:
        world = self.world = EdgeWorld(self.config, 1)

        async def status() -> dict[str, Any]:
            return world.status

        async def ready() -> dict[str, bool]:
            return world.ready

        self._app = app(world.services(status, ready))
        self.open_socket = self._app.state.fast_paths.open_socket

    def close(self) -> None:
        self._runner.close()

    def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do something inside the edge's loop."""

        async def bounded() -> Any:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await work()

        return self._runner.run(bounded())

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        content_type: str | None = "application/json",
        query: bytes = b"",
        headers: list[tuple[bytes, bytes]] | None = None,
        token: str | None = None,
        pieces: int = 1,
    ) -> Answer:
        """One HTTP request; an exception that the application lets through comes through here too."""
        if headers is None:
            headers = [(b"authorization", f"Bearer {token or self.world.token()}".encode())]
        if content_type is not None:
            headers = [*headers, (b"content-type", content_type.encode("latin-1", "replace"))]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode("utf-8", "replace"),
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "extensions": {},
        }
        step = max(1, -(-len(body) // pieces))
        chunks = [body[at : at + step] for at in range(0, len(body), step)] or [b""]
        sent: list[Any] = []

        async def receive() -> Any:
            if chunks:
                return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}
            await asyncio.Event().wait()  # the client stays and says nothing more
            raise AssertionError

        async def send(message: Any) -> None:
            sent.append(message)

        self.run(lambda: self._app(scope, receive, send))
        starts = [message for message in sent if message["type"] == "http.response.start"]
        assert len(starts) == 1, sent
        whole = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
        return Answer(starts[0]["status"], dict(starts[0]["headers"]), whole)
