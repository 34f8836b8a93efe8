"""`engine export` as an admin types it, against a server inside the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.support.background_loop import in_background
from tests.support.command_line import answering, engine, failure

pytestmark = pytest.mark.usefixtures("data_dir")

JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@asynccontextmanager
async def serving(answer: bytes) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):  # a connection that only looks whether there is a server
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def test_an_export_is_written_as_it_came(tmp_path: Path) -> None:
    file = tmp_path / "alice.json"
    with in_background(serving(JSON + b'Content-Length: 16\r\n\r\n{"user":"alice"}')) as url:
        assert engine("export", "alice", "--output", str(file), "--url", url).exit_code == 0
    assert file.read_bytes() == b'{"user":"alice"}'


@pytest.mark.parametrize("length", [b"Content-Length: 17\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n10\r\n"])
def test_an_export_that_is_cut_off_is_an_error(tmp_path: Path, length: bytes) -> None:
    file = tmp_path / "alice.json"
    with in_background(serving(JSON + length + b'{"user":"alice"}')) as url:
        assert "the export of alice is not complete" in failure(engine("export", "alice", "--output", str(file), "--url", url))
    assert not file.exists()


def test_a_page_of_a_proxy_is_no_export(tmp_path: Path) -> None:
    file = tmp_path / "alice.json"
    with answering(b"<html>Sign in</html>") as (url, _):
        told = failure(engine("export", "alice", "--output", str(file), "--url", url))
    assert "the export of alice is not complete" in told
    assert not file.exists()
