"""A driver of another job on the Ray cluster of the session's engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray

from tests.support.running_engine import RunningEngine


@pytest.fixture(scope="package")
def job(engine: RunningEngine) -> Iterator[Any]:
    """Ray, which this process is connected to, in a namespace of its own."""
    ray.init(address=engine.state["ray_address"], namespace="somebody-else", log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()
