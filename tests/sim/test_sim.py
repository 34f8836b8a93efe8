"""Many small worlds under every fault: no promise is broken in any of them. `make sim` runs more."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.sim.faults import CLASSES
from tests.sim.many import SEEDS, Totals, run_here, trace
from tests.sim.shrink import report
from tests.sim.world import STORAGE_FAULTS, Options, World

SEEDS_MAX = 400
"""The first 17 worlds meet every situation: where a change moves what happens in which world, a few more have to meet it."""

PART = 20  # seeds of one test: none may take minutes, on any machine
FIRST_SEED = 1
PARTS = range(FIRST_SEED, FIRST_SEED + SEEDS, PART)
MORE = range(FIRST_SEED + SEEDS, FIRST_SEED + SEEDS_MAX, PART)

ONCE_BROKEN = (247, 524, 905, 993, 2080, 3047, 4170, 20021, 41098, 70411, 79090, 200732, 910072, 12002997)
"""Seeds that found a defect, in the engine or in the books."""

TWO_STORES = (100, 136, 301)
"""Seeds of worlds with two stores, beside the one that is among the first."""

ONE_STORE_FAILS = (36, 100, 301)
"""Of these worlds faults of storage strike one store only: the first one, or the second one."""

pytestmark = pytest.mark.usefixtures("lua")


@cache
def run_part(first: int) -> Totals:
    return run_here(Options(seed) for seed in range(first, first + PART))


@pytest.mark.parametrize("first", [pytest.param(first, marks=() if first == FIRST_SEED else pytest.mark.slow) for first in PARTS])
def test_no_promise_is_broken_in_sixty_worlds(first: int) -> None:
    totals = run_part(first)
    assert not totals.failed, "\n\n".join(report(Options(seed)) for seed in list(totals.failed)[:1])
    assert totals.steps >= PART * Options(0).steps


@cache
def run_two_stores() -> Totals:
    return run_here(map(Options, TWO_STORES))


def test_no_promise_is_broken_in_worlds_of_two_stores() -> None:
    totals = run_two_stores()
    assert not totals.failed, "\n\n".join(report(Options(seed)) for seed in list(totals.failed)[:1])
    assert totals.seen["two stores"] == totals.seeds


def test_a_store_that_fails_refuses_no_user_of_another() -> None:
    totals = run_here(Options(seed, enabled=STORAGE_FAULTS) for seed in ONE_STORE_FAILS)
    assert not totals.failed
    assert all(totals.struck[name] for name in STORAGE_FAULTS)
    assert totals.seen["503"]
    assert totals.seen["accepted while another store is away"]


@pytest.mark.slow
def test_the_worlds_meet_every_fault_and_every_situation() -> None:
    faulthandler.cancel_dump_traceback_later()  # alone it runs all parts: minutes on a busy machine, and it ends by itself
    totals = Totals(struck=Counter(), seen=Counter(), failed={})
    totals.merge(run_two_stores())
    for first in (*PARTS, *MORE):
        if first in PARTS or totals.never():
            totals.merge(run_part(first))
    print(f"{totals.seeds} seeds, {totals.steps} steps, {totals.virtual_s:.0f} s of simulated time in {totals.real_s:.0f} s of one core")
    assert not totals.never(), "never exercised, so nothing is known about it"


@pytest.mark.parametrize("seed", ONCE_BROKEN)
def test_no_promise_is_broken_in_a_world_where_one_was(seed: int) -> None:
    outcome = World(Options(seed)).run()
    assert not outcome.failure, report(Options(seed))


def test_without_faults_nothing_is_refused_and_nobody_restarts() -> None:
    for seed in range(5):
        outcome = World(Options(seed, enabled=frozenset())).run()
        assert not outcome.failure
        assert not outcome.struck
        assert outcome.seen["503"] == outcome.seen["recoveries"] == outcome.seen["fenced"] == 0


def test_while_nothing_fails_the_number_of_schedulers_changes_without_a_refusal() -> None:
    struck = followed = 0
    for seed in range(1, 13):
        outcome = World(Options(seed, enabled=frozenset({"scale-schedulers"}))).run()
        assert not outcome.failure
        assert outcome.seen["503"] == outcome.seen["fenced"] == 0
        struck, followed = struck + outcome.struck["scale-schedulers"], followed + outcome.seen["followed"]
    assert struck
    assert followed


def test_while_nothing_fails_the_number_of_shards_changes_without_a_refusal() -> None:
    added = removed = 0
    for seed in (6, 18, 20, 25, 27, 31):
        outcome = World(Options(seed, enabled=frozenset({"scale-shards"}))).run()
        assert not outcome.failure
        assert outcome.seen["503"] == outcome.seen["fenced"] == 0
        added, removed = added + outcome.seen["shards added"], removed + outcome.seen["shards removed"]
    assert added
    assert removed


def test_a_seed_replays_exactly_also_in_another_process() -> None:
    here = trace(6)
    assert here == trace(6)
    program = "import sys; from tests.sim.many import trace; sys.stdout.write('\\n'.join(trace(6)))"
    elsewhere = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=True,
        text=True,
        timeout=100,
        cwd=Path(__file__).parent.parent.parent,
        env={**os.environ, "PYTHONHASHSEED": "2"},
    )
    assert elsewhere.stdout.split("\n") == here


def test_leaving_a_fault_class_out_leaves_the_draws_of_the_others_as_they_were() -> None:
    one, other = World(Options(5)), World(Options(5, enabled=frozenset(CLASSES) - {"partition"}))
    for name in CLASSES:
        assert one.faults.rng(name).getstate() == other.faults.rng(name).getstate()
