"""A submitted job that publishes: killed half-way and submitted again, it has published each row once.

The sink of Ray Data has its own such test, in `tests/ray/test_notification_sink.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from ray_notifications import Client
from tests.support.hosts import CHECKOUT
from tests.support.running_engine import RunningEngine
from tests.support.shared_cluster import SharedCluster
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.engine]

ROWS = 4000
BLOCK_ROWS = 100

JOB = """
import os, pathlib, sys, time
import ray
from ray_notifications.ray import Publisher
folder, rows, block_rows = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
(folder / "pid").write_text(str(os.getpid()))
ray.init()
with Publisher(namespace="events") as publisher:
    for first in range(0, rows, block_rows):
        # In the first run nothing comes after half of the rows.
        while first >= rows // 2 and not (folder / "again").exists(): time.sleep(0.02)
        block = range(first, first + block_rows)
        publisher.publish_many([{"user": "rows", "type": "row", "id": f"row-{row}", "data": row} for row in block])
"""


async def test_killed_job_submitted_again_publishes_each_row_once(
    cluster: SharedCluster, engine_of_events: RunningEngine, tmp_path: Path
) -> None:
    engine, pid = engine_of_events, tmp_path / "pid"
    (tmp_path / "job.py").write_text(JOB)
    numbers: dict[int, int] = {}

    async def listen() -> None:
        async with Client(engine.url, engine.token("rows")) as client:
            async for message in client:
                numbers[message.seq] = message.data

    program = (sys.executable, os.fspath(tmp_path / "job.py"), os.fspath(tmp_path), str(ROWS), str(BLOCK_ROWS))
    job = ("env", f"PYTHONPATH={CHECKOUT}", *program)
    listening = asyncio.ensure_future(listen())
    try:
        await cluster.submit(*job, notify="owner")
        await until(lambda: len(numbers) >= ROWS // 4, 90)
        os.kill(int(pid.read_text()), signal.SIGKILL)
        pid.unlink()
        (tmp_path / "again").touch()
        await cluster.submit(*job, notify="owner")
        await until(lambda: len(set(numbers.values())) == ROWS, 90)
    finally:
        listening.cancel()
    assert pid.exists()
    assert sorted(numbers) == list(range(1, ROWS + 1)), "a row that was accepted twice has two numbers"
