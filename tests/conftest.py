"""What all tests share: a real Redis, one real engine for the whole session, and the search for a browser.

A test that uses one of these fixtures gets the marker of the same name, so `make check` can leave the slow ones out. Where a
program is missing, its tests are skipped and the end of the run says so loudly; with CI=true they fail.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvloop
from hypothesis import HealthCheck, Phase, settings
from redis.asyncio import Redis

import tests.support.ray_settings  # noqa: F401  for what it sets
from engine.config import Config
from engine.store.redis_client import connect
from tests.support.missing_programs import missing, missing_of
from tests.support.otlp_receiver import OtlpReceiver, otlp_receiver
from tests.support.postgresql_server import PostgresqlServer
from tests.support.redis_server import RedisServer, redis_to_break
from tests.support.running_engine import RunningEngine, running_engine
from tests.support.steady_ast import steady_ast
from tests.support.worker_groups import ENGINES, GroupScheduling, group_of

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from tests.support.edge_world import EdgeWorld

QUICK_EXAMPLES = 10  # of each property, in `make check`
MARKER_OF_FIXTURE = {"redis_server": "redis", "engine": "engine", "chromium": "browser"}

for _name in [name for name in os.environ if name.startswith("ENGINE_")]:
    del os.environ[_name]  # a developer's settings must not decide what the tests see

steady_ast()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="fewer examples of each property: a first answer, not a proof")
    parser.addoption("--ray-links", action="store_true", help="engines that tests start talk by Ray calls only")
    parser.addoption("--explore", action="store_true", help="other examples of each property than those of every run")


EDGE_FOLDERS = ("http", "auth", "publish", "gateway", "api", "transports", "outside", "test_routes.py")


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests of an edge's packages run on uvloop, as edges do: its flow control differs from asyncio's own."""
    if item.path.relative_to(Path(__file__).parent).parts[0] in EDGE_FOLDERS or item.path.name == "test_endpoints.py":
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--ray-links"):
        os.environ["ENGINE_LINK_TRANSPORT"] = "ray"
    # Speed is measured in bench/; a busy machine must not fail a property by its deadline of 200 ms.
    # And explaining a failure takes minutes of tracing, more than a test may take: the shrunk example has to do.
    # What a change has broken fails with that change: every run has the same examples, and `--explore` looks for new ones.
    phases = [phase for phase in Phase if phase is not Phase.explain]
    same = not config.getoption("--explore")
    slow = [HealthCheck.too_slow]
    calm = settings(settings.default, deadline=None, suppress_health_check=slow, phases=phases, derandomize=same)
    settings.register_profile("calm", calm)
    settings.register_profile("quick", calm, max_examples=QUICK_EXAMPLES)
    settings.load_profile("quick" if config.getoption("--quick") else "calm")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return GroupScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for fixture, group in ENGINES.items():
            if fixture in getattr(item, "fixturenames", ()) and group_of(item.nodeid) != group:
                raise pytest.UsageError(f"{item.nodeid} uses `{fixture}`: add it to {group!r} in tests/support/worker_groups.py")
        if config.getoption("--quick"):
            _take_few_examples(getattr(item, "cls", None), "settings")
            _take_few_examples(getattr(item, "obj", None), "_hypothesis_internal_use_settings")  # where `@settings` leaves them
        for fixture, marker in MARKER_OF_FIXTURE.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(marker)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep garbage collection from the tests: they live until the end. It took a sixth of collecting them, and a tenth of the CPU later.

    After them it is due less often: every 700 objects, it took a tenth of what tests of properties compute.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000)
        gc.enable()


def _take_few_examples(owner: Any, name: str) -> None:
    """For a first answer: settings of a state machine or a property that want more."""
    chosen = getattr(owner, name, None)
    if isinstance(chosen, settings) and chosen.max_examples > QUICK_EXAMPLES:
        setattr(owner, name, settings(chosen, max_examples=QUICK_EXAMPLES))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not_tested := missing_of(terminalreporter.stats.get("skipped", [])):
        terminalreporter.section("NOT TESTED", sep="!", red=True, bold=True)
        for what in not_tested:
            terminalreporter.write_line(what, red=True)


