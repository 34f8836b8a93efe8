"""What the tests of storage share."""

from __future__ import annotations

import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.data_directory_observer import RECORDING, SETTINGS
from tests.support.redis_server import RedisServer, redis_to_break
from tests.support.running_engine import RunningEngine, running_engine


@pytest.fixture(autouse=True)
def now(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis expires by its own clock: a test begins now, not when its file, or the one it borrows from, was read some minutes ago."""
    now_ms = int(time.time() * 1000)
    if hasattr(request.module, "NOW_MS"):
        monkeypatch.setattr(request.module, "NOW_MS", now_ms)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A Redis that a module's tests may change and break."""
    with redis_to_break() as running:
        yield running


@pytest.fixture(scope="package")
def upgraded() -> Iterator[RunningEngine]:
    """An engine of this version on a copy of the data directory that 65fafe9 left."""
    with tempfile.TemporaryDirectory(prefix="engine-test-") as folder:  # short: a socket path has 107 bytes
        with tarfile.open(RECORDING / "data.tar.gz") as archive:
            archive.extractall(Path(folder) / "data", filter="data")
        with running_engine(env=SETTINGS, folder=Path(folder)) as running:
            yield running
