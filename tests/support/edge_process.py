"""An `edge_world` in a process of its own, whose memory can be measured: `with edge_process(keep_alive_s=2) as edge`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from tests.support.edge_world import DEADLINE_S, edge_world

ROOT = Path(__file__).parents[2]


class EdgeProcess:
    """A running edge, with fake shards and a fake scheduler."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid
        started = self._read()
        self.port: int = started["port"]
        self.token: str = started["token"]

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def look(self) -> dict[str, Any]:
        """`connections` now, and how many requests were `refused` with which status since the start."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return dict(self._read())

    def connect(self, receive_buffer_bytes: int = 0) -> socket.socket:
        """A TCP connection that has sent nothing yet."""
        sock = socket.socket()
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.settimeout(DEADLINE_S)
        sock.connect(("127.0.0.1", self.port))
        return sock


@contextlib.contextmanager
def edge_process(**settings: Any) -> Iterator[EdgeProcess]:
    """Start one; it has ended afterwards."""
    command = [sys.executable, "-m", "tests.support.edge_process", json.dumps(settings)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield EdgeProcess(process)
        finally:
            process.kill()


async def _serve(settings: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    async with edge_world(**settings) as world:
        print(json.dumps({"port": world.port, "token": world.token()}), flush=True)
        while await loop.run_in_executor(None, sys.stdin.readline):
            refused: Counter[int] = world.gateway.metrics.refused
            print(json.dumps({"connections": len(world.server.server_state.connections), "refused": refused}), flush=True)


if __name__ == "__main__":
    uvloop.run(_serve(json.loads(sys.argv[1])))
