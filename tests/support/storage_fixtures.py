"""Fixtures of tests of storage, for the `conftest.py` of their folders."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.redis_server import RedisServer, redis_to_break


def begin_now(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis expires by its own clock: a test begins now, not when its file, or the one it borrows from, was read some minutes ago."""
    now_ms = int(time.time() * 1000)
    if hasattr(request.module, "NOW_MS"):
        monkeypatch.setattr(request.module, "NOW_MS", now_ms)


@pytest.fixture(autouse=True)
def now(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_now(request, monkeypatch)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A Redis that a module's tests may change and break."""
    with redis_to_break() as running:
        yield running
