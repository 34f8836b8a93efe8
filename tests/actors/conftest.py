"""Engines with settings that only these tests need; each starts once, because starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.running_engine import RunningEngine, running_engine


@pytest.fixture(scope="package")
def two_edges() -> Iterator[RunningEngine]:
    """Two edges behind one port. Its parts may be stopped and killed, and its controller loses patience early.

    `test_stopping.py` ends it.
    """
    patience = {"ENGINE_INTERNAL_HEALTH_TIMEOUT_MS": "3000", "ENGINE_INTERNAL_HEALTH_MS": "500"}
    settings = {"ENGINE_DRAIN_SPREAD_MS": "1500", "ENGINE_CONNECTIONS_PER_S": "1000"}
    # Nobody is refused because the machine is slow, only for memory, of which there is little.
    settings |= {"ENGINE_INTERNAL_PUBLISH_DELAY_TARGET_MS": "60000", "ENGINE_INTERNAL_PRESSURE_LAG_MS": "60000"}
    settings["ENGINE_SHARD_MEMORY_BYTES_MAX"] = str(16 << 20)
    with running_engine("--edges", "2", "--shards", "1", env=patience | settings) as running:
        yield running


@pytest.fixture(scope="package")
def pressed() -> Iterator[RunningEngine]:
    """An engine that lets nobody wait for long, so that it is soon beyond its capacity; its controller asks its parts every ten minutes."""
    settings = {"ENGINE_INTERNAL_PUBLISH_DELAY_TARGET_MS": "100", "ENGINE_INTERNAL_HEALTH_MS": "600000"}
    with running_engine("--shards", "1", env=settings) as running:
        yield running
