"""`make sim`: run simulated worlds until the time is up, or one of them exactly.

make sim                     for a minute, seeds from the clock
make sim HOURS=1             for longer
make sim SEED=7              that seed, with its whole trace in tests/output/sim-7.txt
make sim SEED=7 FAULTS=a,b   and only these fault classes (`none`: no faults)

`python -m tests.sim --mutations` prints the first seeds that show each mutation, or those that it names, for SEEN_AT in detection.py.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.sim.detection import first_failures
from tests.sim.faults import CLASSES
from tests.sim.many import SIGHTS, Totals, run_all
from tests.sim.mutations import MUTATIONS
from tests.sim.shrink import report
from tests.sim.world import Options, World

_OUTPUT = Path(__file__).parent.parent / "output"
_FAILURES_MAX = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="simulated worlds under every fault")
    parser.add_argument("--seed", type=int, help="replay this seed exactly")
    parser.add_argument("--first", type=int, help="begin with this seed (default: from the clock)")
    parser.add_argument("--hours", type=float, default=1 / 60)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--faults", default="", help="only these classes, by commas; `none`")
    parser.add_argument("--mutations", nargs="*", metavar="NAME", help="the first seeds that show each mutation of the engine, or these")
    arguments = parser.parse_args()
    console = Console()
    if arguments.mutations is not None:
        if strange := set(arguments.mutations) - MUTATIONS.keys():
            parser.error(f"unknown mutations {sorted(strange)}")
        return show_mutations(arguments.mutations or list(MUTATIONS), console)
    enabled = frozenset(CLASSES)
    if arguments.faults:
        enabled = frozenset(arguments.faults.split(",")) - {"none"}
        if unknown := enabled - CLASSES.keys():
            parser.error(f"unknown fault classes {sorted(unknown)}; there are {', '.join(CLASSES)}")
    if arguments.seed is not None:
        return replay(Options(arguments.seed, arguments.steps, enabled), console)
    first = arguments.first if arguments.first is not None else int(time.time()) % 1_000_000 * 1000
    return explore(first, arguments.hours * 3600, arguments.steps, enabled, console)


def show_mutations(names: Sequence[str], console: Console) -> int:
    """The first seeds of each; fails when one is never noticed."""
    unnoticed = 0
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        for name, found in zip(names, pool.imap(first_failures, names), strict=True):
            seeds, first = tuple(seed for seed, _ in found), found[0][1] if found else "never"
            console.print(f'    "{name}": {seeds},  # {first}', markup=False, highlight=False, soft_wrap=True)
            unnoticed += not found
    return 1 if unnoticed else 0


def replay(options: Options, console: Console) -> int:
    """One seed, with everything it did in a file."""
    _OUTPUT.mkdir(exist_ok=True)
    path = _OUTPUT / f"sim-{options.seed}.txt"
    with path.open("w", encoding="utf-8") as file:
        outcome = World(options, lambda user, line: print(f"{user:8s}{line}", file=file)).run()
    console.print(f"{outcome.steps} steps, {outcome.seconds:.2f} s of simulated time; the whole trace: {path}")
    if not outcome.failure:
        console.print("every promise was kept")
        return 0
    console.print(report(options), markup=False, highlight=False)
    return 1


def explore(first: int, seconds: float, steps: int, enabled: frozenset[str], console: Console) -> int:
    """New seeds until the time is up."""
    console.print(f"seeds from {first}, {steps} steps each and then until all is quiet; Ctrl-C ends it")
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    totals = Totals()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=seconds)

        def after_each(now: Totals) -> bool:
            nonlocal totals
            totals = now
            rate = f"{now.seeds / now.real_s:.1f} seeds/s, {now.steps / now.real_s:,.0f} steps/s"
            progress.update(task, completed=now.real_s, description=f"{now.seeds} seeds, {rate}, {len(now.failed)} failed")
            return now.real_s < seconds and len(now.failed) < _FAILURES_MAX

        try:
            run_all((Options(seed, steps, enabled) for seed in itertools.count(first)), after_each)
        except KeyboardInterrupt:
            console.print("interrupted")
    summary(totals, console)
    for seed in totals.failed:
        console.print(report(Options(seed, steps, enabled)), markup=False, highlight=False)
    return 1 if totals.failed else 0


def summary(totals: Totals, console: Console) -> None:
    """What was really exercised."""
    console.print(
        f"{totals.seeds} seeds, {totals.steps:,} steps, {totals.virtual_s:,.0f} s of simulated time in {totals.real_s:.0f} s "
        f"({totals.seeds / max(totals.real_s, 1e-9):.1f} seeds/s, {totals.steps / max(totals.real_s, 1e-9):,.0f} steps/s)"
    )
    table = Table("fault", "struck", "seen", "times", box=None)
    for fault, sight in itertools.zip_longest(CLASSES, SIGHTS):
        table.add_row(fault, f"{totals.struck[fault]:,}" if fault else "", sight, f"{totals.seen[sight]:,}" if sight else "")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
