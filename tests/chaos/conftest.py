"""The engine that these tests kill parts of: one for the folder, because starting one takes seconds."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import RedisServer, RunningEngine


@pytest.fixture(scope="package")
def victim(redis_server: RedisServer) -> Iterator[RunningEngine]:
    """An engine whose parts may be killed. It must be whole again when a test ends."""
    folder = Path(tempfile.mkdtemp(prefix="engine-chaos-"))
    running = RunningEngine(folder)
    try:
        running.start()
        yield running
        running.stop()
    finally:
        if running.process is not None and running.process.poll() is None:
            running.process.kill()
        shutil.rmtree(folder, ignore_errors=True)
