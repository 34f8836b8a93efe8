"""HTTP/1.1 over one keep-alive connection, as little as a load generator needs."""

from __future__ import annotations

import asyncio


class Poster:
    """Sends requests one after the other.

    Args:
        head: header lines of every request, each ended by CRLF.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        self._reader = reader
        self._writer = writer
        self._head = head

    @classmethod
    async def open(cls, port: int, head: str = "", host: str = "127.0.0.1") -> Poster:
        """Connect to a port, of this machine unless `host` is another."""
        return cls(*await asyncio.open_connection(host, port), head)

    async def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        """Status, headers (names in lower case) and body of the answer, which says its length or comes in chunks."""
        head = f"{method} {path} HTTP/1.1\r\nHost: bench\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        await self._writer.drain()
        status, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        chunked = headers.get("transfer-encoding") == "chunked"
        answer = await (self._chunks() if chunked else self._reader.readexactly(int(headers.get("content-length", 0))))
        return int(status.split(" ", 2)[1]), headers, answer

    async def _chunks(self) -> bytes:
        """RFC 9112, section 7.1, without trailers."""
        body = bytearray()
        while size := int((await self._reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            body += (await self._reader.readexactly(size + 2))[:size]
        await self._reader.readexactly(2)
        return bytes(body)

    @property
    def ended(self) -> bool:
        """Whether the other end has closed the connection."""
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        self._writer.close()
