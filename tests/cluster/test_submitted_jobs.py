"""Submitted jobs that publish: killed half-way and submitted again, they have published each row once."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest

from ray_notifications import Client
from tests.support.hosts import CHECKOUT
from tests.support.missing_programs import missing
from tests.support.running_engine import RunningEngine
from tests.support.shared_cluster import SharedCluster
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.engine]

ROWS = 4000
BLOCK_ROWS = 100

BEGIN = """
import os, pathlib, sys, time
import ray
folder, user, rows = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
(folder / f"{user}.pid").write_text(str(os.getpid()))

def reached(row):
    "In the first run nothing comes after half of the rows."
    while row >= rows // 2 and not (folder / user).exists(): time.sleep(0.02)
"""

PUBLISHER = (
    BEGIN
    + """
from ray_notifications.ray import Publisher
ray.init()
with Publisher(namespace="events") as publisher:
    for first in range(0, rows, int(sys.argv[4])):
        reached(first)
        block = range(first, first + int(sys.argv[4]))
        publisher.publish_many([{"user": user, "type": "row", "id": f"{user}-{row}", "data": row} for row in block])
"""
)

SINK = (
    BEGIN
    + """
import ray.data
from ray_notifications.ray import NotificationSink
ray.init(runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}})  # the second node has a stranger's package of this name

def named(batch):
    reached(int(batch["id"][0]))
    return {"user": [user] * len(batch["id"]), "row": [f"{user}-{row}" for row in batch["id"]], "number": batch["id"]}

ds = ray.data.range(rows, override_num_blocks=rows // int(sys.argv[4])).map_batches(named, batch_size=None, concurrency=2)
ds.write_datasink(NotificationSink(user="user", type="row", id="row", data="number", namespace="events"), concurrency=2)
"""
)

JOBS = {"publisher": PUBLISHER, "sink": SINK}


@pytest.mark.parametrize("kind", JOBS)
async def test_killed_job_submitted_again_publishes_each_row_once(
    cluster: SharedCluster, engine_of_events: RunningEngine, tmp_path: Path, kind: str
) -> None:
    if kind == "sink" and importlib.util.find_spec("pyarrow") is None:
        missing("Ray Data: install ray[data]")
    engine, user, pid = engine_of_events, f"rows-{kind}", tmp_path / f"rows-{kind}.pid"
    (tmp_path / "job.py").write_text(JOBS[kind])
    numbers: dict[int, int] = {}

    async def listen() -> None:
        async with Client(engine.url, engine.token(user)) as client:
            async for message in client:
                numbers[message.seq] = message.data

    job = (
        "env",
        f"PYTHONPATH={CHECKOUT}",
        sys.executable,
        os.fspath(tmp_path / "job.py"),
        os.fspath(tmp_path),
        user,
        str(ROWS),
        str(BLOCK_ROWS),
    )
    listening = asyncio.ensure_future(listen())
    try:
        await cluster.submit(*job, notify="owner")
        await until(lambda: len(numbers) >= ROWS // 4, 90)
        os.kill(int(pid.read_text()), signal.SIGKILL)
        pid.unlink()
        (tmp_path / user).touch()
        await cluster.submit(*job, notify="owner")
        await until(lambda: len(set(numbers.values())) == ROWS, 90)
    finally:
        listening.cancel()
    assert pid.exists()
    assert sorted(numbers) == list(range(1, ROWS + 1)), "a row that was accepted twice has two numbers"
