"""The simulator, tested: whatever keeps a promise is taken out of the engine, and the simulator has to see the promise broken."""

from __future__ import annotations

import pytest

from tests.sim.detection import ALONE, SEEN_AT, failures, options_of
from tests.sim.many import SEEDS
from tests.sim.mutations import MUTATIONS, followers_read_late
from tests.sim.world import Options, World

pytestmark = [pytest.mark.usefixtures("lua"), pytest.mark.slow]


def kept(name: str) -> tuple[int, ...]:
    return SEEN_AT.get(name, (1,))


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_recorded_seed_shows_each_mutation(name: str) -> None:
    seed, failure = next(failures(name, kept(name)), (0, ""))
    print(f"{name}: seed {seed}; {failure}")
    assert seed, f"no seed of {kept(name)} shows it any more: `python -m tests.sim --mutations {name}` finds others, for SEEN_AT"
    # A mutation that no longer fits the code it patches breaks something else than a promise.
    assert "TypeError" not in failure
    assert "AttributeError" not in failure
    if name in ALONE or seed > SEEDS:  # the other worlds are those of test_sim.py
        assert not World(options_of(name, seed)).run().failure, "the engine as it is breaks something there, too"


def test_followers_that_read_late_break_nothing_by_themselves() -> None:
    """The mutation that has them is found for what else it does."""
    name = "a_shard_that_gets_slots_sets_their_cursors_back"
    with followers_read_late():
        assert not World(Options(SEEN_AT[name][0], enabled=ALONE[name])).run().failure
