"""The peers' delayed tasks: scheduled beforehand, run by a worker, lateness taken where the task runs."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from typing import Any, Final

from bench.books import now_s
from bench.figures import latency_ms
from bench.peers.peer import PROGRAMS, Programs
from bench.processes import CpuMeter
from bench.progress import Phases
from bench.system import per_message_us, rss_mib

PROGRAM: Final = str(PROGRAMS / "delayed_tasks.py")

SUSTAINED: Final = {"zset": 1500, "zset-lua": 50_000, "celery": 5000, "apscheduler": 50_000}
"""Tasks within 10 s that each keeps up with on two cores: the poller's limit is 200/s, Celery's about 800/s."""

_LEAD_S: Final = {"zset": 3.0, "zset-lua": 4.0, "celery": 8.0, "apscheduler": 10.0}  # to schedule those; grows with more
_BOOT_S: Final = 5.0  # a worker is up
_PATIENCE_S: Final = 10.0
_BATCH: Final = 1000  # tasks per line, and per ZADD


async def measure(peer: str, tasks: int, span_s: float, phases: Phases) -> dict[str, Any]:
    """One result: `tasks` due at random moments of `span_s`."""
    async with Programs() as programs:
        taking = await _start(programs, peer)
        await asyncio.sleep(_BOOT_S)

        lead_s = _LEAD_S[peer] * max(1.0, tasks / SUSTAINED[peer])
        meter, began = CpuMeter(programs.served), now_s()
        chance, first = random.Random(tasks), time.time() + lead_s
        dues = sorted(round(first + chance.random() * span_s, 3) for _ in range(tasks))
        lines = [json.dumps(list(enumerate(dues))[start : start + _BATCH]) for start in range(0, tasks, _BATCH)]
        with phases.phase(f"{peer}: scheduling {tasks}"):
            await asyncio.to_thread(_write, taking, "\n".join(lines).encode() + b"\n", peer == "apscheduler")
        schedule_s, in_time = now_s() - began, time.time() < first
        with phases.phase(f"{peer}: running", tasks, lambda: _run_so_far(programs)):
            await _all_run(programs, tasks, dues[-1])
        spent = meter.spent_s()
        programs.check()
        records = [line.split() for line in _records(programs).splitlines()]
        run = {task for task, _, _ in records}
        late = [float(ran) - float(due) for _, due, ran in records]
        return {
            "bench": "timers",
            "system": peer,
            "case": {"timers": tasks, "span_s": span_s, "until": "run by a worker"},
            "lost": tasks - len(run),
            "doubled": len(records) - len(run),
            "early": sum(lateness < 0 for lateness in late),
            "lateness_ms": latency_ms(late),
            "cpu_us_per_timer": per_message_us(spent, tasks),
            "scheduled_in_time": in_time,
            "schedule_per_s": round(tasks / schedule_s),
            "rss_mib": rss_mib(programs.served),
        }


async def _start(programs: Programs, peer: str) -> subprocess.Popen[bytes]:
    """Start the worker; returns the process that takes the tasks."""
    if peer == "apscheduler":  # the only one whose tasks live in the worker
        return programs.start("worker", sys.executable, PROGRAM, "run", peer, pipes=True)
    await programs.start_redis()
    if peer == "celery":
        celery = (sys.executable, "-m", "celery", "-A", "delayed_tasks:celery_app", "worker", "-c", "2", "-l", "WARNING")
        programs.start("worker", *celery, "--without-gossip", "--without-mingle", "--without-heartbeat")
    else:
        programs.start("worker", sys.executable, PROGRAM, "run", peer)
    return programs.start("", sys.executable, PROGRAM, "schedule", peer, pipes=True)


def _write(process: subprocess.Popen[bytes], lines: bytes, told: bool) -> None:
    """Hand the tasks over, and wait until they are scheduled: the scheduler says so, or the producer ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(lines)
    process.stdin.close()
    if told:
        process.stdout.readline()
    elif process.wait() != 0:
        raise RuntimeError("the producer failed")


def _run_so_far(programs: Programs) -> int:
    return _records(programs).count(b"\n")


def _records(programs: Programs) -> bytes:
    return b"".join(path.read_bytes() for path in programs.folder.glob("fired.*"))


async def _all_run(programs: Programs, tasks: int, last_due: float) -> None:
    """Until all have run, or none has for a while after the last was due."""
    seen, quiet_since = -1, now_s()
    while seen < tasks:
        run = _run_so_far(programs)
        if run != seen or time.time() < last_due:
            seen, quiet_since = run, now_s()
        elif now_s() - quiet_since > _PATIENCE_S:
            return
        await asyncio.sleep(0.2)
