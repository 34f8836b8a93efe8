"""Reads the body of a request, bounded in size; `engine.transports.http_protocol` bounds the time."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from engine.config import Config
from engine.errors import Overloaded
from engine.http.problems import too_large

HELD_BYTES_MAX: Final = 128 << 20
"""Of all bodies of an edge whose rest is still to come: a client may let 30 s pass, on each of a thousand connections."""


class BodyReader:
    """Reads the bodies of the requests of one edge. Where too much is held of incomplete ones, the oldest of them makes room."""

    def __init__(self, config: Config) -> None:
        self._bytes_max = config.body_bytes_max
        self._sizes: dict[asyncio.Timeout, int] = {}  # of incomplete bodies, the oldest first
        self._held = 0  # their sum

    async def read(self, scope: Scope, receive: Receive, bytes_max: int | None = None) -> bytes:
        """The body of a request, at most `bytes_max` bytes (None: `body_bytes_max`), with or without Content-Length.

        Raises:
            Problem: 413, as soon as the limit is exceeded.
            Overloaded: it made room for others.
            ClientDisconnect: the client disconnected before the end, or took longer than `request_timeout_s` and got 408.
        """
        bytes_max = self._bytes_max if bytes_max is None else bytes_max
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value) > bytes_max:
                raise too_large(bytes_max)
        message = await receive()
        part = _part(message, bytes_max)
        return await self._read_rest(bytearray(part), receive, bytes_max) if message.get("more_body", False) else part

    async def _read_rest(self, body: bytearray, receive: Receive, bytes_max: int) -> bytes:
        patience = asyncio.timeout(None)
        try:
            async with patience:
                more = True
                while more:
                    self._hold(patience, len(body))
                    message = await receive()
                    body += _part(message, bytes_max - len(body), bytes_max)
                    more = message.get("more_body", False)
        except TimeoutError:
            raise Overloaded("too much of requests is here whose rest has not come; this one was the oldest") from None
        finally:
            self._held -= self._sizes.pop(patience, 0)
        return bytes(body)

    def _hold(self, patience: asyncio.Timeout, size: int) -> None:
        """Count so many bytes of a body, unless it has made room. Lets the oldest ones make room."""
        if patience.when() is None:
            self._held += size - self._sizes.get(patience, 0)
            self._sizes[patience] = size
        while self._held > HELD_BYTES_MAX:
            oldest = next(iter(self._sizes))
            self._held -= self._sizes.pop(oldest)
            oldest.reschedule(0)


def _part(message: Message, left: int, bytes_max: int | None = None) -> bytes:
    """The part of a body in a message, of which `left` bytes may come. Raises Problem, 413; ClientDisconnect."""
    if message["type"] != "http.request":
        raise ClientDisconnect
    part: bytes = message.get("body", b"")
    if len(part) > left:
        raise too_large(left if bytes_max is None else bytes_max)
    return part
