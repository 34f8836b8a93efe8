"""A running engine under any bytes from strangers: some of each kind that `make fuzz` sends for as long as one likes."""

from __future__ import annotations

import pytest
from hypothesis import given, seed, settings

from tests.fuzz.boundaries import BOUNDARIES, Boundary
from tests.fuzz.kept_examples import KEPT
from tests.support.engine_watch import EngineWatch
from tests.support.running_engine import RunningEngine

EXAMPLES = 25


@pytest.fixture(scope="module")
def watch(engine: RunningEngine) -> EngineWatch:
    return EngineWatch(engine)


@pytest.mark.parametrize("boundary", BOUNDARIES, ids=lambda boundary: boundary.name)
async def test_any_bytes_get_a_right_answer_or_none_and_nobody_else_notices(
    engine: RunningEngine, watch: EngineWatch, boundary: Boundary
) -> None:
    @seed(1)
    @settings(max_examples=EXAMPLES, database=None)
    @given(boundary.pieces)
    def any_bytes(pieces: list[bytes]) -> None:
        boundary.attack(engine, pieces)
        watch.check_log()  # at once, so that the example is shrunk which an error is of

    any_bytes()
    watch.check_processes()
    await watch.check_service(f"beside-{boundary.name}")


@pytest.mark.parametrize(("name", "pieces"), KEPT)
def test_what_once_broke_the_engine_does_not_any_more(engine: RunningEngine, watch: EngineWatch, name: str, pieces: list[bytes]) -> None:
    next(boundary for boundary in BOUNDARIES if boundary.name == name).attack(engine, pieces)
    watch.check_log()
    watch.check_processes()