# -- Redis -------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One Redis for the session; use `redis_client` for a clean one."""
    with redis_to_break() as server:
        yield server


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    """One PostgreSQL for the session; `tests.support.history_databases.emptied` for a clean one. A test that kills it starts it again."""
    server = PostgresqlServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def redis_server_url(redis_server: RedisServer) -> str:
    return redis_server.url


@pytest.fixture
async def redis_client(redis_server: RedisServer) -> AsyncIterator[Redis]:
    """A client of the session's Redis, which is empty when the test begins. It is the engine's own: its users can always be cancelled."""
    client = connect(Config(redis_url=redis_server.url, redis_timeout_ms=5000))
    await client.flushall()
    yield client
    await client.aclose()


# -- one edge ----------------------------------------------------------------------------------------------------------
@pytest.fixture
async def world() -> AsyncIterator[EdgeWorld]:
    """An edge with the usual settings; a module whose tests need others has a fixture of this name."""
    from tests.support.edge_world import edge_world

    async with edge_world() as world:
        yield world


@pytest.fixture
async def client(world: EdgeWorld) -> AsyncIterator[httpx.AsyncClient]:
    """Makes requests of that edge with the token of an admin who may publish."""
    async with world.http() as client:
        yield client


@pytest.fixture
async def socket(world: EdgeWorld) -> AsyncIterator[ClientConnection]:
    """A WebSocket of a user of that edge."""
    async with world.connect() as socket:
        yield socket


ACTING_RULES = Path(__file__).parent / "data" / "acting_rules.toml"


# -- the whole engine --------------------------------------------------------------------------------------------------
PARTS_OF_ENGINE = pytest.StashKey[ExitStack]()


@pytest.fixture(scope="session")
def collector() -> Iterator[OtlpReceiver]:
    """Where the session's engine sends its spans: of what has a sampled `traceparent`, or fails."""
    with otlp_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest, redis_server: RedisServer, collector: OtlpReceiver) -> Iterator[RunningEngine]:
    """One whole engine for the session, with rules that act. Use users of your own; do not kill parts of it.

    Ray jobs may publish and listen.
    """
    env = {"ENGINE_RAY_PUBLISH": "default,jobs,quiet", "ENGINE_RAY_LISTEN": "default,jobs,watched", "ENGINE_RULES_PATH": str(ACTING_RULES)}
    env |= {"ENGINE_WEBHOOK_HOSTS": "127.0.0.1", "ENGINE_WEBHOOK_SECRET": f"whsec_{b64encode(bytes(32)).decode()}"}
    env |= {"ENGINE_TRACE_URL": collector.url, "ENGINE_TRACE_RATIO": "0", "OTEL_BSP_SCHEDULE_DELAY": "200"}
    with ExitStack() as parts:
        request.session.stash[PARTS_OF_ENGINE] = parts
        yield parts.enter_context(running_engine(env=env))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """A worker that is done with the group of the session's engine ends it, which would take a tenth of a core from all later tests."""
    done = group_of(item.nodeid) == "engine" and nextitem is not None and group_of(nextitem.nodeid) != "engine"
    if done and hasattr(item.config, "workerinput"):  # one process has the group's tests among others
        item.session.stash.get(PARTS_OF_ENGINE, ExitStack()).close()


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


@pytest.fixture(scope="session")
def headless_shell(chromium: str) -> str:
    """Path of Chromium without windows, notifications and permissions, a third of the CPU; of Chromium where there is none."""
    return shutil.which("chromium-headless-shell") or chromium


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data directory of commands that run in the test's process, in its working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("ENGINE_JWT_SECRET", "a-secret-for-tests-of-32-characters!")
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "data").mkdir()
    return tmp_path / "data"
