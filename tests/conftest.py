"""What all tests share: a real Redis, one real engine for the whole session, and the search for a browser.

A test that uses one of these fixtures gets the marker of the same name, so `make check` can leave the slow ones out. Where a
program is missing, its tests are skipped and the end of the run says so loudly; with CI=true they fail.
"""

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
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
import uvloop
from hypothesis import HealthCheck, Phase, settings
from redis.asyncio import Redis
from websockets.asyncio.client import ClientConnection, connect

from engine.errors import ConfigError
from engine.store.embedded_redis import find_server

CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
MISSING: list[str] = []
START_TIMEOUT_S = 110
QUICK_EXAMPLES = 10  # of each property, in `make check`
REDIS_OPTIONS = "--port 0 --unixsocketperm 700 --appendonly yes --appendfsync everysec --maxmemory-policy noeviction"
MARKER_OF_FIXTURE = {"redis_server": "redis", "engine": "engine", "chromium": "browser"}

for _name in [name for name in os.environ if name.startswith("ENGINE_")]:
    del os.environ[_name]  # a developer's settings must not decide what the tests see


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="fewer examples of each property: a first answer, not a proof")


EDGE_FOLDERS = ("http", "auth", "publish", "gateway", "api", "transports", "test_routes.py")


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests of an edge's packages run on uvloop, as edges do: its flow control differs from asyncio's own."""
    if item.path.relative_to(Path(__file__).parent).parts[0] in EDGE_FOLDERS:
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


def pytest_configure(config: pytest.Config) -> None:
    # Speed is measured in bench/; a busy machine must not fail a property by its deadline of 200 ms.
    # And explaining a failure takes minutes of tracing, more than a test may take: the shrunk example has to do.
    phases = [phase for phase in Phase if phase is not Phase.explain]
    calm = settings(settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=phases)
    settings.register_profile("calm", calm)
    settings.register_profile("quick", calm, max_examples=QUICK_EXAMPLES)
    settings.load_profile("quick" if config.getoption("--quick") else "calm")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if config.getoption("--quick"):
            _take_few_examples(getattr(item, "cls", None), "settings")
            _take_few_examples(getattr(item, "obj", None), "_hypothesis_internal_use_settings")  # where `@settings` leaves them
        for fixture, marker in MARKER_OF_FIXTURE.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(marker)


def _take_few_examples(owner: Any, name: str) -> None:
    """For a first answer: settings of a state machine or a property that want more."""
    chosen = getattr(owner, name, None)
    if isinstance(chosen, settings) and chosen.max_examples > QUICK_EXAMPLES:
        setattr(owner, name, settings(chosen, max_examples=QUICK_EXAMPLES))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if MISSING:
        terminalreporter.section("NOT TESTED", sep="!", red=True, bold=True)
        for what in dict.fromkeys(MISSING):
            terminalreporter.write_line(what, red=True)


def missing(what: str) -> None:
    """End the test for want of a program: a failure in CI, elsewhere a skip that the end of the run repeats."""
    if CI:
        pytest.fail(what)
    MISSING.append(what)
    pytest.skip(what)


# -- Redis -------------------------------------------------------------------------------------------------------------
class RedisServer:
    """A redis-server on a private unix socket, append-only file on. `kill()` and `start()` for those who test its loss."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.socket = folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [self.program, "--unixsocket", self.socket, "--dir", self.folder, *REDIS_OPTIONS.split()],
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
                return client.recv(16).startswith(b"+PONG")
            except OSError:
                return False

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(10)


def start_redis(folder: Path) -> RedisServer:
    """A Redis of one's own, for tests that kill it; the caller stops it."""
    try:
        server = RedisServer(find_server(), folder)
    except ConfigError as error:
        missing(f"no Redis: {error}")
        raise AssertionError from error
    server.start()
    return server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One Redis for the session; use `redis_client` for a clean one."""
    with tempfile.TemporaryDirectory(prefix="engine-test-redis-") as folder:  # short: a socket path has 107 bytes
        server = start_redis(Path(folder))
        yield server
        server.stop()


@pytest.fixture
def redis_server_url(redis_server: RedisServer) -> str:
    return redis_server.url


@pytest.fixture
async def redis_client(redis_server: RedisServer) -> AsyncIterator[Redis]:
    """A client of the session's Redis, which is empty when the test begins."""
    client = Redis.from_url(redis_server.url, socket_timeout=5)
    await client.flushall()
    yield client
    await client.aclose()


