"""One Ray cluster for the folder, shared by engines and by a job of somebody else."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chaos.sentinel_group import PASSWORD
from tests.support.running_engine import RunningEngine
from tests.support.shared_cluster import EVENTS_DATABASE, SharedCluster, shared_cluster

JWT_SECRET = "a-marker-that-signs-the-tokens-of-one"


@pytest.fixture(scope="package")
def cluster() -> Iterator[SharedCluster]:
    folder = Path(tempfile.mkdtemp(prefix="engine-cluster-"))
    try:
        with shared_cluster(folder) as made:
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="package")
def one(cluster: SharedCluster) -> Iterator[RunningEngine]:
    """An engine with secrets of its operator."""
    engine = cluster.engine("one", database=0, ENGINE_JWT_SECRET=JWT_SECRET)
    engine.start()
    yield engine
    assert engine.stop() == 0


@pytest.fixture(scope="package")
def engine_of_events(cluster: SharedCluster) -> Iterator[RunningEngine]:
    """An engine that is told of Ray's events, and whose cluster's jobs may publish."""
    settings = {"ENGINE_RAY_EVENTS": "default", "ENGINE_RAY_EVENTS_USERS": "ops", "ENGINE_RAY_EVENTS_SECRET": cluster.events_secret}
    engine = cluster.engine("events", database=EVENTS_DATABASE, port=cluster.events_port, **settings, ENGINE_RAY_PUBLISH="default")
    engine.start()
    yield engine
    assert engine.stop() == 0


@pytest.fixture(scope="package")
def markers() -> tuple[str, ...]:
    """What must be nowhere: the password of Redis and the secret of the tokens."""
    return PASSWORD, JWT_SECRET
