"""One user's connections to the server under test, over each transport, as the frames of PROTOCOL.md."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

import httpx
import jwt
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

SUBPROTOCOL = "notify.v1.json"
DEADLINE_S = 30.0  # for whatever the server is to send; it says that it is broken, not that it is slow
TOKEN_TTL_S = 3600

Transport = Literal["websocket", "sse", "poll"]
TRANSPORTS: tuple[Transport, ...] = ("websocket", "sse", "poll")
Frame = dict[str, Any]


class Unavailable(AssertionError):
    """The server says that a part of it is away (503): this tells nothing about what it promises while it serves."""


class Server:
    """The server under test: where it is, and the secret that its HS256 tokens are signed with."""

    def __init__(self, url: str, secret: str, tenant: str = "default") -> None:
        self.url = url.rstrip("/")
        self.secret = secret
        self.tenant = tenant
        # verify=False: nothing here is secret, and reading the certificates would cost 20 ms of each client.
        self.http = httpx.AsyncClient(base_url=self.url, timeout=DEADLINE_S + 30, trust_env=False, verify=False)

    def token(self, user: str, scope: str = "connect", ttl_s: float = TOKEN_TTL_S) -> str:
        claims = {"sub": user, "tenant": self.tenant, "scope": scope, "exp": int(time.time() + ttl_s)}
        return jwt.encode(claims, self.secret, "HS256")

    def user(self) -> User:
        """A user whom the server has never seen."""
        return User(self, f"conformance-{uuid.uuid4().hex[:12]}")

    async def ask(self, method: str, path: str, *, as_user: str = "publisher", scope: str = "publish", **request: Any) -> httpx.Response:
        """Ask, again while the server is too busy: with 429 it has accepted nothing, and says when to come back. Raises Unavailable."""
        headers = {"Authorization": f"Bearer {self.token(as_user, scope)}"}
        async with asyncio.timeout(DEADLINE_S):
            while (answer := await self.http.request(method, path, headers=headers, **request)).status_code == 429:
                await asyncio.sleep(int(answer.headers["Retry-After"]))
        if answer.status_code == 503:
            raise Unavailable(f"{method} {path} was answered 503: {answer.text}")
        return answer


class User:
    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name

    async def publish(self, *items: Frame | str) -> list[Frame]:
        """Publish to the user; a string is the `data`. Returns the results. Fails unless all were accepted."""
        complete = [
            {"user": self.name, "type": "conformance", **(item if isinstance(item, dict) else {"data": {"text": item}})} for item in items
        ]
        answer = await self.server.ask("POST", "/v1/notifications", json=complete)
        assert answer.status_code == 202, f"a publish was answered {answer.status_code}: {answer.text}"
        results: list[Frame] = answer.json()["results"]
        return results

    @asynccontextmanager
    async def connection(self, transport: Transport = "websocket", cursor: str | None = None) -> AsyncIterator[Connection]:
        """An open connection, welcomed. Leaving the context cuts it, without a closing handshake."""
        opened = {"websocket": WebSocketConnection, "sse": SseConnection, "poll": PollConnection}[transport](self, cursor)
        try:
            await opened.open()
            yield opened
        finally:
            await opened.cut()


class Connection:
    """What a connection has received and may send. Messages are remembered in the order of their arrival."""

    def __init__(self, user: User, cursor: str | None) -> None:
        self.user = user
        self.server = user.server
        self.cursor = cursor
        self.frames: list[Frame] = []
        self.welcome: Frame = {}
        self.close_code: int | None = None
        self._arrived = asyncio.Condition()
        self._reading: asyncio.Task[None] | None = None

    # -- what has arrived --
    @property
    def messages(self) -> list[Frame]:
        return [message for frame in self.frames if frame["type"] == "messages" for message in frame["messages"]]

    def of_type(self, kind: str) -> list[Frame]:
        return [frame for frame in self.frames if frame["type"] == kind]

    async def until(self, holds: Callable[[], Any], what: str, within_s: float = DEADLINE_S) -> None:
        """Wait until something holds of what has arrived."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s), self._arrived:
                await self._arrived.wait_for(holds)
        assert holds(), f"{what}: not within {within_s} s; arrived: {json.dumps(self.frames)[:2000]}"

    async def take(self, count: int) -> list[Frame]:
        """The first so many messages, in the order of their first arrival; each counts once."""
        await self.until(lambda: len({one["id"] for one in self.messages}) >= count, f"{count} messages")
        first: dict[str, Frame] = {}
        for one in self.messages:
            first.setdefault(one["id"], one)  # repeats may come between, when the server waited long for an ACK
        return list(first.values())[:count]

    async def _take_in(self, frame: Frame) -> None:
        async with self._arrived:
            self.frames.append(frame)
            if frame["type"] == "welcome":
                self.welcome = frame
            self._arrived.notify_all()

    # -- each transport --
    async def open(self) -> None:
        raise NotImplementedError

    async def ack(self, *ids: str, seq: int | None = None) -> None:
        """Acknowledge by ids, or everything up to a number."""
        answer = await self.server.ask(
            "POST", "/v1/ack", as_user=self.user.name, scope="connect", json={"seq": seq} if seq is not None else {"ids": list(ids)}
        )
        assert answer.is_success, f"an acknowledgement was answered {answer.status_code}: {answer.text}"

    async def cut(self) -> None:
        if self._reading:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading

    def _params(self) -> dict[str, str]:
        return {"last_event_id": self.cursor} if self.cursor else {}

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.server.token(self.user.name)}"}


