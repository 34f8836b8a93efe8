"""Workers that a fork server forks, through the program that the raylet runs for each of them."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.cli import fork_server, worker_start
from engine.cli.fork_server import ForkServer
from tests.support.waiting import until

PROGRAM = """
import json, os, sys
names = ("RAY_JOB_ID", "RAY_RAYLET_PID", "ONLY_HERE")
print(json.dumps({"pid": os.getpid(), "parent": os.getppid(), "group": os.getpgrp(), "words": sys.argv, "folder": os.getcwd(),
    "variables": {name: os.environ.get(name) for name in names}, "loaded": "engine.actors.edge" in sys.modules}), flush=True)
"""
KEEPING = """
import json, os, socket, sys, time
from engine.actors.kept_listener import KeptListener
def bind():
    one = socket.socket()
    one.bind(("127.0.0.1", 0))
    one.listen()
    return one
kept = KeptListener("an address", bind)
print(json.dumps({"pid": os.getpid(), "port": kept.socket.getsockname()[1]}), flush=True)
if sys.argv[1] == "leaves":
    kept.release()
else:
    os.close(1)
    time.sleep(600)
"""
"""An edge as far as the fork server knows."""

SETUP = """
import os, sys
os.execv(sys.executable, [sys.executable, *(word for word in sys.argv[1:] if word != "--language=PYTHON")])
"""
"""What Ray's own program comes to for these tests."""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    one = ForkServer()
    yield one
    one.stop()


@pytest.fixture
def programs(tmp_path: Path) -> list[str]:
    """The beginning of a worker's command."""
    for name, text in (("setup_worker.py", SETUP), ("default_worker.py", PROGRAM)):
        (tmp_path / name).write_text(text)
    return [sys.executable, str(tmp_path / "setup_worker.py"), str(tmp_path / "default_worker.py")]


def started(path: Path, command: list[str], folder: Path) -> Any:
    """What the worker says of itself."""
    variables = {**os.environ, "RAY_JOB_ID": "01000000", "RAY_RAYLET_PID": "1", "ONLY_HERE": "yes"}
    words = [sys.executable, "-IS", worker_start.__file__, str(path), *command]
    done = subprocess.run(words, cwd=folder, env=variables, stdout=subprocess.PIPE, check=True, timeout=60)
    return json.loads(done.stdout)


def process_of(server: ForkServer) -> psutil.Process:
    return psutil.Process(server.pid)


def test_a_worker_is_forked_as_its_command_would_start_it(server: ForkServer, programs: list[str], tmp_path: Path) -> None:
    found = started(server.path, [*programs, "--language=PYTHON", "--worker-id=ab"], tmp_path)
    assert found["parent"] == process_of(server).pid
    assert found["group"] == found["pid"], "Ray ends a worker with its group"
    assert found["words"] == [programs[2], "--worker-id=ab"]
    assert found["folder"] == str(tmp_path)
    assert found["variables"] == {"RAY_JOB_ID": "ffffffff", "RAY_RAYLET_PID": str(os.getpid()), "ONLY_HERE": "yes"}
    assert found["loaded"]


