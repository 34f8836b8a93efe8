"""The simulator runs the engine's Lua scripts in a real Lua."""

from __future__ import annotations

import pytest

from tests.conftest import missing
from tests.sim import redis


@pytest.fixture(scope="session")
def lua() -> None:
    if redis.lua51 is None:
        missing("no lupa: nothing was simulated (it is one of the packages of requirements-test.txt)")
