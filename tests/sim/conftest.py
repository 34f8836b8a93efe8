"""The simulator runs the engine's Lua scripts in a real Lua."""

from __future__ import annotations

import pytest

from tests.sim import redis
from tests.support.missing_programs import missing


@pytest.fixture(scope="session")
def lua() -> None:
    if redis.lua51 is None:
        missing("no lupa: nothing was simulated (it is one of the packages of requirements/test.txt)")
