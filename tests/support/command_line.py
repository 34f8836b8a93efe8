"""The command line inside a test's process, and a server that answers it."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from typer.testing import CliRunner, Result

from engine.__main__ import app
from engine.errors import EngineError
from tests.support.background_loop import in_background


def engine(*words: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, list(words), input=stdin)


def failure(result: Result, kind: type[BaseException] = EngineError) -> str:
    assert result.exit_code != 0
    assert isinstance(result.exception, kind), repr(result.exception)
    return str(result.exception)


def claims(token: str) -> dict[str, Any]:
    return json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))


@contextmanager
def answering(body: bytes, status: bytes = b"200 OK") -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers every request with this; the requests it gets."""
    with answering_with(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)) as served:
        yield served


@contextmanager
def answering_with(response: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers every request with these bytes and closes its connection; the requests it gets."""
    requests: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):  # of a client that looks for a server, or has seen enough
                head = await reader.readuntil(b"\r\n\r\n")
                sizes = re.findall(rb"Content-Length: (\d+)", head)
                requests.append(head + (await reader.readexactly(int(sizes[0])) if sizes else b""))
                writer.write(response)
                writer.close()
                await writer.wait_closed()
        finally:
            writer.transport.abort()

    @asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    with in_background(serving()) as url:
        yield url, requests
