"""`make fuzz`: send anything to every outside boundary of a running engine until the time is up.

make fuzz                    for five minutes
make fuzz HOURS=1            for longer
make fuzz SEED=7             rounds from this seed on; each prints its own
make fuzz ONLY=http,frames   these boundaries

A round sends some hundred examples to each boundary, then checks that no process of the engine ended, grew, or logged an error, and that
a message for somebody else is still delivered. An example with a wrong answer is shrunk and printed; it belongs into kept_examples.py.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.fuzz.boundaries import BOUNDARIES, Boundary
from tests.support.engine_watch import EngineWatch
from tests.support.running_engine import RunningEngine, running_engine

_OUTPUT = Path(__file__).parent.parent / "output"
_EXAMPLES = 300
"""Of each boundary in a round: a round takes about half a minute."""
_SETTINGS = settings(
    max_examples=_EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink]
)


def main() -> int:
    """Run rounds until the time is up or one fails. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="any bytes to every outside boundary of a running engine")
    parser.add_argument("--hours", type=float, default=1 / 12)
    parser.add_argument("--seed", type=int, help="of the first round (default: from the clock)")
    parser.add_argument("--only", default="", help=f"boundaries, by commas: {', '.join(boundary.name for boundary in BOUNDARIES)}")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else [boundary.name for boundary in BOUNDARIES]
    if unknown := set(names) - {boundary.name for boundary in BOUNDARIES}:
        parser.error(f"unknown boundaries {sorted(unknown)}")
    chosen = [boundary for boundary in BOUNDARIES if boundary.name in names]
    first = arguments.seed if arguments.seed is not None else int(time.time())
    console = Console()
    console.print(f"rounds from seed {first}; starting an engine; Ctrl-C ends it")
    with running_engine() as engine:
        return rounds(engine, chosen, first, arguments.hours * 3600, console)


def rounds(engine: RunningEngine, boundaries: list[Boundary], first: int, seconds: float, console: Console) -> int:
    """Round after round. Returns the exit code."""
    sent: Counter[str] = Counter()
    failures: list[str] = []
    number = first
    watch = EngineWatch(engine)
    began = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("", total=seconds)
            while not failures and time.monotonic() < began + seconds:
                for boundary in boundaries:
                    progress.update(
                        task, completed=time.monotonic() - began, description=f"seed {number} {boundary.name}: {sent.total()} sent"
                    )
                    failures += one(engine, watch, boundary, number, sent)
                number += 1
    except KeyboardInterrupt:
        console.print("interrupted")
    summary(watch, sent, number - first, time.monotonic() - began, console)
    for failure in failures:
        console.print(failure, markup=False, highlight=False)
    if failures:
        _OUTPUT.mkdir(exist_ok=True)
        (_OUTPUT / f"fuzz-{number - 1}.txt").write_text("\n\n".join(failures))
    return 1 if failures else 0


def one(engine: RunningEngine, watch: EngineWatch, boundary: Boundary, number: int, sent: Counter[str]) -> list[str]:
    """Attack one boundary; returns what went wrong."""

    @seed(number)
    @_SETTINGS
    @given(boundary.pieces)
    def any_bytes(pieces: list[bytes]) -> None:
        sent[boundary.name] += 1
        boundary.attack(engine, pieces)
        watch.check_log()  # at once, so that the example is shrunk which an error is of

    try:
        any_bytes()
        watch.check_processes()
        watch.check_sockets()
        asyncio.run(watch.check_service(f"beside-{boundary.name}-{number}"))
    except Exception:
        return [f"make fuzz SEED={number} ONLY={boundary.name}\n{traceback.format_exc()}"]
    return []


def summary(watch: EngineWatch, sent: Counter[str], done: int, seconds: float, console: Console) -> None:
    """What was sent, and what it cost the engine."""
    console.print(f"{done} rounds, {sent.total():,} connections in {seconds:.0f} s")
    table = Table("boundary", "sent", box=None)
    for name, count in sent.items():
        table.add_row(name, f"{count:,}")
    console.print(table)
    memory = Table("process", "MiB before", "MiB after", box=None)
    after = watch.rss_mib()
    for role, before in watch.rss_mib_before.items():
        memory.add_row(role, f"{before:.0f}", f"{after[role]:.0f}")
    console.print(memory)


if __name__ == "__main__":
    sys.exit(main())
