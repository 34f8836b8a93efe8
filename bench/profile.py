"""Profile: where the Python of an engine's processes spends its time at full load, by role, package and function.

The load is that of `delivery`. py-spy samples the threads that hold the interpreter's lock, so waiting is not in it, nor what system calls
and the threads of Ray take without the lock: `delivery` has the CPU of whole processes. What C code does with the lock held, as uvloop and
msgspec do, counts for the Python function that called it. Sampling pauses the process for a moment each time; read shares, not times.
"""

from __future__ import annotations

import asyncio
import re
import sysconfig
import tempfile
from argparse import ArgumentParser, Namespace
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import uvloop

from bench.books import Books
from bench.delivery import USERS, WARM_UP
from bench.progress import Phases
from bench.server import engine
from bench.system import System
from bench.workloads import WINDOW, connect_all, full_load, senders

ROLES = "edge,shard,scheduler"
SHOWN = 25

_FRAME = re.compile(r"(?P<function>.*) \((?P<file>[^()]*?)(?::\d+)?\)")


def package_of(file: str) -> str:
    """The package of a file as py-spy names it, relative to where Python found it."""
    parts = file.removesuffix(".py").split("/")
    return ".".join(parts[:2]) if parts[0] == "engine" and len(parts) > 1 else parts[0]


def summary(stacks: Iterable[str]) -> dict[str, Any]:
    """Percent of the samples in stacks of py-spy's `raw` format, `frame;frame;... count`, the outermost frame first.

    `packages`: in code of the package itself; `functions`: likewise; `with_callees`: in the function or what it called.
    """
    packages: Counter[str] = Counter()
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    samples = 0
    for line in stacks:
        stack, _, times = line.rpartition(" ")
        frames = [found for frame in stack.split(";") if (found := _FRAME.fullmatch(frame)) is not None]
        if not frames:
            continue
        count = int(times)
        samples += count
        named = [f"{found['function']} ({found['file']})" for found in frames]
        packages[package_of(frames[-1]["file"])] += count
        own[named[-1]] += count
        whole.update(dict.fromkeys(named, count))

    def shares(counts: Counter[str]) -> dict[str, float]:
        return {name: round(100 * count / samples, 1) for name, count in counts.most_common(SHOWN)}

    return {"samples": samples, "packages": shares(packages), "functions": shares(own), "with_callees": shares(whole)}


async def sampled(system: System, args: Namespace, folder: Path, phases: Phases) -> dict[str, Path]:
    """Load the system for so many seconds; by role, the file with the stacks of its first process."""
    books = Books(USERS)
    with phases.phase("connecting"):
        listeners, _ = await connect_all(system, books, books.ledgers)
    sending = await senders(system, books, args.publishers)
    with phases.phase("warming up"):
        await full_load(sending, books, WARM_UP, WINDOW, args.batch)
    pids = {role: pid for pid, role in reversed(system.processes.roles().items()) if role in args.roles.split(",")}
    files = {role: folder / role for role in pids}
    programs = [await _sampler(pid, args, files[role]) for role, pid in pids.items()]
    with phases.phase("full load", args.seconds):
        while any(program.returncode is None for program in programs):
            await full_load(sending, books, WARM_UP, WINDOW, args.batch)
    for program in programs:
        _, errors = await program.communicate()
        if program.returncode:
            raise SystemExit(f"py-spy, which has to be allowed to look into other processes:\n{errors.decode()}")
    for sender in sending:
        sender.close()
    for listener in listeners:
        listener.drop()
    return files


async def _sampler(pid: int, args: Namespace, file: Path) -> Process:
    return await asyncio.create_subprocess_exec(
        Path(sysconfig.get_path("scripts"), "py-spy"),
        "record", "--gil", "--nolineno", "--format", "raw", "--rate", str(args.rate), "--duration", str(args.seconds),
        "--pid", str(pid), "--output", file,
        stdout=DEVNULL, stderr=PIPE,
    )  # fmt: skip


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--seconds", type=int, default=10, help="sampled (default %(default)s)")
    parser.add_argument("--rate", type=int, default=200, help="samples a second and process (default %(default)s)")
    parser.add_argument("--roles", default=ROLES, help="of the processes, separated by commas (default %(default)s)")
    parser.add_argument("--publishers", type=int, default=128, help="connections that publish (default %(default)s)")
    parser.add_argument("--batch", type=int, default=1, help="messages per request (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Start an engine, sample, stop it; one dictionary per role."""
    with tempfile.TemporaryDirectory(prefix="engine-profile-") as folder, engine() as running:
        files = uvloop.run(sampled(running, args, Path(folder), args.phases))
        for role, file in files.items():
            case = {"role": role, "users": USERS, "batch": args.batch, "publishers": args.publishers}
            yield {"bench": "profile", "system": running.name, "case": case, **summary(file.read_text().splitlines())}
