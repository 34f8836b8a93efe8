"""The simulator runs the engine's Lua scripts in a real Lua, and worlds on all cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.pool import Pool

import pytest

from tests.conftest import missing
from tests.sim import redis


@pytest.fixture(scope="session")
def lua() -> None:
    if redis.lua51 is None:
        missing("no lupa: nothing was simulated (it is one of the packages of requirements-test.txt)")


@pytest.fixture(scope="session")
def workers(lua: None) -> Iterator[Pool]:
    """One process per core, each begun anew: a test process holds threads and sockets that must not be copied."""
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        yield pool
