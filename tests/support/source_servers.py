"""Servers of the sources: a nats-server with JetStream, and a Kafka API server in memory (kfake of franz-go, built by Go)."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path

from engine.store.embedded_redis import dying_with_parent
from tests.support.free_port import free_port
from tests.support.missing_programs import untried

_KAFKA = Path(__file__).parent / "kafka"
_START_S = 30.0


class SourceServer:
    """A program that listens on a port of loopback. `kill()` and `start()` for those who test its loss."""

    def __init__(self, command: list[str | Path], port: int) -> None:
        self.port = port
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start; returns when it listens."""
        self._process = subprocess.Popen(
            dying_with_parent(self._command), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self._process.poll() is None, f"{self._command[0]} ended while starting"
                assert time.monotonic() < deadline, f"{self._command[0]} does not listen"
                time.sleep(0.02)

    def kill(self) -> None:
        assert self._process is not None, "it runs"
        self._process.kill()
        self._process.wait()


def nats_server(folder: Path) -> SourceServer:
    """One that keeps its streams in this folder."""
    program = shutil.which("nats-server")
    if program is None:
        untried("no nats-server: apt install nats-server")
    port = free_port()
    return SourceServer([program, "--addr", "127.0.0.1", "--port", str(port), "--jetstream", "--store_dir", folder], port)


def kafka_server(folder: Path, *topics: str) -> SourceServer:
    """One with these topics, of two partitions each. Its data end with it."""
    if shutil.which("go") is None:
        untried("no Go: the Kafka server of the tests was not built")
    program = folder / "kafka"
    try:
        subprocess.run(["go", "build", "-o", program, "."], cwd=_KAFKA, capture_output=True, check=True, timeout=300)
    except subprocess.SubprocessError:
        untried("Go could not build the Kafka server of the tests")
    port = free_port()
    return SourceServer([program, str(port), *topics], port)