# -- the whole engine --------------------------------------------------------------------------------------------------
class RunningEngine:
    """`engine up` in a process of its own, as a user starts it."""

    def __init__(self, folder: Path, *options: str, env: dict[str, str] | None = None) -> None:
        self.data_dir = folder / "data"
        self.output = folder / "output.txt"
        self.options = options
        self.env = env or {}
        self.process: subprocess.Popen[bytes] | None = None
        self.state: dict[str, Any] = {}

    def start(self) -> None:
        """Start it and wait until it says it is ready; fails with its output when it does not."""
        with self.output.open("ab") as output:
            printed = output.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "engine", "up", "--port", "0", "--data-dir", str(self.data_dir), *self.options],
                stdout=output, stderr=subprocess.STDOUT, env=os.environ | self.env, cwd=self.data_dir.parent, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            assert self.process.poll() is None, f"engine up ended with {self.process.returncode}:\n{self.output.read_text()}"
            assert time.monotonic() < deadline, f"engine up is not ready after {START_TIMEOUT_S} s:\n{self.output.read_text()}"
            if "engine down" in self.output.read_text()[printed:]:  # the last line of the announcement
                self.state = json.loads((self.data_dir / "engine.json").read_text())
                return
            time.sleep(0.05)

    def stop(self, within_s: float = 20) -> int:
        """SIGTERM, as a service manager does; returns the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"engine up does not stop:\n{self.output.read_text()}") from None

    @property
    def url(self) -> str:
        """`http://host:port`."""
        return str(self.state["url"])

    def token(self, user: str = "app", scopes: str = "connect", *, tenant: str = "default", ttl_s: float = 600, **claims: Any) -> str:
        """A valid token of this engine."""
        secret = (self.data_dir / "jwt-secret").read_text().strip()
        return jwt.encode({"sub": user, "scope": scopes, "tenant": tenant, "exp": time.time() + ttl_s, **claims}, secret, "HS256")

    async def publish(self, *items: dict[str, Any], tenant: str = "default") -> list[dict[str, Any]]:
        """Publish; returns the results. Fails unless all are taken."""
        # verify=False: reading the certificates of TLS, which nobody uses here, would cost 20 ms of every publish.
        async with httpx.AsyncClient(timeout=20, trust_env=False, verify=False) as http:
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
        headers = {"Authorization": f"Bearer {self.token(user, tenant=tenant)}"}
        return connect(str(url), subprotocols=["notify.v1.json"], additional_headers=headers, proxy=None, **options)  # type: ignore[list-item]

    async def receive(self, socket: ClientConnection, kind: str, within_s: float = 10) -> dict[str, Any]:
        """The next frame of this type on the socket; others are passed over."""
        async with asyncio.timeout(within_s):
            while True:
                frame: dict[str, Any] = json.loads(await socket.recv())
                if frame["type"] == kind:
                    return frame

    def status(self) -> dict[str, Any]:
        """`GET /v1/status`."""
        headers = {"Authorization": f"Bearer {self.token('admin', 'admin')}"}
        answer = httpx.get(f"{self.url}/v1/status", headers=headers, timeout=20, trust_env=False, verify=False)
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
def running_engine(*options: str, env: dict[str, str] | None = None) -> Iterator[RunningEngine]:
    """A whole engine (2 shards, 1 scheduler, 1 edge, unless the options say otherwise) with a data directory of its own."""
    folder = Path(tempfile.mkdtemp(prefix="engine-test-"))  # short: a socket path has 107 bytes
    running = RunningEngine(folder, *options, env=env)
    try:
        running.start()
        yield running
        running.stop()
    finally:
        if running.process is not None and running.process.poll() is None:
            running.process.kill()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def engine(redis_server: RedisServer) -> Iterator[RunningEngine]:
    """One whole engine for the session. Use users of your own; do not kill parts of it."""
    with running_engine() as running:
        yield running


# -- the browser -------------------------------------------------------------------------------------------------------
def find_chromium() -> str | None:
    """Path of a Chromium: of the system, else the one that `playwright install chromium` fetched."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path:
            return path
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser."""
    path = find_chromium()
    if path is None:
        missing("no Chromium: the browser tests did not run (apt install chromium, or playwright install chromium)")
        raise AssertionError
    return path
