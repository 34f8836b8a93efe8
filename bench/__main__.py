"""`python -m bench NAME [--json]`: measure an engine; one JSON line per result.

A benchmark is a module with a docstring, `arguments(parser)` and `run(args)` that yields one dictionary per result. Its name
is entered in `NAMES`, nothing else.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

NAMES = ("delivery", "wheel")


def machine() -> dict[str, object]:
    """What the figures were taken on."""
    model = "unknown"
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def parser() -> argparse.ArgumentParser:
    """One sub-command per benchmark; `delivery` when none is named."""
    top = argparse.ArgumentParser(
        prog="python -m bench",
        description="Starts an engine of its own on loopback, loads it, and prints one JSON line per result. "
        "Figures are CPU microseconds per message, by process, so that they hold on a noisy machine; quote ratios taken in one run.",
    )
    commands = top.add_subparsers(dest="name", metavar="NAME")
    for name in NAMES:
        module = importlib.import_module(f"bench.{name}")
        summary, _, rest = (module.__doc__ or "").partition("\n")
        command = commands.add_parser(
            name, help=summary, description=f"{summary}\n{rest}", formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.arguments(command)
        command.add_argument("--repeat", type=int, default=1, help="runs, each from the start (default %(default)s)")
        command.add_argument("--json", action="store_true", help="JSON lines on a terminal too, instead of tables")
    return top


def table(result: dict[str, Any]) -> Table:
    """A result for people."""
    shown = Table("figure", "value", title=str(result.get("bench", "")), title_justify="left")
    for key, value in result.items():
        if key not in ("bench", "machine"):
            shown.add_row(key, json.dumps(value) if isinstance(value, dict | list) else str(value))
    return shown


def main() -> int:
    arguments = sys.argv[1:]
    named = bool(arguments) and (arguments[0] in ("-h", "--help") or not arguments[0].startswith("-"))
    args = parser().parse_args(arguments if named else ["delivery", *arguments])
    module = importlib.import_module(f"bench.{args.name}")
    console = Console() if sys.stdout.isatty() and not args.json else None
    for _ in range(args.repeat):
        for result in module.run(args):
            if console is not None:
                console.print(table(result))
            else:
                print(json.dumps(result | {"machine": machine()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
