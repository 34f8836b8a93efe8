"""Publishes over one held connection (docs/PROTOCOL-PUBLISHING.md, "Hold a connection"), and everything else by requests.

    RetriedRequests --POST /v1/notifications--> HeldPublishing --publish frame, on one WebSocket--> engine
                    --any other---------------------> HttpConnection, a request

Each publish of an application is then a frame, not a request: hundreds may be under way, and their results come as each is durable. Who
calls cannot tell the difference: the answer to a frame is the `Response` of the request that it stands for, and what has no answer when the
connection ends raises `ConnectionError`, so that `RetriedRequests` sends it again under the same ids, with its backoff.

States of the connection:

    none     -> opening   at the second publish: one alone is a request, which costs less than a connection and a frame
    opening  -> open      the handshake is granted; those that came meanwhile wait for it
             -> refused   any other answer, or none in half the time of an attempt. Who refuses a WebSocket may take a request (a proxy, an
                          edge that holds as many as it may, an older engine), so those that waited are sent as requests: what
                          these are answered counts
    open     -> left      `drain`; a publish with another token; a publish without an answer in time
             -> none      its end
    left     -> none      no more is sent on it; when nothing on it is unanswered any more, it is closed. Another one may be open meanwhile
    refused  -> none      after `AGAIN_S`, or what an engine says in `Retry-After`; until then all is sent by requests
    any      -> closed    with a close frame; what is published later goes by requests

A connection that has ended, or was left, goes to `refused` at the next publish in place of `none` when another one would do no better: it
brought no result, what it brought is no engine's, or the engine could not read a frame: `error`, or 1009, a frame larger than it takes.
Neither says which frame, and the requests that follow are answered each for itself.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from ssl import SSLContext
from typing import Final

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.frames import CloseCode
from websockets.http11 import Response as HandshakeResponse

from engine.client.credentials import EngineUrl
from engine.client.http_connection import RESPONSE_BYTES_MAX, HttpConnection, Response
from engine.client.links.transport_link import CLOSE_TIMEOUT_S
from engine.client.links.websocket_link import SUBPROTOCOL, Handshake
from engine.client.retried_requests import NOT_TAKEN, retry_after_s

PATH: Final = "/v1/notifications"
AGAIN_S: Final = 60.0
"""After a WebSocket was not to be had, before it is tried again: proxies are mended, and engines upgraded, by hand."""

_AGAIN_MIN_S: Final = 1.0
"""Before it is tried again where an engine says when: a handshake for each publish would cost more than requests."""

ITEMS_BYTES_MAX: Final = 128 << 10
"""Of a frame. More is left to a request: a frame saves nothing there, holds up those behind it, and ends the connection of all where an
engine takes less (`body_bytes_max`, 1 MiB by default)."""

FRAMES_MAX: Final = 500
UNDER_WAY_BYTES_MAX: Final = 1 << 20
"""Frames without a result, and their items; more wait for their turn, on no clock. Half of what an engine reads (1 000, 2 MiB), so that a
frame does not wait in TCP while its attempt is timed."""

_TOKEN_REFUSED: Final = 4401
_AUTHORIZATION: Final = "Authorization"
_LOST: Final = "the connection was closed before an answer came"

_encode: Final = msgspec.json.Encoder().encode


class _Result(msgspec.Struct, gc=False):
    """A frame of the engine. Of an accepted publish, the frame itself has the members of the 202."""

    type: str
    ref: str = ""
    status: int = 0
    problem: msgspec.Raw = msgspec.Raw(b"")
    retry_after: int | None = None
    detail: str = ""


_decode: Final = msgspec.json.Decoder(_Result).decode


class _Window:
    """What may be under way; more waits, first come first served."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._room = asyncio.Event()
        self._frames = self._bytes = 0

    async def enter(self, size: int) -> None:
        """Return when there is room for a frame of `size` bytes, at most `UNDER_WAY_BYTES_MAX`; it is taken then."""
        async with self._turn:
            while self._frames >= FRAMES_MAX or self._bytes + size > UNDER_WAY_BYTES_MAX:
                self._room.clear()
                await self._room.wait()
            self._frames += 1
            self._bytes += size

    def leave(self, size: int) -> None:
        """Give the room back."""
        self._frames -= 1
        self._bytes -= size
        self._room.set()


