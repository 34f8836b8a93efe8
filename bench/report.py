"""Report: run the whole suite and write docs/BENCHMARKS.md from it, with charts; the raw lines stay in bench/benchmarks.jsonl.

Each benchmark is a process of its own, started by the command the page gives. Its lines are kept when it is through; a report that
was interrupted goes on after the last complete one when it is started again with the same options on the same commit.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from bench.machine import machine, versions
from bench.page import charts, page, representative
from bench.peers import PEERS

DOCS: Final = Path(__file__).parent.parent / "docs"
LINES: Final = Path(__file__).with_name("benchmarks.jsonl")
_VERSIONS: Final = ("ray", "redis", "uvicorn", "starlette", "uvloop", "websockets", "msgspec", "picows")
_VERSIONS_OF_PEERS: Final = ("Django", "channels", "channels-redis", "celery", "python-socketio", "APScheduler")


def plan(*, quick: bool, peers: bool, soak_minutes: float) -> dict[str, list[str]]:
    """Name -> arguments of each benchmark, in order. The engine's take about half an hour, quick ones six minutes."""
    if quick:
        steps = [
            "delivery --messages 20000",
            "latency --seconds 2",
            "fanout --messages 5",
            "idle --connections 1000 --seconds 3",
            "storm --users 200",
            "timers --timers 5000 --lead 4",
            "scaling --counts 1,2 --messages 10000",
            "servers --counts 1,2 --messages 10000 --timers 5000",
            "cluster --sizes 1+1 --many= --messages 5000 --seconds 2",
            "wheel --timers 50000",
            "storage --users 1000 --each 1",
            "overload --seconds 4 --calm-seconds 1 --calm-turns 1",
        ]
    else:
        steps = ["delivery --repeat 3 --publishers 1,4", "latency --repeat 3", "fanout --repeat 3", "idle", "storm --repeat 3"]
        steps += ["timers --repeat 3", "scaling --repeat 2", "servers --repeat 2", "cluster", "wheel", "storage", "overload"]
    if peers:
        steps.append("peers --quick" if quick else "peers --repeat 3")
    if soak_minutes:
        steps.append(f"soak --minutes {soak_minutes:g}")
    return {step.split(" ", 1)[0]: step.split() for step in steps}


def _versions_of_programs(steps: dict[str, list[str]]) -> dict[str, str]:
    """Of the peers that are programs, where they are installed and take part."""
    found = {name: kind.version() for name, kind in PEERS.items()} if "peers" in steps else {}
    return {name: version for name, version in found.items() if version}


