"""Many small worlds under every fault: no promise is broken in any of them. `make sim` runs more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.sim.background import Background
from tests.sim.faults import CLASSES
from tests.sim.many import Totals, run_here
from tests.sim.shrink import report
from tests.sim.world import Options, World

SEEDS = 1000
PART = 50  # seeds of one test: none may take minutes, on any machine
QUICK_SEEDS = 40
FIRST_SEED = 1
PARTS = range(FIRST_SEED, FIRST_SEED + SEEDS, PART)

pytestmark = pytest.mark.usefixtures("lua")


def run_part(first: int) -> Totals:
    return run_here(Options(seed) for seed in range(first, first + PART))


@pytest.mark.slow
@pytest.mark.background(work=run_part)
@pytest.mark.parametrize("first", PARTS)
def test_no_promise_is_broken_in_a_thousand_worlds(background: Background, first: int) -> None:
    totals = background.result(run_part, first)
    assert not totals.failed, "\n\n".join(report(Options(seed)) for seed in list(totals.failed)[:1])
    assert totals.steps >= PART * Options(0).steps


@pytest.mark.slow
def test_a_thousand_worlds_meet_every_fault_and_every_situation(background: Background) -> None:
    totals = Totals(struck=Counter(), seen=Counter(), failed={})
    for first in PARTS:
        totals.merge(background.result(run_part, first))
    print(f"{totals.seeds} seeds, {totals.steps} steps, {totals.virtual_s:.0f} s of simulated time in {totals.real_s:.0f} s of one core")
    assert not totals.never(), "never exercised, so nothing is known about it"


def test_no_promise_is_broken_in_the_first_worlds() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + QUICK_SEEDS):
        outcome = World(Options(seed)).run()
        assert not outcome.failure, report(Options(seed))


def test_without_faults_nothing_is_refused_and_nobody_restarts() -> None:
    for seed in range(5):
        outcome = World(Options(seed, enabled=frozenset())).run()
        assert not outcome.failure
        assert not outcome.struck
        assert outcome.seen["503"] == outcome.seen["recoveries"] == outcome.seen["fenced"] == 0


def trace(seed: int) -> list[str]:
    lines: list[str] = []
    World(Options(seed), lambda user, line: lines.append(user + line)).run()
    return lines


def test_a_seed_replays_exactly_also_in_another_process() -> None:
    here = trace(11)
    assert here == trace(11)
    program = "import sys; from tests.sim.test_sim import trace; sys.stdout.write('\\n'.join(trace(11)))"
    elsewhere = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=True,
        text=True,
        timeout=100,
        cwd=Path(__file__).parent.parent.parent,
        env={**os.environ, "PYTHONHASHSEED": "77"},
    )
    assert elsewhere.stdout.split("\n") == here


def test_leaving_a_fault_class_out_leaves_the_draws_of_the_others_as_they_were() -> None:
    one, other = World(Options(5)), World(Options(5, enabled=frozenset(CLASSES) - {"partition"}))
    for name in CLASSES:
        assert one.faults.rng(name).getstate() == other.faults.rng(name).getstate()
