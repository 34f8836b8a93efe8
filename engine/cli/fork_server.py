"""A fork server: a process that has loaded what the processes of a local Ray need, and forks one of them for each request.

A worker of Ray takes 1.3 s of CPU to load Ray and an actor's modules. A fork takes 10 ms, and shares the memory of what is loaded. The
raylet runs `engine.cli.worker_start` for each worker, which sends here the command, variables, directory and files of that worker.

States: loading, while requests wait; serving; ended. It ends with its parent, which holds its standard input, and ends its workers then,
some of which would wait for a raylet that is gone. It also ends when a library has started a thread, which forks would lack. When its code
was replaced it starts anew. A worker that gets no answer starts by its command.

Beside that it keeps the listening sockets of edges (`engine.actors.kept_listener`).

Ray reads two variables once, when it is loaded. So a forked worker has no job until it gets its first actor or task, as one that Ray starts
ahead; and it looks whether this server's parent runs, not whether the raylet does, whose end breaks its connection.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

import psutil

from engine.actors import kept_listener
from engine.store.embedded_redis import short_temporary

_LOADED: Final = (
    "ray._private.workers.default_worker",
    "engine.actors.ray_actors",
    "engine.actors.controller",
    "engine.actors.scheduler",
    "engine.actors.shard",
    "engine.actors.edge",
)
_LOADED_IF_THERE: Final = ("ray._common.usage.usage_lib", "ray._common.pydantic_compat", "pydantic.v1", "ray._private.arrow_serialization")
"""What Ray 2.60 imports later on. Not `pyarrow`, 0.15 s of CPU where it is installed: its libraries start threads."""

_READ_ONCE: Final = ("RAY_JOB_ID", "RAY_RAYLET_PID")
_ANY_JOB: Final = "ffffffff"

_REQUEST_BYTES_MAX: Final = 1 << 20
_REQUEST_S: Final = 5.0

_TASKS: Final = Path("/proc/self/task")


class ForkServer:
    """A server that ends with this process, or is stopped.

    Attributes:
        path: its socket, in a folder that only its owner may enter.
        pid: its process.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="engine-", dir=short_temporary())  # mode 0700
        self.path = Path(self._folder.name, "workers.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(self.path))
            listener.listen()
            # In a session of its own, so that Ctrl-C does not reach it.
            self._process = subprocess.Popen(
                _command(listener.fileno()),
                env={**os.environ, **dict(zip(_READ_ONCE, (_ANY_JOB, str(os.getpid())), strict=True))},
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """End it; the workers go on."""
        with self._process:
            self._process.kill()
        self._folder.cleanup()


def _command(listener: int) -> list[str]:
    return [sys.executable, "-m", "engine.cli.fork_server", str(listener)]


def _become(request: bytes, files: list[int]) -> None:
    """Run the program of this request in this process."""
    words, variables, folder = ast.literal_eval(request.decode())
    os.setpgrp()  # Ray ends a worker with its group
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)
    os.chdir(folder)
    once = {name: os.environ[name] for name in _READ_ONCE}
    os.environ.clear()
    os.environ.update(variables | once)
    sys.argv = words
    program = ModuleType("__main__")
    program.__file__ = words[0]
    sys.modules["__main__"] = program
    exec(_program(words[0]), program.__dict__)


@cache
def _program(path: str) -> CodeType:
    """Compiled once, before a fork needs it."""
    return compile(Path(path).read_bytes(), path, "exec")


def _load(code: Any) -> None:
    code.remember()
    for name in _LOADED:
        import_module(name)
    _program(sys.modules[_LOADED[0]].__file__ or "")
    for name in _LOADED_IF_THERE:
        with contextlib.suppress(ImportError):
            import_module(name)
    code.remember()
    gc.collect()
    gc.freeze()  # no collection writes to what is shared


def _serve(listener: socket.socket) -> None:
    code: Any = import_module("engine.actors.loaded_code")
    _load(code)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the workers
    keeper, path = kept_listener.Keeper(), listener.getsockname()
    while len(list(_TASKS.glob("*"))) == 1:
        keeper.expire()
        owners = keeper.owners()
        ready, _, _ = select.select([listener, sys.stdin, *owners], [], [], keeper.until_expiry())
        if sys.stdin in ready:  # the parent was killed
            _end_workers()
            shutil.rmtree(Path(path).parent)
            return
        for owner in ready:
            if owner in owners:
                keeper.take_news(owner)
        if listener not in ready:
            continue
        connection, _ = listener.accept()
        request, files = _request(connection)
        if keeper.is_asked(request):
            keeper.adopt(connection, request)
            continue
        if code.changed():
            _close(connection, files)
            os.execv(sys.executable, _command(listener.fileno()))
        if request and _is_fork():
            listener.close()
            keeper.close()
            kept_listener.keeper_path = path
            code.forked()
            connection.send(b"forked")
            connection.close()
            _become(request, files)
            return
        _close(connection, files)


def _is_fork() -> bool:
    """Fork; whether this is the new process. There may be no room for one now, and later again: this worker starts by its command."""
    try:
        return os.fork() == 0
    except OSError as error:
        sys.stderr.write(f"no worker is forked: {error}\n")
        return False


def _close(connection: socket.socket, files: list[int]) -> None:
    connection.close()
    for file in files:
        os.close(file)


def _end_workers() -> None:
    for worker in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()


def _request(connection: socket.socket) -> tuple[bytes, list[int]]:
    """What is sent, with the files; nothing when its sender has ended or stands still."""
    connection.settimeout(_REQUEST_S)
    try:
        request, files, _, _ = socket.recv_fds(connection, _REQUEST_BYTES_MAX, 3)
    except OSError:
        return b"", []
    return request, files


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
