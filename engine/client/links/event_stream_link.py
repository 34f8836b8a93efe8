"""A link over server-sent events: one response without end, for network paths that carry no WebSocket.

The stream is asked for with `ack=explicit`, so the engine keeps to its in-flight window and repeats what was not acknowledged, as on a
WebSocket: a slow handler is not sent the whole backlog. Acknowledgements and refusals are requests of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from engine.client.http_connection import Response
from engine.client.http_stream import HttpStream
from engine.client.links.event_stream_parser import EventStreamParser
from engine.client.links.transport_link import FRAME_BYTES_MAX, LinkEnded, LinkOptions, SettlingRequests, broken, refusal_of
from engine.client.protocol import Transport


class _Close(msgspec.Struct):
    code: int = 0
    reason: str = ""


class EventStreamLink:
    """A `Link`. It is open when the first bytes of the body have come: a proxy that holds them back would hold back the messages."""

    transport: Transport = "sse"
    duplex = False

    def __init__(self, options: LinkOptions) -> None:
        self._options = options
        self.presented = options.cursor()
        self._settling = SettlingRequests(options)
        self._parser = EventStreamParser()
        self._stream: HttpStream | None = None
        self._first = b""
        self._end: LinkEnded | None = None

    async def open(self, timeout_s: float) -> None:
        query = self._options.query(self.presented, ack="explicit", **self._options.extras)
        headers = await self._options.authorization() | {"Accept": "text/event-stream"}
        try:
            async with asyncio.timeout(timeout_s):
                self._stream = await HttpStream.open(self._options.address, f"/v1/sse{query}", headers, ssl=self._options.ssl)
                if self._stream.status != 200:
                    raise refusal_of(Response(self._stream.status, self._stream.headers, await self._stream.read_all()))
                if not self._stream.headers.get("content-type", "").startswith("text/event-stream"):
                    raise LinkEnded("the answer is no event stream")
                self._first = await self._stream.read()
        except TimeoutError as error:
            self.abort()
            raise LinkEnded(f"nothing of the stream within {timeout_s:g} s", silent=True) from error
        except OSError as error:
            self.abort()
            raise broken(error) from error
        except BaseException:
            self.abort()
            raise

    async def receive(self) -> Sequence[bytes]:
        """The events that end with what arrives next; none when it is a comment."""
        if self._end is not None:
            raise self._end
        assert self._stream is not None
        piece, self._first = self._first, b""
        if not piece:
            try:
                piece = await self._stream.read()
            except OSError as error:
                raise broken(error) from error
        if not piece:
            raise LinkEnded("the stream ended")
        frames = [self._frame(event.name, event.data) for event in self._parser.feed(piece)]
        if self._parser.size > FRAME_BYTES_MAX:
            raise LinkEnded(f"an event is longer than {FRAME_BYTES_MAX} bytes")
        return [frame for frame in frames if frame]

    def _frame(self, name: str, data: bytes) -> bytes:
        if name == "message":
            return b'{"type":"messages","messages":[%b]}' % data
        if name != "close":
            return data
        try:
            close = msgspec.json.decode(data, type=_Close)
        except msgspec.DecodeError:
            close = _Close()
        self._end = LinkEnded(close.reason or "the stream ended", code=close.code)
        return b""

    async def send(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        return await self._settling.post(frames)

    async def close(self) -> None:
        """As `abort`: a stream has no closing handshake."""
        self.abort()

    def abort(self) -> None:
        if self._stream is not None:
            self._stream.abort()
        self._settling.close()
