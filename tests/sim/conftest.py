"""The simulator runs the engine's Lua scripts in a real Lua, and worlds on all cores.

Worlds take minutes of every core, while most tests of real processes wait for something. So the worlds begin when the first test does, in
processes that the kernel runs only when nobody else wants its cores (SCHED_IDLE); what is left of them when their own tests ask goes on as
any other process.
"""

from __future__ import annotations

import pytest

from tests.sim import redis
from tests.sim.background import Background
from tests.support.missing_programs import missing


@pytest.fixture(scope="session")
def lua() -> None:
    if redis.lua51 is None:
        missing("no lupa: nothing was simulated (it is one of the packages of requirements-test.txt)")


_background = Background()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin what the chosen tests ask for by `@pytest.mark.background(work=...)`: `work` of their one parameter."""
    if redis.lua51 is None or session.config.option.collectonly:
        return
    for item in session.items:
        mark = item.get_closest_marker("background")
        if mark is not None and isinstance(item, pytest.Function):
            (argument,) = item.callspec.params.values()
            _background.begin(mark.kwargs["work"], argument)


def pytest_sessionfinish() -> None:
    _background.end()


@pytest.fixture(scope="session")
def background() -> Background:
    return _background