class ResultsFile:
    """JSON lines: a header, then the results of every step, each followed by its end. Replaced whole, so it is never cut in the middle."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: dict[str, Any] = {}
        self.results: list[dict[str, Any]] = []
        self.done: list[str] = []
        self._lines: list[dict[str, Any]] = []

    def read(self) -> bool:
        """Take in what the file has; False when there is none. Raises ValueError when it is not such a file."""
        if not self.path.is_file():
            return False
        self._lines = [json.loads(line) for line in self.path.read_text("utf-8").splitlines()]
        if not self._lines or "steps" not in self._lines[0]:
            raise ValueError(f"{self.path} is not a file of results: its first line is no header")
        self.header = self._lines[0]
        self.results = [line for line in self._lines[1:] if "bench" in line]
        self.done = [line["through"] for line in self._lines[1:] if "through" in line]
        return True

    def begin(self, header: dict[str, Any]) -> None:
        """Start anew."""
        self.header, self.results, self.done = header, [], []
        self._lines = [header]
        self._write()

    def replace(self, step: str, arguments: list[str], results: list[dict[str, Any]], again: dict[str, str]) -> None:
        """A step was measured again: `again` says when and at which commit."""
        parts, part = dict[str, list[dict[str, Any]]](), list[dict[str, Any]]()
        for line in self._lines[1:]:
            part.append(line)
            if "through" in line:
                parts[line["through"]], part = part, []
        parts[step] = [*results, {"through": step}]
        steps = {**self.header["steps"], step: arguments}
        self.header = {**self.header, "steps": steps, "again": {**self.header.get("again", {}), step: again}}
        self._lines = [self.header, *(line for lines in parts.values() for line in lines)]
        self.results = [line for line in self._lines if "bench" in line]
        self._write()

    def add(self, step: str, results: list[dict[str, Any]]) -> None:
        """A step is through."""
        self.results += results
        self.done.append(step)
        self._lines += [*results, {"through": step}]
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text("".join(json.dumps(line) + "\n" for line in self._lines), "utf-8")
        new.replace(self.path)


def measure(file: ResultsFile, steps: dict[str, list[str]], quick: bool, console: Console) -> None:
    """Run what `file` does not have yet.

    Raises:
        SystemExit: a benchmark failed; what was measured before stays, and the next start goes on from there.
    """
    header = {
        "steps": steps,
        "quick": quick,
        "date": _now(),
        "machine": machine(),
        "versions": versions(*_VERSIONS, *(_VERSIONS_OF_PEERS if "peers" in steps else ())) | _versions_of_programs(steps),
    }
    same = file.read() and (file.header["steps"], file.header["versions"]) == (steps, header["versions"])
    if same:
        console.print(f"going on after {', '.join(file.done) or 'nothing yet'} of {file.path}")
    else:
        file.begin(header)
    for number, (step, arguments) in enumerate(steps.items(), 1):
        if step in file.done:
            continue
        console.print(f"[bold]{number} of {len(steps)}[/]: python -m bench {' '.join(arguments)}")
        file.add(step, _run(arguments))


def measure_again(file: ResultsFile, step: str) -> None:
    """Run one step of the whole plan, and put its results in the place of those that `file` has."""
    if not file.read():
        raise SystemExit(f"{file.path}: there is no report yet")
    arguments = plan(quick=False, peers=False, soak_minutes=0)[step]
    again = {"date": _now(), "commit": versions().get("commit", "unknown"), "load_before": str(round(os.getloadavg()[0], 2))}
    file.replace(step, arguments, _run(arguments), again)


def _run(arguments: list[str]) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "bench", *arguments, "--json"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode != 0:
        raise SystemExit(f"python -m bench {' '.join(arguments)} failed; what was measured before is kept")
    return [json.loads(line) for line in ended.stdout.splitlines()]


def _now() -> str:
    return datetime.now(UTC).strftime("%d %b %Y, %H:%M UTC")


def write(file: ResultsFile, folder: Path) -> Path:
    """The page and its charts; returns the page's path."""
    folder.mkdir(exist_ok=True)
    for name, svg in charts(representative(file.results)).items():
        (folder / name).write_text(svg, "utf-8")
    target = folder / "BENCHMARKS.md"
    link = os.path.relpath(file.path, folder)
    target.write_text(page(file.header, file.results, file.header["steps"], link), "utf-8")
    return target


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="as little of each as shows that it runs: six minutes")
    parser.add_argument("--peers", action="store_true", help="the peers too, by turns with the engine: some forty minutes more")
    parser.add_argument("--soak", type=float, default=0.0, metavar="MINUTES", help="a soak of this length too")
    steps = list(plan(quick=False, peers=False, soak_minutes=0))
    parser.add_argument("--only", choices=steps, metavar="STEP", help="measure one benchmark again, and leave the rest of the page")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="measure nothing: write the page from these results")
    parser.add_argument("--to", type=Path, default=DOCS, metavar="FOLDER", help="where the page and its lines go (default: docs and bench)")


def run(args: Namespace) -> None:
    """Measure what is missing, and write the page; the results stay in bench/, or beside a page elsewhere."""
    console = Console(stderr=True, highlight=False)
    final = LINES if args.to == DOCS else args.to / LINES.name
    if args.source is not None:
        file = ResultsFile(args.source)
        if not file.read():
            raise SystemExit(f"there is no {args.source}")
        if args.source.resolve() != final.resolve():
            final.parent.mkdir(exist_ok=True)
            shutil.copyfile(args.source, final)
            file.path = final
    elif args.only:
        file = ResultsFile(final)
        measure_again(file, args.only)
    else:
        file = ResultsFile(final.with_suffix(".partial.jsonl"))
        steps = plan(quick=args.quick, peers=args.peers, soak_minutes=args.soak)
        measure(file, steps, args.quick, console)
        file.path = file.path.rename(final)
    console.print(f"written: {write(file, args.to)}")
