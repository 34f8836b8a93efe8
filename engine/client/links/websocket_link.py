"""A link over WebSocket (RFC 6455), on the websockets library."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.http11 import Response
from websockets.typing import Subprotocol

from engine.client.links.transport_link import CLOSE_TIMEOUT_S, FRAME_BYTES_MAX, LinkEnded, LinkOptions, broken
from engine.client.protocol import CLOSE_LOST, Transport
from engine.client.retried_requests import retry_after_s

SUBPROTOCOL: Final = Subprotocol("notify.v1.json")


class Handshake(connect):
    """The library's, to which a redirect is a refusal, as to other requests: it may lead to a page for people to log in."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Follow none."""
        return exc


class WebSocketLink:
    """A `Link`. Pings of the transport are off: the session sends heartbeats itself."""

    transport: Transport = "websocket"
    duplex = True

    def __init__(self, options: LinkOptions) -> None:
        self._options = options
        self.presented = options.cursor()
        self._socket: ClientConnection | None = None

    async def open(self, timeout_s: float) -> None:
        address = self._options.address
        headers = await self._options.authorization()
        try:
            self._socket = await Handshake(
                f"{address.websocket}/v1/ws{self._options.query(self.presented, **self._options.extras)}",
                additional_headers=headers,
                subprotocols=[SUBPROTOCOL],
                compression=None,  # frames are small: deflate costs more memory and time than it saves
                proxy=None,
                ping_interval=None,
                open_timeout=timeout_s,
                close_timeout=CLOSE_TIMEOUT_S,
                max_size=FRAME_BYTES_MAX,
                ssl=(self._options.ssl or True) if address.secure else None,
            )
        except InvalidStatus as error:
            answer = error.response
            after_s = retry_after_s(answer.headers.get("Retry-After"))
            raise LinkEnded(detail_of(answer), status=answer.status_code, retry_after_s=after_s) from error
        except TimeoutError as error:
            raise LinkEnded(f"no answer to the handshake within {timeout_s:g} s", silent=True) from error
        except InvalidHandshake as error:
            raise LinkEnded(str(error) or type(error).__name__) from error
        except OSError as error:
            raise broken(error) from error

    async def receive(self) -> Sequence[bytes]:
        assert self._socket is not None
        try:
            return (await self._socket.recv(decode=False),)
        except ConnectionClosed as error:
            raise self._end() from error

    async def send(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        """One message for each; answers arrive by `receive`."""
        assert self._socket is not None
        try:
            for frame in frames:
                await self._socket.send(frame, text=True)
        except ConnectionClosed as error:
            raise self._end() from error
        return ()

    def _end(self) -> LinkEnded:
        assert self._socket is not None
        return LinkEnded(self._socket.close_reason or "connection lost", code=int(self._socket.close_code or CLOSE_LOST))

    async def close(self) -> None:
        if self._socket is not None:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._socket.close()
            except TimeoutError:
                self.abort()

    def abort(self) -> None:
        if self._socket is not None:
            self._socket.transport.abort()


def detail_of(response: Response) -> str:
    """The `detail` of a problem+json answer, else the reason phrase."""
    try:
        return str(msgspec.json.decode(response.body or b"")["detail"])
    except (ValueError, RecursionError, KeyError, TypeError):
        return response.reason_phrase
