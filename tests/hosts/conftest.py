"""Two hosts with one engine, for the whole folder: starting them takes longer than most of its tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.engine_on_hosts import EngineOnHosts
from tests.support.hosts import Network, require_namespaces


@pytest.fixture(scope="package")
def ray_nodes() -> Iterator[EngineOnHosts]:
    """Hosts a and b, and on them one Ray cluster and a Redis."""
    require_namespaces()
    with Network() as network:
        running = EngineOnHosts(network.host("a"), network.host("b"))
        running.start_ray()
        yield running


@pytest.fixture(scope="package")
def cluster(ray_nodes: EngineOnHosts) -> Iterator[EngineOnHosts]:
    """An engine on hosts a and b. It must be whole again when a test ends, but shards may be on the other host."""
    ray_nodes.start()
    yield ray_nodes
    assert ray_nodes.stop() == 0
