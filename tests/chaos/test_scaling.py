"""Other numbers of actors under load, while parts of the engine are killed: nothing accepted is lost, order is kept.

`python -m bench chaos --scenario scale-killing` does the same with larger numbers.
"""

from __future__ import annotations

import pytest

from tests.support.chaos.breakable_engine import SMALL, assert_whole, status_when, victim_of
from tests.support.chaos.faults import scaled
from tests.support.chaos.scenarios import Place, Scenario, strike
from tests.support.running_engine import RunningEngine

pytestmark = [pytest.mark.slow, pytest.mark.engine]


async def test_shards_schedulers_and_edges_come_and_go_while_parts_are_killed_and_nothing_is_lost(victim: RunningEngine) -> None:
    await status_when(victim, lambda status: status["ready"])
    numbers = {"shards": 3, "schedulers": 2, "edges": 2}, {"shards": 2, "schedulers": 1, "edges": 1}
    scenario = Scenario("scale", "up and down", scaled(*numbers, killing=True), within_s=120)
    books = await strike(Place(victim_of(victim)), scenario, "scale", 0.3, **SMALL)
    assert_whole(books)
    assert books["killed"] > 0
