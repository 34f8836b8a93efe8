"""Many seeds on all cores: what ran, what struck, what was seen, and what failed."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from time import monotonic

from msgspec import Struct

from tests.sim.faults import CLASSES
from tests.sim.world import Options, Outcome, World

SEEDS = 60
"""Worlds of every run of the tests, 30 s of one core. New seeds are for `make sim`, by the hour."""

SIGHTS = (
    "accepted", "duplicate", "503", "rolled back", "contradictions refused", "scheduled", "timers fired", "cancelled",
    "shown", "early copies", "early copies acked",
    "early copies refused", "repeats", "gaps", "revoked", "refused", "nacked", "resumed new", "resumed ok", "resumed gap", "odd cursors",
    "429", "counted", "merged", "answered merged", "windows closed", "conflated", "pressure 1", "pressure 2", "pressure 3", "spilled low",
    "limited", "suppressed", "answered suppressed", "broadcasts", "announced", "adopted", "adopted by members", "subscribed",
    "broadcasts dropped",
    "acked by ids", "acked twice", "vanished", "recoveries", "fenced", "clock set back", "zombies woken", "groups trimmed", "pages",
    "two stores", "accepted while another store is away", "hand-overs within a store", "recoveries of two stores",
    "two owners in two stores",
    "followed", "shards added", "shards removed", "edge ended for the next one", "controller ended for the next one",
)  # fmt: skip
"""What a set of runs must really have met: a promise that was never put to the test is not kept."""


class Totals(Struct):
    """The sum of many runs. `failed` are the seeds that broke a promise, with what broke."""

    seeds: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0
    struck: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    failed: dict[int, str] = {}

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.steps += outcome.steps
        self.virtual_s += outcome.seconds
        self.struck.update(outcome.struck)
        self.seen.update(outcome.seen)
        if outcome.failure:
            self.failed[outcome.seed] = outcome.failure

    def merge(self, other: Totals) -> None:
        self.seeds += other.seeds
        self.steps += other.steps
        self.virtual_s += other.virtual_s
        self.real_s += other.real_s
        self.struck.update(other.struck)
        self.seen.update(other.seen)
        self.failed.update(other.failed)

    def never(self) -> list[str]:
        """Fault classes that never struck, and sights that never were."""
        return [name for name in CLASSES if not self.struck[name]] + [name for name in SIGHTS if not self.seen[name]]


def _run(options: Options) -> Outcome:
    return World(options).run()


def trace(seed: int) -> list[str]:
    """Everything that a world did, line by line."""
    lines: list[str] = []
    World(Options(seed), lambda user, line: lines.append(user + line)).run()
    return lines


def run_here(options: Iterable[Options]) -> Totals:
    totals = Totals(struck=Counter(), seen=Counter(), failed={})
    began = monotonic()
    for one in options:
        totals.add(_run(one))
    totals.real_s = monotonic() - began
    return totals


def run_all(options: Iterable[Options], after_each: Callable[[Totals], bool] = lambda _totals: True) -> Totals:
    """Run them on all cores, until `after_each` says no."""
    totals = Totals(struck=Counter(), seen=Counter(), failed={})
    began = monotonic()
    for outcome in _outcomes(options):
        totals.add(outcome)
        totals.real_s = monotonic() - began
        if not after_each(totals):
            break
    return totals


def _outcomes(options: Iterable[Options]) -> Iterator[Outcome]:
    # Processes that begin anew: a test process may hold threads, sockets and an event loop that must not be copied.
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        yield from pool.imap(_run, options, chunksize=4)
