"""An engine under measurement: started as its user starts it, in a data directory of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from redis import Redis

from bench.books import Books, Ledger, Listener
from bench.load import HttpPublisher, connect
from bench.processes import BY_PROGRAM, Processes
from bench.system import System
from engine.auth.tokens import mint
from engine.cli.settings import variable
from engine.store.embedded_redis import dying_with_parent
from tests.support.free_port import free_port
from tests.support.load.poster import Poster
from tests.support.process_tree import tree

SECRET = "bench-secret-0123456789abcdef0123456789abcdef"
START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 30
_LINK_CALLS = re.compile(rb'^engine_edge_link_calls_total\{edge="[^"]+"\} (\S+)$', re.MULTILINE)


class Place(Struct, frozen=True):
    """Where an engine is started.

    Attributes:
        host: the address of its edges, for clients.
        command: begins every command there.
        env: of commands there, beside this process's.
        settings: of engines there; names as in engine.config.
        roots: processes whose descendants belong to the engine too, beside its starter's.
    """

    host: str = "127.0.0.1"
    command: Sequence[str] = ()
    env: dict[str, str] = {}
    settings: Mapping[str, object] = {}
    roots: Callable[[], Sequence[int]] = tuple


HERE = Place()
"""This machine, with a Ray and a Redis of the engine's own."""


def _node_urls(redis_url: str) -> list[str]:
    """The URL of each server that the URL of a cluster names; any other URL alone."""
    scheme, _, rest = redis_url.partition("://")
    if not scheme.endswith("+cluster"):
        return [redis_url]
    login, at, hosts = rest.partition("/")[0].rpartition("@")
    return [f"{scheme.removesuffix('+cluster')}://{login}{at}{host}" for host in hosts.split(",")]


class Engine(System):
    """A running engine: `pid` of its starter, `port`, tokens.

    Args:
        redis_url: of its Redis; that of the engine's own when left out.
    """

    name = "engine"
    acknowledges = "one cumulative ACK per frame"
    recovers = "cursor, offline stream"

    def __init__(self, pid: int, port: int, data_dir: Path, place: Place = HERE, redis_url: str = "") -> None:
        self.pid = pid
        self.port = port
        self.data_dir = data_dir
        self._host = place.host
        self._tokens: dict[int, str] = {}
        self._processes = Processes(dict.fromkeys([pid, *place.roots()], BY_PROGRAM))
        run = data_dir / "redis" / "run"  # where its socket is when the data directory's path is too long for one
        self.redis_url = redis_url or f"unix://{(run if run.exists() else data_dir / 'redis') / 'redis.sock'}"

    @property
    def processes(self) -> Processes:
        return self._processes

    def user_name(self, user: int) -> str:
        return f"u{user}"

    def token(self, user: str, *scopes: str) -> str:
        """A token for an hour or two."""
        return mint(SECRET, user, scopes or ("connect",), 7200, now_s=time.time())

    async def connect(self, books: Books, ledger: Ledger) -> Listener:
        user = ledger.user
        if user not in self._tokens:
            self._tokens[user] = self.token(self.user_name(user))
        return await connect(books, ledger, self.port, self._tokens[user], self._host)

    async def publisher(self, users: int) -> HttpPublisher:
        return await HttpPublisher.open(self.port, self.token("bench", "publish"), self.user_name, users, self._host)

    def redis(self) -> Redis:
        """A connection to its Redis, to be closed."""
        return Redis.from_url(self.redis_url)

    async def counters(self) -> Mapping[str, int]:
        """Calls of all edges to shards and schedulers, Redis' commands and bytes in and out."""
        found = []
        for url in _node_urls(self.redis_url):
            with Redis.from_url(url) as redis:
                found.append(redis.info("stats"))
        return {
            "exchanges": await self._link_calls(),
            "redis_commands": sum(stats["total_commands_processed"] for stats in found),
            "redis_bytes": sum(stats["total_net_input_bytes"] + stats["total_net_output_bytes"] for stats in found),
        }

    async def _link_calls(self) -> int:
        poster = await Poster.open(self.port, f"Authorization: Bearer {self.token('bench', 'metrics')}\r\n", self._host)
        _, _, text = await poster.request("GET", "/metrics")
        poster.close()
        return sum(int(float(count)) for count in _LINK_CALLS.findall(text))

    async def status(self) -> dict[str, object]:
        """`GET /v1/status`: the engine as its controller saw it within the last second."""
        poster = await Poster.open(self.port, f"Authorization: Bearer {self.token('bench', 'operator')}\r\n", self._host)
        _, _, body = await poster.request("GET", "/v1/status")
        poster.close()
        answer: dict[str, object] = msgspec.json.decode(body)
        return answer


@contextlib.contextmanager
def engine(place: Place = HERE, **options: object) -> Iterator[Engine]:
    """An engine with these settings (names as in engine.config), stopped at the end. Its output is in the data directory."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="engine-bench-", ignore_cleanup_errors=True) as folder:
        settings = {"port": port, "data_dir": f"{folder}/data", "jwt_secret": SECRET, "shards": 1, "edges": 1, **place.settings, **options}
        settings.setdefault("connections_per_s", 100_000)  # what connections cost is measured, not how many are let in
        env = {name: value for name, value in (os.environ | place.env).items() if not name.startswith("ENGINE_")}
        env |= {variable(name): str(value) for name, value in settings.items()}
        log = Path(folder, "engine.log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                dying_with_parent([*place.command, sys.executable, "-m", "engine", "up"]),
                env=env, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            _wait_ready(process, f"http://{place.host}:{port}/readyz", log)
            _wait_parts(log)
            redis_url = str(settings.get("redis_url", ""))
            yield Engine(process.pid, port, Path(folder, "data"), place, redis_url)
        finally:
            if place.command and (below := tree(process.pid)[1:]):
                os.kill(below[0], signal.SIGTERM)  # a command that runs another elsewhere does not pass signals on
            else:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_parts(log: Path) -> None:
    """Every part serves: an edge that joined later would get its part of the connections, and clients here do not come back."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while b"\nready in " not in log.read_bytes():
        if time.monotonic() > deadline:
            raise SystemExit("not all parts of the engine serve")
        time.sleep(0.05)


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # none stands between this machine and its namespaces
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), opener.open(url, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise SystemExit(f"the engine is not ready:\n{log.read_text()[-4000:]}")