def refuses(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(5)
        return client.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


async def test_a_listening_socket_outlives_its_worker_and_no_other_worker_has_it(
    server: ForkServer, programs: list[str], tmp_path: Path
) -> None:
    Path(programs[2]).write_text(KEEPING)
    command = [*programs, "--language=PYTHON"]
    first = started(server.path, [*command, "stays"], tmp_path)
    Path(programs[2]).write_text(PROGRAM + "import time; os.close(1); time.sleep(600)")
    other = psutil.Process(started(server.path, command, tmp_path)["pid"])
    try:
        os.kill(first["pid"], signal.SIGKILL)
        await until(lambda: not psutil.pid_exists(first["pid"]), 30)
        assert not refuses(first["port"])
        Path(programs[2]).write_text(KEEPING)
        assert started(server.path, [*command, "leaves"], tmp_path)["port"] == first["port"]
        await until(lambda: refuses(first["port"]), 10, look_s=0.1)
        assert other.is_running()
    finally:
        other.kill()


def test_a_server_starts_where_the_temporary_directory_has_a_long_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    server = ForkServer()
    try:
        assert server.path.is_socket()
    finally:
        server.stop()


def test_the_folder_of_the_socket_is_open_to_its_owner_only(server: ForkServer) -> None:
    assert server.path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("option", ["--serialized-runtime-env-context={}", "--worker-type=SPILL_WORKER"])
def test_a_worker_of_another_kind_starts_by_its_command(server: ForkServer, programs: list[str], tmp_path: Path, option: str) -> None:
    found = started(server.path, [*programs, option], tmp_path)
    assert not found["loaded"]
    assert found["variables"]["RAY_JOB_ID"] == "01000000"


def test_without_a_server_a_worker_starts_by_its_command(programs: list[str], tmp_path: Path) -> None:
    found = started(tmp_path / "nothing.sock", [*programs, "--language=PYTHON", "--worker-id=ab"], tmp_path)
    assert (found["loaded"], found["words"]) == (False, [programs[2], "--worker-id=ab"])


def test_a_worker_starts_by_its_command_beside_a_server_that_stands_still(
    programs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_start, "_ANSWER_S", 0.1, raising=False)
    path = str(tmp_path / "workers.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        assert not worker_start.forked(path, [*programs, "--language=PYTHON"])


async def test_forked_workers_leave_no_process_behind(server: ForkServer, programs: list[str], tmp_path: Path) -> None:
    started(server.path, [*programs, "--language=PYTHON"], tmp_path)
    await until(lambda: not process_of(server).children(), 30)


def test_a_request_that_is_broken_off_changes_nothing(server: ForkServer, programs: list[str], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(server.path))
    assert started(server.path, [*programs, "--language=PYTHON"], tmp_path)["loaded"]


FULL = """
import os, sys
from engine.cli import fork_server
fork, failures = os.fork, [OSError(11, "no more processes")]
def full():
    if failures:
        raise failures.pop()
    return fork()
os.fork = full
fork_server._serve(fork_server.socket.socket(fileno=int(sys.argv[1])))
"""
"""A fork server on a machine that has no room for one more process at first."""


def test_a_server_that_cannot_fork_once_forks_the_next_worker(programs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "_command", lambda listener: [sys.executable, "-c", FULL, str(listener)])
    server = ForkServer()
    try:
        loaded = [started(server.path, [*programs, "--language=PYTHON"], tmp_path)["loaded"] for _ in range(2)]
        assert loaded == [False, True]
    finally:
        server.stop()


async def test_a_server_ends_its_workers_and_removes_its_socket_with_its_parent(programs: list[str], tmp_path: Path) -> None:
    Path(programs[2]).write_text(PROGRAM + "import time; os.close(1); time.sleep(600)")
    program = "from engine.cli.fork_server import ForkServer; import time; one = ForkServer(); print(one.pid, one.path, flush=True)"
    with subprocess.Popen([sys.executable, "-c", f"{program}; time.sleep(600)"], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid, path = parent.stdout.readline().decode().split()
        worker = started(Path(path), [*programs, "--language=PYTHON"], tmp_path)["pid"]
        assert psutil.pid_exists(worker)
        parent.kill()
    await until(lambda: not (psutil.pid_exists(int(pid)) or psutil.pid_exists(worker)), 60)
    assert not Path(path).parent.exists()


async def test_a_server_whose_code_was_replaced_starts_anew(programs: list[str], tmp_path: Path) -> None:
    package = tmp_path / "path" / "engine"
    package.parent.mkdir()
    subprocess.run(["cp", "-r", Path(worker_start.__file__).parents[1], package], check=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(package.parent))
        patched.chdir(tmp_path)
        server = ForkServer()
    try:
        command = [*programs, "--language=PYTHON"]
        assert started(server.path, command, tmp_path)["loaded"]
        Path(programs[2]).write_text(KEEPING)
        keeping = started(server.path, [*command, "stays"], tmp_path)
        Path(programs[2]).write_text(PROGRAM)
        edge = package / "actors" / "edge.py"
        edge.rename(edge.with_suffix(".old"))
        edge.write_text(edge.with_suffix(".old").read_text())
        assert not started(server.path, command, tmp_path)["loaded"], "the one who finds out starts by its command"
        assert started(server.path, command, tmp_path)["loaded"]
        os.kill(keeping["pid"], signal.SIGKILL)
        await until(lambda: refuses(keeping["port"]), 10, look_s=0.1)
    finally:
        server.stop()
