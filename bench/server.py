"""An engine under measurement: started as its user starts it, in a data directory of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from engine.auth import mint

SECRET = "bench-secret-0123456789abcdef0123456789abcdef"
START_TIMEOUT_S = 180


class Engine:
    """A running engine: `pid` of its starter, `port`, tokens."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port

    def token(self, user: str, *scopes: str) -> str:
        """A token for an hour or two."""
        return mint(SECRET, user, scopes or ("connect",), 7200, now_s=time.time())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def engine(**options: object) -> Iterator[Engine]:
    """An engine with these settings (names as in engine.config), stopped at the end. Its output is in the data directory."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="engine-bench-", ignore_cleanup_errors=True) as folder:
        settings = {"port": port, "data_dir": f"{folder}/data", "jwt_secret": SECRET, **options}
        env = {name: value for name, value in os.environ.items() if not name.startswith("ENGINE_")}
        env |= {f"ENGINE_{name.upper()}": str(value) for name, value in settings.items()}
        log = Path(folder, "engine.log")
        with log.open("wb") as output:
            process = subprocess.Popen([sys.executable, "-m", "engine", "up"], env=env, stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait_ready(process, port, log)
            yield Engine(process.pid, port)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise SystemExit(f"the engine is not ready:\n{log.read_text()[-4000:]}")
