"""What the tests of storage share."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.redis_server import RedisServer, redis_to_break


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
