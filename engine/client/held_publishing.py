"""Publishes over one held connection (PROTOCOL.md, Publishing), and everything else by requests.

    RetriedRequests --POST /v1/notifications--> HeldPublishing --publish frame, on one WebSocket--> engine
                    --any other---------------------> HttpConnection, a request

Each publish of an application is then a frame, not a request: hundreds may be under way, and their results come as each is durable. Who
calls cannot tell the difference: the answer to a frame is the `Response` of the request that it stands for, and what has no answer when the
connection ends raises `ConnectionError`, so that `RetriedRequests` sends it again under the same ids, with its backoff.

States of the connection:

    none     -> opening   at the second publish: one alone is a request, which costs less than a connection and a frame
    opening  -> open      the handshake is granted; those that came meanwhile wait for it
             -> none      401, 403, 429, 503: the answer of the engine to the publish that opened it
             -> refused   any other answer, or none in time: a proxy, or an older engine, that knows no WebSocket here
    open     -> none      `drain`: no more is sent on it, and it is read until the engine closes it
             -> none      its end
             -> refused   its end, before it has brought a result
    refused  -> none      after `AGAIN_S`; until then all is sent by requests

A fresh token is sent as `auth` before the publish that carries it. A publish that is not answered in time ends the connection, with all
that is unanswered: an engine answers within 8 s, so nobody is there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from ssl import SSLContext
from typing import Final

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from engine.client.credentials import EngineUrl
from engine.client.http_connection import HttpConnection, Response
from engine.client.links.transport_link import CLOSE_TIMEOUT_S
from engine.client.links.websocket_link import SUBPROTOCOL

PATH: Final = "/v1/notifications"
AGAIN_S: Final = 60.0
"""After a WebSocket was not to be had, before it is tried again: proxies are mended, and engines upgraded, by hand."""

ITEMS_BYTES_MAX: Final = 1 << 20
"""Of a frame; more is left to a request, which the engine answers 413, while a frame would end the connection."""

UNDER_WAY_MAX: Final = 500
"""Frames without a result; more wait for their turn, on no clock. Half of what an engine reads, so that sending one does not wait."""

_TOKEN_REFUSED: Final = 4401
_FORBIDDEN: Final = 4403
_AUTHORIZATION: Final = "Authorization"
_ENGINES: Final = frozenset({401, 403, 429, 503})
"""Statuses of a handshake that answer the publish: a request would be refused by the same."""

_encode: Final = msgspec.json.Encoder().encode


class _Result(msgspec.Struct, gc=False):
    """A frame of the engine. Of an accepted publish, the frame itself has the members of the 202."""

    type: str
    ref: str = ""
    status: int = 0
    problem: msgspec.Raw = msgspec.Raw(b"")
    retry_after: int | None = None


_decode: Final = msgspec.json.Decoder(_Result).decode


class _Held:
    """One open connection."""

    def __init__(self, socket: ClientConnection, authorization: str) -> None:
        self._socket = socket
        self._authorization = authorization
        self._waiting: dict[str, asyncio.Future[Response]] = {}
        self._count = 0
        self.answered = False  # it has brought a result
        self.open = True  # it takes more
        self._reader = asyncio.create_task(self._read(), name="engine-publisher-results")

    @property
    def ended(self) -> bool:
        """It brings nothing any more."""
        return self._reader.done()

    async def publish(self, items: bytes, authorization: str) -> Response:
        """Send a frame; returns its answer. Raises ConnectionError when the connection ends before."""
        self._count += 1
        ref = str(self._count)
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[ref] = answer
        try:
            if authorization != self._authorization:
                self._authorization = authorization
                await self._send(_encode({"type": "auth", "token": authorization.removeprefix("Bearer ")}))
            await self._send(b'{"type":"publish","ref":"%b","items":%b}' % (ref.encode(), items))
            return await answer
        finally:
            self._waiting.pop(ref, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # the connection may have ended while the frame was sent: that is raised by then

    async def _send(self, frame: bytes) -> None:
        try:
            await self._socket.send(frame, text=True)
        except ConnectionClosed as error:
            raise ConnectionResetError("the connection was closed before an answer came") from error

    async def _read(self) -> None:
        end: Response | ConnectionError = ConnectionResetError("the connection was closed before an answer came")
        try:
            while True:
                self._take(await self._socket.recv(decode=False))
        except ConnectionClosed as closed:
            code = closed.rcvd.code if closed.rcvd is not None else 0
            if code in (_TOKEN_REFUSED, _FORBIDDEN):
                end = _problem(401 if code == _TOKEN_REFUSED else 403, closed.rcvd.reason if closed.rcvd is not None else "")
        except msgspec.DecodeError as error:
            end = ConnectionResetError(f"the answer is not an engine's: {error}")
            self.abort()
        finally:
            self.open = False
            waiting, self._waiting = self._waiting, {}
            for answer in waiting.values():
                if answer.done():
                    continue
                if isinstance(end, Response):
                    answer.set_result(end)
                else:
                    answer.set_exception(end)

    def _take(self, frame: bytes) -> None:
        told = _decode(frame)
        if told.type == "drain":
            self.open = False
        if told.type != "publish_result":
            return
        answer = self._waiting.pop(told.ref, None)
        self.answered = True
        if answer is not None and not answer.done():
            headers = {} if told.retry_after is None else {"retry-after": str(told.retry_after)}
            answer.set_result(Response(told.status, headers, frame if told.status == 202 else bytes(told.problem)))

    def abort(self) -> None:
        """End it at once."""
        self.open = False
        self._socket.transport.abort()

    def close(self) -> None:
        """End it, as far as that can be begun without waiting."""
        self.abort()
        self._reader.cancel()


class HeldPublishing:
    """A `Carrier` of `engine.client.retried_requests`.

    Args:
        address: of the engine.
        requests: carries what is no publish, and publishes where no connection can be held.
        ssl: for https, instead of the system's default.

    Attributes:
        engine: its URL.
    """

    def __init__(self, address: EngineUrl, requests: HttpConnection, *, ssl: SSLContext | None = None) -> None:
        self.engine = address.http
        self._address = address
        self._requests = requests
        self._ssl = (ssl or True) if address.secure else None
        self._held: _Held | None = None
        self._draining: set[_Held] = set()
        self._opening = asyncio.Lock()
        self._slots = asyncio.Semaphore(UNDER_WAY_MAX)
        self._published = False
        self._not_before_s = 0.0

    async def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes, *, timeout_s: float) -> Response:
        """The answer to one attempt. Raises OSError when there is none; the request may have taken effect."""
        if method != "POST" or path != PATH or len(body) > ITEMS_BYTES_MAX or not self._holds():
            return await self._requests.request(method, path, headers, body, timeout_s=timeout_s)
        async with self._slots:
            async with asyncio.timeout(timeout_s):
                found = await self._connection(headers[_AUTHORIZATION], timeout_s)
            if isinstance(found, _Held):
                try:
                    async with asyncio.timeout(timeout_s):
                        return await found.publish(body, headers[_AUTHORIZATION])
                except TimeoutError:
                    found.abort()
                    raise
        if isinstance(found, Response):
            return found
        return await self._requests.request(method, path, headers, body, timeout_s=timeout_s)

    def _holds(self) -> bool:
        """Whether a connection is to be used for a publish now."""
        first, self._published = not self._published, True
        return not first and time.monotonic() >= self._not_before_s

    async def _connection(self, authorization: str, timeout_s: float) -> _Held | Response | None:
        """The open connection; or the engine's refusal, or None where requests are to be used."""
        async with self._opening:
            held = self._held
            if held is not None and held.open:
                return held
            if held is not None:
                self._leave(held)
            if time.monotonic() < self._not_before_s:
                return None
            opened = await self._open(authorization, timeout_s)
            if isinstance(opened, _Held):
                self._held = opened
            elif opened is None:
                self._not_before_s = time.monotonic() + AGAIN_S
            return opened

    def _leave(self, held: _Held) -> None:
        """Use another one from now on; what is unanswered on this one may still be answered."""
        self._held = None
        self._draining = {one for one in self._draining if not one.ended}
        if not held.ended:
            self._draining.add(held)
        elif not held.answered:
            self._not_before_s = time.monotonic() + AGAIN_S

    async def _open(self, authorization: str, timeout_s: float) -> _Held | Response | None:
        try:
            socket = await connect(
                f"{self._address.websocket}{PATH}",
                additional_headers={_AUTHORIZATION: authorization},
                subprotocols=[SUBPROTOCOL],
                compression=None,
                proxy=None,
                ping_interval=None,
                open_timeout=timeout_s / 2,  # so that a request can still be made, where a proxy holds the handshake back
                close_timeout=CLOSE_TIMEOUT_S,
                max_size=None,  # a result has at most a thousand items
                ssl=self._ssl,
            )
        except InvalidStatus as refused:
            answer = refused.response
            if answer.status_code not in _ENGINES:
                return None
            return Response(
                answer.status_code, {name.lower(): value for name, value in answer.headers.raw_items()}, bytes(answer.body or b"")
            )
        except (InvalidHandshake, TimeoutError):
            return None
        return _Held(socket, authorization)

    def close(self) -> None:
        """Close the connections."""
        for held in {*self._draining, *([self._held] if self._held is not None else [])}:
            held.close()
        self._held = None
        self._draining.clear()
        self._requests.close()


def _problem(status: int, detail: str) -> Response:
    return Response(status, {}, _encode({"status": status, "detail": detail}))
