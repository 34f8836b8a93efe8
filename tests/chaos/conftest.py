"""The engine that these tests break parts of: one for the folder, because starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import RedisServer, RunningEngine, running_engine


@pytest.fixture(scope="package")
def victim(redis_server: RedisServer) -> Iterator[RunningEngine]:
    """An engine whose parts may be killed. It must be whole again when a test ends."""
    with running_engine() as running:
        yield running
