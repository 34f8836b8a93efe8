"""`engine export` as an admin types it, against a server inside the test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import answering, answering_with, engine, failure

pytestmark = pytest.mark.usefixtures("data_dir")

JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def test_an_export_is_written_as_it_came(tmp_path: Path) -> None:
    file = tmp_path / "alice.json"
    with answering_with(JSON + b'Content-Length: 16\r\n\r\n{"user":"alice"}') as (url, _):
        assert engine("export", "alice", "--output", str(file), "--url", url).exit_code == 0
    assert file.read_bytes() == b'{"user":"alice"}'


@pytest.mark.parametrize("length", [b"Content-Length: 17\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n10\r\n"])
def test_an_export_that_is_cut_off_is_an_error(tmp_path: Path, length: bytes) -> None:
    file = tmp_path / "alice.json"
    with answering_with(JSON + length + b'{"user":"alice"}') as (url, _):
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
    with answering_with(JSON + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)) as (url, _):
        told = failure(engine("export", "alice", "--output", str(tmp_path / "alice.json"), "--url", url))
    assert told == f"{tmp_path}/alice.json: No space left on device; the export of alice is not complete"


@pytest.mark.parametrize(
    ("output", "reason"), [("none/alice.json", "No such file or directory"), ("folder", "no file"), ("pipe", "no file")]
)
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, reason: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with answering_with(JSON + b'Content-Length: 16\r\n\r\n{"user":"alice"}') as (url, _):
        told = failure(engine("export", "alice", "--output", output, "--url", url))
    assert told.startswith(f"{output}")
    assert reason in told


def test_the_reader_of_an_export_may_end_before_it() -> None:
    body = b'{"user":"%b"}' % (b"a" * 2_000_000)
    with answering_with(JSON + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)) as (url, _):
        command = [sys.executable, "-m", "engine", "export", "alice", "--url", url]
        reader, writer = os.pipe()
        os.close(reader)
        ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, "")