class WebSocketConnection(Connection):
    socket: ClientConnection

    async def open(self) -> None:
        url = httpx.URL(self.server.url.replace("http", "ws", 1) + "/v1/ws", params=self._params())
        self.socket = await connect(
            str(url), subprotocols=[Subprotocol(SUBPROTOCOL)], additional_headers=self._headers(), proxy=None, max_size=None
        )
        self._reading = asyncio.create_task(self._read())
        await self.until(lambda: self.welcome, "the welcome")

    async def _read(self) -> None:
        try:
            async for text in self.socket:
                await self._take_in(json.loads(text))
        except ConnectionClosed:
            pass  # the code says how
        self.close_code = self.socket.close_code
        await self._take_in({"type": "closed"})

    async def send(self, **frame: Any) -> None:
        await self.socket.send(json.dumps(frame))

    async def ack(self, *ids: str, seq: int | None = None) -> None:
        await self.send(type="ack", **({"seq": seq} if seq is not None else {"ids": list(ids)}))

    async def cut(self) -> None:
        if hasattr(self, "socket"):
            self.socket.transport.abort()
        await super().cut()


class SseConnection(Connection):
    """`text/event-stream`, WHATWG HTML, section 9.2.6."""

    async def open(self) -> None:
        self._reading = asyncio.create_task(self._read())
        await self.until(lambda: self.welcome, "the welcome")

    async def _read(self) -> None:
        async with self.server.http.stream("GET", "/v1/sse", params=self._params(), headers=self._headers()) as stream:
            assert stream.status_code == 200, f"a stream was answered {stream.status_code}"
            fields: dict[str, str] = {}
            async for line in stream.aiter_lines():
                name, _, value = line.partition(":")
                if name:
                    fields[name] = value.removeprefix(" ")
                if line:
                    continue
                if "data" in fields:
                    await self._take_in(self._frame(fields))
                fields = {}

    @staticmethod
    def _frame(fields: dict[str, str]) -> Frame:
        kind = fields.get("event", "message")
        if kind != "message":
            assert "id" not in fields, f"an event {kind} has an id: it would move the cursor of an EventSource"
            return {**json.loads(fields["data"]), "type": kind}
        message = json.loads(fields["data"])
        assert fields.get("id") == message["event_id"], f"a message has the id {fields.get('id')}, not {message['event_id']}"
        return {"type": "messages", "messages": [message]}


class PollConnection(Connection):
    """Polls until it has been answered with a message, and again from the cursor that acknowledgements move."""

    async def open(self) -> None:
        await self._poll(0)
        self._reading = asyncio.create_task(self._read())

    async def _poll(self, wait_s: int) -> bool:
        params = self._params() | {"wait": str(wait_s)}
        answer = await self.server.http.get("/v1/poll", params=params, headers=self._headers())
        assert answer.status_code == 200, f"a poll was answered {answer.status_code}: {answer.text}"
        body = answer.json()
        if not self.welcome:
            epoch = body["last_event_id"].rpartition("-")[0]
            await self._take_in({"type": "welcome", "epoch": epoch, "resumed": body["resumed"]})
        for gap in body.get("gaps", ()):
            await self._take_in({"type": "gap", **gap})
        if "early" in body:
            await self._take_in({"type": "early", "messages": body["early"]})
        known = {one["id"] for one in self.messages}
        fresh = [one for one in body["messages"] if one["id"] not in known]
        if fresh:
            await self._take_in({"type": "messages", "messages": fresh})
        return bool(fresh)

    async def _read(self) -> None:
        while True:
            if not await self._poll(5):
                await asyncio.sleep(0.05)  # what is not acknowledged comes right back
