"""Ray: a dataset published row by row from Ray Data, through Ray calls of the edge (`NotificationSink`) and over HTTP, in turns.

The same rows, blocks and write tasks both times; over HTTP each task has the Python client, with a URL and a token that a job would have
to be given. Users are away, so that what is measured ends in storage. CPU is of a row, by process; `job` are the tasks of Ray Data, which
read, encode and send. What it leaves out: other nodes, between which a body crosses the network in both cases.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.processes import BY_PROGRAM, CpuMeter, Processes
from bench.server import Engine, engine
from bench.system import per_message_us

CARRIERS = ("ray", "http")
_LOOK_S = 0.2
_PROGRESS_S = 5.0  # between looks at how many rows were published


class _Processes(Processes):
    """Those of the engine, and those of Ray that run the tasks of the job."""

    def roles(self) -> dict[int, str]:
        return {pid: "job" if role == "others" and _is_worker(pid) else role for pid, role in super().roles().items()}


def _is_worker(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::")
    except OSError:
        return False


def _published(running: Engine) -> int:
    """Messages that the engine has accepted so far."""
    totals: Any = asyncio.run(running.status())["totals"]
    return int(totals["published"])


def _publish(running: Engine, carrier: str, args: Namespace, run: int) -> dict[str, Any]:
    state = json.loads((running.data_dir / "engine.json").read_text())
    processes = _Processes({running.pid: BY_PROGRAM})
    job = {"address": state["ray_address"], "carrier": carrier, "rows": args.rows, "users": args.users, "tasks": args.tasks, "run": run}
    job |= {"url": state["url"], "token": running.token("bench", "publish")}
    meter, before = CpuMeter(processes), processes.rss_bytes()
    peak: dict[str, int] = {}
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.ray_job"],
        env=os.environ | {"RAY_AUTH_MODE": "token"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(job))
    process.stdin.close()
    begun = _published(running)
    done, looked_s = 0, time.monotonic()
    with args.phases.phase(f"{args.rows} rows by {carrier}", args.rows, lambda: done):
        while process.poll() is None:
            for role, size in processes.rss_bytes().items():
                peak[role] = max(size, peak.get(role, 0))
            if time.monotonic() - looked_s > _PROGRESS_S:
                done, looked_s = _published(running) - begun, time.monotonic()
            time.sleep(_LOOK_S)
    assert process.stdout is not None
    if process.returncode:
        raise SystemExit(f"the job ended with {process.returncode}")
    told = json.loads(process.stdout.read().splitlines()[-1])
    return {
        "bench": "ray",
        "system": running.name,
        "case": {"carrier": carrier, "rows": args.rows, "tasks": args.tasks},
        "rows_per_s": round(args.rows / told["seconds"]),
        "accepted": told["accepted"],
        "cpu_us_per_row": per_message_us(meter.spent_s(), args.rows),
        "rss_mib_grown_at_most": {role: round((size - before.get(role, 0)) / (1 << 20)) for role, size in sorted(peak.items())},
    }


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=100_000, help="of the dataset (default %(default)s)")
    parser.add_argument("--users", type=int, default=10_000, help="that the rows are for, in turn (default %(default)s)")
    parser.add_argument("--tasks", type=int, default=2, help="write tasks at once (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Start an engine, publish the dataset by either way, stop it. A small one first, which starts Ray's workers."""
    with engine(ray_publish="default") as running:
        while not (running.data_dir / "engine.json").exists():  # written just after the engine is ready
            time.sleep(_LOOK_S)
        _publish(running, "ray", Namespace(**{**vars(args), "rows": 2000}), 0)
        for turn, carrier in enumerate(CARRIERS, 1):
            yield _publish(running, carrier, args, turn)
