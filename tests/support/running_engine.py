"""A whole engine in processes of its own, started by its command."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import jwt
import psutil
from websockets.asyncio.client import ClientConnection, connect

from engine.store.embedded_redis import dying_with_parent
from tests.support.process_tree import tree

START_TIMEOUT_S = 110
PROGRAM = (sys.executable, "-m", "engine")


class RunningEngine:
    """`engine up` in a process of its own, as a user starts it.

    Args:
        folder: of its data directory and its output.
        options: of `engine up`.
        env: of the process, beside this one's.
        place: begins the command: one that runs the rest of it elsewhere.
        program: the engine's command.
    """

    def __init__(
        self, folder: Path, *options: str, env: dict[str, str] | None = None, place: Sequence[str] = (), program: Sequence[str] = PROGRAM
    ) -> None:
        self.data_dir = folder / "data"
        self.output = folder / "output.txt"
        self.options = options
        self.env = env or {}
        self.place = place
        self.program = program
        self.process: subprocess.Popen[bytes] | None = None
        self.state: dict[str, Any] = {}

    def start(self) -> None:
        """Start it and wait until it says it is ready; fails with its output when it does not."""
        self.launch()()

    def launch(self) -> Callable[[], None]:
        """Start it, from a thread with which it may end; returns what waits until it says that it is ready."""
        with self.output.open("ab") as output:
            printed = output.tell()
            self.process = subprocess.Popen(
                dying_with_parent(
                    [*self.place, *self.program, "up", "--port", "0", "--data-dir", self.data_dir, *self.options]
                ),
                stdout=output, stderr=subprocess.STDOUT, env=os.environ | self.env, cwd=self.data_dir.parent, start_new_session=True,
            )  # fmt: skip
        started = self.process

        def ready() -> None:
            deadline = time.monotonic() + START_TIMEOUT_S
            while True:
                assert started.poll() is None, f"engine up ended with {started.returncode}:\n{self.output.read_text()}"
                assert time.monotonic() < deadline, f"engine up is not ready after {START_TIMEOUT_S} s:\n{self.output.read_text()}"
                if "engine down" in self.output.read_text()[printed:]:  # the last line of the announcement
                    self.state = json.loads((self.data_dir / "engine.json").read_text())
                    return
                time.sleep(0.05)

        return ready

    def stop(self, within_s: float = 60, number: signal.Signals = signal.SIGTERM) -> int:
        """With a signal, unless it has ended; returns the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            os.kill(tree(self.process.pid)[1] if self.place else self.process.pid, number)
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"engine up does not stop:\n{self.output.read_text()}") from None

    def descendants(self) -> list[psutil.Process]:
        """All processes below the command's."""
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    @property
    def url(self) -> str:
        """`http://host:port`."""
        return str(self.state["url"])

    def token(self, user: str = "app", scopes: str = "connect", *, tenant: str = "default", ttl_s: float = 7200, **claims: Any) -> str:
        """A token of this engine, valid also while a test's clock is an hour ahead."""
        secret = self.env.get("ENGINE_JWT_SECRET") or (self.data_dir / "jwt-secret").read_text().strip()
        return jwt.encode({"sub": user, "scope": scopes, "tenant": tenant, "exp": time.time() + ttl_s, **claims}, secret, "HS256")

    async def publish(self, *items: dict[str, Any], tenant: str = "default") -> list[dict[str, Any]]:
        """Publish; returns the results. Fails unless all are taken."""
        # verify=False: reading the certificates of TLS, which nobody uses here, would cost 20 ms of every publish.
        async with httpx.AsyncClient(timeout=60, trust_env=False, verify=False) as http:
            answer = await http.post(
                f"{self.url}/v1/notifications",
                json=list(items),
                headers={"Authorization": f"Bearer {self.token('app', 'publish', tenant=tenant)}"},
            )
        assert answer.status_code == 202, answer.text
        results: list[dict[str, Any]] = answer.json()["results"]
        return results

    def connect(
        self, user: str, *, cursor: str | None = None, device: str | None = None, tenant: str = "default", **options: Any
    ) -> connect:
        """A WebSocket of a user, to be used with `async with`."""
        query = {key: value for key, value in (("last_event_id", cursor), ("device", device)) if value is not None}
        url = httpx.URL(self.url.replace("http", "ws", 1) + "/v1/ws", params=query)
        options.setdefault("additional_headers", {"Authorization": f"Bearer {self.token(user, tenant=tenant)}"})
        return connect(str(url), subprotocols=["notify.v1.json"], proxy=None, **options)  # type: ignore[list-item]

    async def receive(self, socket: ClientConnection, kind: str, within_s: float = 60) -> dict[str, Any]:
        """The next frame of this type on the socket; others are passed over."""
        async with asyncio.timeout(within_s):
            while True:
                frame: dict[str, Any] = json.loads(await socket.recv())
                if frame["type"] == kind:
                    return frame

    def status(self) -> dict[str, Any]:
        """`GET /v1/status`."""
        headers = {"Authorization": f"Bearer {self.token('ops', 'operator')}"}
        answer = httpx.get(f"{self.url}/v1/status", headers=headers, timeout=60, trust_env=False, verify=False)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def status_when(self, holds: Callable[[dict[str, Any]], bool], within_s: float = 90) -> dict[str, Any]:
        """The status once it is as wanted; there is none while the edge is down, or another part does not answer it."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                found = self.status()
                if holds(found):
                    return found
            except (httpx.HTTPError, AssertionError):
                found = {}
            assert time.monotonic() < deadline, f"the status stays {found}"
            time.sleep(0.1)


@contextmanager
def running_engine(
    *options: str, env: dict[str, str] | None = None, folder: Path | None = None, program: Sequence[str] = PROGRAM
) -> Iterator[RunningEngine]:
    """A whole engine (2 shards, 1 scheduler, 1 edge, unless the options say otherwise) with a data directory of its own, below `folder`."""
    made = None if folder else Path(tempfile.mkdtemp(prefix="engine-test-"))  # short: a socket path has 107 bytes
    running = RunningEngine(folder or made, "--shards", "2", *options, env=env, program=program)
    try:
        running.start()
        yield running
        running.stop()
    finally:
        if running.process is not None and running.process.poll() is None:
            running.process.kill()
        if made:
            shutil.rmtree(made, ignore_errors=True)


def wait_gone(processes: list[psutil.Process], within_s: float) -> None:
    """Fails when one of these still runs then."""
    _, alive = psutil.wait_procs(processes, within_s)
    left = [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    assert not left, f"left behind: {left}"
