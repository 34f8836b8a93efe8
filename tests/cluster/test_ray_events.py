"""Jobs that are submitted to the cluster, and whom their ends are told, while the engine's processes are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from engine.features.ray_events.keys import RAY_DEATHS_KEY
from ray_notifications import Client
from tests.support.running_engine import RunningEngine
from tests.support.shared_cluster import EVENTS_DATABASE, SharedCluster
from tests.support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.slow, pytest.mark.engine]

WITHIN_S = 30.0
"""Of the end of a job. It takes 1.5 to 2.2 s on two idle cores, with the restarts of the killed processes; busy ones take longer."""

JOB = """
import os, pathlib, signal, sys, time, ray
ray.init()

@ray.remote
class Worker:
    def pid(self): return os.getpid()
    def work(self): time.sleep(600)

worker = Worker.remote()
pid = ray.get(worker.pid.remote())
pathlib.Path(sys.argv[1] + ".ready").touch()
while not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.02)
if sys.argv[3] == "raises": raise RuntimeError("kaboom")
if sys.argv[3] == "actor":
    working = worker.work.remote()
    os.kill(pid, signal.SIGKILL)
    ray.get(working)
"""

LOST_NODE = {
    "eventType": "NODE_LIFECYCLE_EVENT",
    "nodeLifecycleEvent": {
        "nodeId": "Q9cLvFcMObbpfcnF0b6ZOU33VJErJyjygoH+VA==",
        "stateTransitions": [
            {"state": "DEAD", "timestamp": "2026-11-26T17:02:36.385434326Z", "deathInfo": {"reason": "UNEXPECTED_TERMINATION"}}
        ],
    },
}
OWNERS = {"ann": "succeeds", "bob": "raises", "cat": "actor"}


def ends(cluster: SharedCluster) -> dict[str, float]:
    """When each owner's job ended, seconds since the epoch."""
    jobs = httpx.get(f"{cluster.dashboard}/api/jobs/", headers=cluster.authorization, timeout=30, trust_env=False).json()
    return {job["metadata"]["notify"]: job["end_time"] / 1000 for job in jobs if job["end_time"] and "notify" in job["metadata"]}


def kill(status: dict[str, Any], *roles: str) -> None:
    for role in roles:
        os.kill(status[role][0]["pid"], signal.SIGKILL)


async def test_each_owner_is_told_once_while_the_engine_is_killed(
    cluster: SharedCluster, engine_of_events: RunningEngine, tmp_path: Path
) -> None:
    engine, go = engine_of_events, tmp_path / "go"
    (tmp_path / "job.py").write_text(JOB)
    received: dict[str, list[tuple[float, Any]]] = {user: [] for user in (*OWNERS, "ops")}

    async def listen(user: str) -> None:
        # Beside three jobs that start, a first connection may take longer than the client waits otherwise.
        async with Client(engine.url, engine.token(user), open_timeout_s=PATIENCE_S) as client:
            async for message in client:
                received[user].append((time.time(), message))

    async with asyncio.TaskGroup() as tasks:
        listening = [tasks.create_task(listen(user)) for user in received]
        by = {"ann": cluster.submit_by_command}
        await asyncio.gather(
            *(
                by.get(user, cluster.submit)(
                    sys.executable, str(tmp_path / "job.py"), str(tmp_path / user), str(go), how, notify=user, notify_after_s="0"
                )
                for user, how in OWNERS.items()
            )
        )
        await until(lambda: {user for user in OWNERS if (tmp_path / f"{user}.ready").exists()}, 60, holds=lambda up: up == OWNERS.keys())
        status = await asyncio.to_thread(
            engine.status_when, lambda found: len(found["watchers"]) == 1 and found["watchers"][0].get("running_jobs", 0) >= len(OWNERS)
        )
        go.touch()
        kill(status, "edges", "watchers", "shards")
        await until(lambda: {user for user in OWNERS if received[user]}, 60, holds=lambda told: told == OWNERS.keys())
        ended = await asyncio.to_thread(ends, cluster)
        # What is told twice would come by now: the watcher is back, and has looked again.
        old = status["watchers"][0]["pid"]
        await asyncio.to_thread(
            engine.status_when, lambda found: found["watchers"][0].get("state") == "ok" and found["watchers"][0]["pid"] != old
        )
        assert received["ops"] == []
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            for _ in range(3):
                answer = await http.post(f"{engine.url}/v1/ray-events/{cluster.events_secret}", json=[LOST_NODE])
                assert answer.json()["news"] == 1
        await until(lambda: received["ops"])
        with Redis.from_url(cluster.redis_url(EVENTS_DATABASE)) as redis:
            await until(lambda: redis.xlen(RAY_DEATHS_KEY) == 0)
        for task in listening:
            task.cancel()
    types = {user: [message.type for _, message in received[user]] for user in OWNERS}
    assert types == {"ann": ["ray.job.finished"], "bob": ["ray.job.failed"], "cat": ["ray.job.failed"]}
    assert "RuntimeError: kaboom" in received["bob"][0][1].data["body"]
    late = {user: received[user][0][0] - ended[user] for user in OWNERS}
    assert max(late.values()) < WITHIN_S, late
    assert [message.data["reason"] for _, message in received["ops"]] == ["UNEXPECTED_TERMINATION"]
