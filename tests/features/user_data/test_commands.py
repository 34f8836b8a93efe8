"""`engine export` as an admin types it, against a server inside the test."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
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


def test_a_full_disk_is_not_taken_for_the_engine(tmp_path: Path) -> None:
    body = b'{"user":"%b"}' % (b"a" * 200_000)
    (tmp_path / "alice.json.part").symlink_to("/dev/full")
    with in_background(serving(JSON + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))) as url:
        told = failure(engine("export", "alice", "--output", str(tmp_path / "alice.json"), "--url", url))
    assert told == f"{tmp_path}/alice.json: No space left on device; the export of alice is not complete"


@pytest.mark.parametrize(("output", "reason"), [("none/alice.json", "No such file or directory"), ("folder", "Is a directory")])
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, output: str, reason: str) -> None:
    (tmp_path / "folder").mkdir()
    with in_background(serving(JSON + b'Content-Length: 16\r\n\r\n{"user":"alice"}')) as url:
        told = failure(engine("export", "alice", "--output", output, "--url", url))
    assert told.startswith(f"{output}")
    assert reason in told


def test_the_reader_of_an_export_may_end_before_it() -> None:
    body = b'{"user":"%b"}' % (b"a" * 2_000_000)
    with in_background(serving(JSON + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))) as url:
        command = [sys.executable, "-m", "engine", "export", "alice", "--url", url]
        reader, writer = os.pipe()
        os.close(reader)
        ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, "")
