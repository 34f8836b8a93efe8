"""The simulator, tested: whatever keeps a promise is taken out of the engine, and the simulator has to see the promise broken."""

from __future__ import annotations

import faulthandler

import pytest

from tests.sim.detection import SEEN_AT, failure_at, first_failure
from tests.sim.mutations import MUTATIONS

pytestmark = [pytest.mark.usefixtures("lua"), pytest.mark.slow]


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_found_within_a_thousand_seeds(name: str) -> None:
    seed = SEEN_AT.get(name, 1)
    failure = failure_at(name, seed)
    if not failure:
        faulthandler.cancel_dump_traceback_later()  # this may take minutes, and ends by itself: worlds and their steps are numbered
        seed, failure = first_failure(name)
    print(f"{name}: seed {seed}; {failure}")
    assert seed
    # A mutation that no longer fits the code it patches breaks something else than a promise.
    assert "TypeError" not in failure
    assert "AttributeError" not in failure
