"""`python -m bench NAME [--repeat N] [--json]`: measure an engine; one JSON line per result. `report` runs them all.

A benchmark is a module with a docstring, `arguments(parser)` and `run(args)` that yields one dictionary per result. Its name
is entered in `NAMES`, nothing else. A result says `bench`, what was measured (`system`), under what parameters (`case`), and its
figures; results of several runs that agree in these three are also given as one line with median, minimum and maximum.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import report
from bench.figures import summaries
from bench.machine import machine
from bench.progress import Phases

NAMES = (
    "calls",
    "delivery",
    "profile",
    "latency",
    "fanout",
    "idle",
    "storage",
    "storm",
    "timers",
    "armed",
    "steps",
    "stream",
    "scaling",
    "servers",
    "autoscale",
    "cluster",
    "soak",
    "endurance",
    "overload",
    "chaos",
    "wheel",
    "digest",
    "peers",
    "ray",
    "ingest",
)


def parser() -> argparse.ArgumentParser:
    """One sub-command per benchmark; `delivery` when none is named."""
    top = argparse.ArgumentParser(
        prog="python -m bench",
        description="Starts an engine of its own on loopback, loads it, and prints one JSON line per result. "
        "Figures are CPU microseconds per message, by process, so that they hold on a noisy machine; quote ratios taken in one run.",
    )
    commands = top.add_subparsers(dest="name", metavar="NAME")
    for name in (*NAMES, "report"):
        module = importlib.import_module(f"bench.{name}")
        summary, _, rest = (module.__doc__ or "").partition("\n")
        command = commands.add_parser(
            name, help=summary, description=f"{summary}\n{rest}", formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.arguments(command)
        if name == "report":
            continue
        command.add_argument("--repeat", type=int, default=1, help="runs, each from the start (default %(default)s)")
        command.add_argument("--json", action="store_true", help="JSON lines on a terminal too, instead of tables")
    return top


def results(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Of all runs, and what they have in common where there are several."""
    module = importlib.import_module(f"bench.{args.name}")
    every = []
    for run in range(args.repeat):
        args.phases = Phases(args.name if args.repeat == 1 else f"{args.name}, run {run + 1} of {args.repeat}")
        before = machine()
        for result in module.run(args):
            every.append(result)
            yield {**result, "machine": before}
    if args.repeat > 1:
        yield from summaries(every)


def table(result: dict[str, Any]) -> Table:
    """A result for people."""
    title = " ".join(str(result[key]) for key in ("bench", "system", "case") if key in result)
    shown = Table("figure", "value", title=title, title_justify="left")
    for key, value in result.items():
        if key not in ("bench", "system", "case", "machine"):
            shown.add_row(key, json.dumps(value) if isinstance(value, dict | list) else str(value))
    return shown


def main() -> int:
    # As `make` does: an installed engine has compiled modules. Else each of its processes compiles them: half a second of CPU more.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    arguments = sys.argv[1:]
    named = bool(arguments) and (arguments[0] in ("-h", "--help") or not arguments[0].startswith("-"))
    args = parser().parse_args(arguments if named else ["delivery", *arguments])
    if args.name == "report":
        report.run(args)
        return 0
    console = Console() if sys.stdout.isatty() and not args.json else None
    for result in results(args):
        if console is not None:
            console.print(table(result))
        else:
            print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