class _Held:
    """One connection, open or left.

    Attributes:
        authorization: that it was opened with.
        open: it takes more.
        useless: another one would do no better.
    """

    def __init__(self, socket: ClientConnection, authorization: str) -> None:
        self._socket = socket
        self.authorization = authorization
        self.open = True
        self.useless = False
        self._answered = False  # it has brought a result
        self._waiting: dict[str, asyncio.Future[Response]] = {}
        self._count = 0
        self._reader = asyncio.create_task(self._read(), name="engine-publisher-results")
        self._closing: asyncio.Task[None] | None = None

    @property
    def ended(self) -> bool:
        """It brings nothing any more."""
        return self._reader.done()

    @property
    def forsaken(self) -> bool:
        """The event loop in which it was opened is closed, and so is it."""
        return self._reader.get_loop().is_closed()

    async def publish(self, items: bytes) -> Response:
        """Send a frame; returns its answer. Raises ConnectionError when the connection ends before."""
        self._count += 1
        ref = str(self._count)
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[ref] = answer
        try:
            await self._socket.send(b'{"type":"publish","ref":"%b","items":%b}' % (ref.encode(), items), text=True)
            return await answer
        except ConnectionClosed as error:
            raise ConnectionResetError(_LOST) from error
        finally:
            self._waiting.pop(ref, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # the connection may have ended while the frame was sent: that is raised by then
            if not self.open:
                self.leave()

    async def _read(self) -> None:
        reason, refusal = _LOST, None
        try:
            while True:
                self._take(await self._socket.recv(decode=False))
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.code == _TOKEN_REFUSED:
                refusal = Response(401, {}, _encode({"status": 401, "detail": closed.rcvd.reason}))
            elif closed.rcvd is not None and closed.rcvd.code == CloseCode.MESSAGE_TOO_BIG:
                self.useless = True
        except Exception as error:
            reason, self.useless = f"the connection is of no use: {error}", True
        finally:
            self.useless = self.useless or (self.open and not self._answered)
            self.open = False
            self._socket.transport.abort()
            waiting, self._waiting = self._waiting, {}
            for answer in waiting.values():
                if answer.done():
                    continue
                if refusal is not None:
                    answer.set_result(refusal)
                else:
                    answer.set_exception(ConnectionResetError(reason))

    def _take(self, frame: bytes) -> None:
        told = _decode(frame)
        if told.type == "drain":
            self.leave()
        elif told.type == "error":
            raise ValueError(f"the engine could not read a frame: {told.detail}")
        elif told.type == "publish_result":
            self._answered = True
            answer = self._waiting.pop(told.ref, None)
            if answer is not None and not answer.done():
                headers = {} if told.retry_after is None else {"retry-after": str(told.retry_after)}
                answer.set_result(Response(told.status, headers, frame if told.status == 202 else bytes(told.problem)))

    def give_up(self) -> None:
        """Leave it: an answer did not come in time."""
        self.useless = self.useless or not self._answered
        self.leave()

    def leave(self) -> None:
        """Send no more on it, and close it when nothing is unanswered any more."""
        self.open = False
        if not self._waiting and self._closing is None and not self.ended:
            self._closing = asyncio.create_task(self._close(), name="engine-publisher-closing")

    async def close(self) -> None:
        """End it, within `CLOSE_TIMEOUT_S`."""
        self.open = False
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="engine-publisher-closing")
        await self._closing

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._socket.close()
        except TimeoutError:
            pass  # who takes no close frame is reset
        finally:
            self._socket.transport.abort()
        await asyncio.wait({self._reader})


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
        self._connections: set[_Held] = set()  # that one, and those that were left
        self._opening = asyncio.Lock()
        self._window = _Window()
        self._published = False
        self._not_before_s = 0.0  # a connection

    async def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes, *, timeout_s: float) -> Response:
        """The answer to one attempt. Raises OSError when there is none; the request may have taken effect."""
        if method != "POST" or path != PATH or len(body) > ITEMS_BYTES_MAX or not self._holds():
            return await self._requests.request(method, path, headers, body, timeout_s=timeout_s)
        held = None
        await self._window.enter(len(body))
        end_s = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(end_s):
                held = await self._connection(headers[_AUTHORIZATION], timeout_s / 2)
                if held is not None:
                    return await held.publish(body)
        except TimeoutError:
            if held is not None:
                held.give_up()
            raise
        finally:
            self._window.leave(len(body))
        left_s = end_s - asyncio.get_running_loop().time()
        return await self._requests.request(method, path, headers, body, timeout_s=max(0.0, left_s))

    def _holds(self) -> bool:
        """Whether a connection is to be used for a publish now."""
        first, self._published = not self._published, True
        return not first and time.monotonic() >= self._not_before_s

    async def _connection(self, authorization: str, timeout_s: float) -> _Held | None:
        """The open connection; None where requests are to be used. Raises OSError when nobody is at the address."""
        async with self._opening:
            held, self._held = self._held, None
            if held is not None and held.open and held.authorization == authorization:
                self._held = held
                return held
            if held is not None:
                held.leave()
                if held.useless:
                    self._refused(AGAIN_S)
            if time.monotonic() >= self._not_before_s:
                self._held = await self._open(authorization, timeout_s)
            return self._held

    def _refused(self, again_s: float) -> None:
        self._not_before_s = max(self._not_before_s, time.monotonic() + again_s)

    async def _open(self, authorization: str, timeout_s: float) -> _Held | None:
        try:
            socket = await Handshake(
                f"{self._address.websocket}{PATH}",
                additional_headers={_AUTHORIZATION: authorization},
                subprotocols=[SUBPROTOCOL],
                compression=None,
                proxy=None,
                ping_interval=None,
                open_timeout=timeout_s,
                close_timeout=CLOSE_TIMEOUT_S,
                max_size=RESPONSE_BYTES_MAX,
                ssl=self._ssl,
            )
        except InvalidStatus as refused:
            self._refused(_again_s(refused.response))
            return None
        except (InvalidHandshake, TimeoutError):
            self._refused(AGAIN_S)
            return None
        self._connections = {one for one in self._connections if not one.ended}
        held = _Held(socket, authorization)
        self._connections.add(held)
        return held

    async def close(self) -> None:
        """Close the connections. What is unanswered raises ConnectionError."""
        self._not_before_s = math.inf
        async with self._opening:  # one that is being opened is closed too
            await asyncio.gather(*(held.close() for held in self._connections if not held.forsaken))
        await self._requests.close()


def _again_s(refusal: HandshakeResponse) -> float:
    """When a handshake may be tried again: as an engine says that has no room for it now, or else after `AGAIN_S`."""
    kinds, waits = (refusal.headers.get_all(name) for name in ("Content-Type", "Retry-After"))
    if refusal.status_code not in NOT_TAKEN or kinds != ["application/problem+json"] or len(waits) != 1:
        return AGAIN_S
    wait_s = retry_after_s(waits[0])
    return AGAIN_S if wait_s is None else min(max(wait_s, _AGAIN_MIN_S), AGAIN_S)
