"""Ray jobs that publish and listen while edges and shards are killed, and others are added: each row arrives, under one number."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

import pytest

from tests.support.chaos.breakable_engine import ask, status_when
from tests.support.hosts import CHECKOUT
from tests.support.running_engine import RunningEngine

pytestmark = [pytest.mark.slow, pytest.mark.engine]


async def kill(engine: RunningEngine, kind: str) -> None:
    """End the first process of a kind, as a crash does, and wait for its successor."""
    pid = (await status_when(engine, lambda status: status["ready"]))[kind][0]["pid"]
    os.kill(pid, signal.SIGKILL)
    await status_when(engine, lambda status: status["ready"] and status[kind][0]["pid"] != pid)


async def scale(engine: RunningEngine, **numbers: int) -> None:
    """Have other numbers of processes, and wait until they serve."""
    await ask(engine, "POST", "/v1/scale", numbers, scope="operator")

    def reached(status: dict[str, Any]) -> bool:
        return bool(status["ready"] and status["scaling"]["settled"] and status["scaling"]["have"].items() >= numbers.items())

    await status_when(engine, reached)


async def test_rows_of_jobs_arrive_once_while_edges_and_shards_are_killed_added_and_removed(victim: RunningEngine) -> None:
    await status_when(victim, lambda status: status["ready"])
    job: Any = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.ray_rows", victim.state["ray_address"],
        env=os.environ | {"RAY_AUTH_MODE": "token", "PYTHONPATH": os.fspath(CHECKOUT)},
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            while b"publishing" not in (line := await job.stdout.readline()):
                assert line, (await job.stderr.read()).decode()[-3000:]
        await kill(victim, "edges")
        await scale(victim, edges=2, shards=3)
        await kill(victim, "edges")
        await kill(victim, "shards")
        await scale(victim, edges=1, shards=2)
        printed, complaints = await asyncio.wait_for(job.communicate(b""), 120)  # closes its input
    finally:
        if job.returncode is None:
            job.kill()
            await job.wait()
    assert job.returncode == 0, complaints.decode()[-3000:]
    books = json.loads(printed.splitlines()[-1])
    for user, book in books.items():
        assert book["published"] > 100, user
        assert (book["missing"], book["twice"]) == ([], []), user
