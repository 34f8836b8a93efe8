"""An HTTP/1.1 answer whose body is read while it arrives, on a connection of its own. `http_connection` has the whole ones.

The bytes that wait are bounded by asyncio's stream: a reader that is slow makes the server wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from ssl import SSLContext
from typing import Final, Self

from engine.client.credentials import EngineUrl
from engine.client.http_connection import AnswerReader, request_head

READ_BYTES: Final = 64 << 10
REFUSAL_BYTES_MAX: Final = 64 << 10  # of a body that is read as a whole: a problem detail, or a proxy's page


class HttpStream(AnswerReader):
    """One answer. Every method but `abort` raises `ConnectionError` when the connection breaks, or what comes is not HTTP/1.1.

    Attributes:
        headers: names in lower case.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: EngineUrl, path: str, headers: Mapping[str, str], *, ssl: SSLContext | None = None) -> Self:
        """GET it; returns when the head of the answer is there. Raises OSError also when there is no connection."""
        head = request_head(address, "GET", path, headers)
        secure = (ssl or True) if address.secure else None
        stream = cls(*await asyncio.open_connection(address.host, address.port, ssl=secure))
        try:
            stream._writer.write(head)
            while not stream._has_head:
                await stream._feed()
        except BaseException:
            stream.abort()
            raise
        return stream

    # -- reading -----------------------------------------------------------------------------------------------------
    async def _feed(self) -> None:
        data = await self._reader.read(READ_BYTES)
        if data:
            self._parse(data)
        elif self._until_eof:
            self._complete = True
        else:
            raise ConnectionResetError("the connection was closed before the answer was complete")

    async def read(self) -> bytes:
        """What has arrived of the body, waiting for at least a byte; b"" at its end. Cancelling the wait loses nothing."""
        while not self._body and not self._complete:
            await self._feed()
        body, self._body = bytes(self._body), bytearray()
        return body

    async def read_all(self) -> bytes:
        """The body to its end, or the first `REFUSAL_BYTES_MAX` bytes and some more."""
        body = await self.read()
        while not self._complete and len(body) < REFUSAL_BYTES_MAX:
            body += await self.read()
        return body

    def abort(self) -> None:
        """End the connection at once. Idempotent."""
        self._writer.transport.abort()
