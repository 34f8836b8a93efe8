"""The simulator, tested: whatever keeps a promise is taken out of the engine, and the simulator has to see the promise broken."""

from __future__ import annotations

import multiprocessing
import os

import pytest

from tests.sim.mutations import MUTATIONS
from tests.sim.world import Options, World

SEEDS_MAX = 1000

pytestmark = [pytest.mark.usefixtures("lua"), pytest.mark.slow]


def first_failure(name: str) -> tuple[str, int, str]:
    """The mutation, how many seeds it took, and what was seen; 0 seeds when it was never found."""
    with MUTATIONS[name]():
        for seed in range(1, SEEDS_MAX + 1):
            outcome = World(Options(seed)).run()
            if outcome.failure:
                return name, seed, outcome.failure
    return name, 0, ""


def test_every_mutation_is_found_within_a_thousand_seeds() -> None:
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        found = list(pool.imap(first_failure, MUTATIONS))
    for name, seeds, failure in found:
        print(f"{seeds:5d}  {name}: {failure}")
    assert not [name for name, seeds, _ in found if not seeds]
    # A mutation that no longer fits the code it patches breaks something else than a promise.
    assert not [name for name, _, failure in found if "TypeError" in failure or "AttributeError" in failure]
