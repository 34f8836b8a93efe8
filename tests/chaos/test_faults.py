"""Kill a part of a loaded engine: nothing accepted is lost, no number is used twice, order is kept, service comes back.

One engine for the module, restarted only where the test is about that. Times are printed, and asserted very loosely.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import psutil
import pytest

from tests.chaos.traffic import Traffic
from tests.conftest import RunningEngine

pytestmark = [pytest.mark.slow, pytest.mark.engine]
LATE_S = 60
"""Far beyond the 3 s that are the aim: this machine may be doing anything else."""


@pytest.fixture
async def traffic(victim: RunningEngine, request: pytest.FixtureRequest) -> AsyncIterator[Traffic]:
    name = request.node.name.replace("[", "-").replace("]", "")[-40:]
    async with Traffic(victim, name) as running:
        yield running


async def status_when(engine: RunningEngine, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The engine's status once it is as wanted; while the edge is down there is none."""
    deadline = asyncio.get_running_loop().time() + LATE_S
    while True:
        try:
            status = await asyncio.to_thread(engine.status)
            if holds(status):
                return status
        except Exception:  # connection refused, reset, 503: the edge may be the victim
            status = {}
        assert asyncio.get_running_loop().time() < deadline, f"the status stays {status}"
        await asyncio.sleep(0.1)


def pid_of(status: dict[str, Any], role: str) -> int:
    if role == "redis":
        return int(status["redis"]["pid"])
    if role == "controller":
        return int(status["controller"]["pid"])
    return int(status[f"{role}s"][0]["pid"])


def redis_pid(engine: RunningEngine) -> int:
    """The Redis that runs below `engine up`."""
    assert engine.process is not None
    children = psutil.Process(engine.process.pid).children(recursive=True)
    return next(child.pid for child in children if child.name().startswith("redis-server"))


@pytest.mark.parametrize("role", ["shard", "edge", "scheduler", "controller"])
async def test_a_killed_actor_loses_nothing_and_is_replaced(victim: RunningEngine, traffic: Traffic, role: str) -> None:
    before = pid_of(await status_when(victim, lambda status: status["ready"]), role)
    os.kill(before, signal.SIGKILL)
    back_s = await traffic.flowing(LATE_S)
    print(f"{role}: everybody served again after {back_s:.1f} s")
    await status_when(victim, lambda status: status["ready"] and pid_of(status, role) != before)
    await traffic.finish()


async def test_a_killed_redis_is_started_again_on_its_data_and_loses_nothing(victim: RunningEngine, traffic: Traffic) -> None:
    before = redis_pid(victim)
    os.kill(before, signal.SIGKILL)
    back_s = await traffic.flowing(LATE_S)
    print(f"redis: everybody served again after {back_s:.1f} s")
    assert redis_pid(victim) != before
    await traffic.finish()


async def test_a_stopped_redis_answers_publishers_503_and_nothing_they_were_refused_appears(victim: RunningEngine) -> None:
    import httpx

    pid = redis_pid(victim)
    os.kill(pid, signal.SIGSTOP)
    try:
        async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
            headers = {"Authorization": f"Bearer {victim.token('app', 'publish')}"}
            item = {"user": "refused", "type": "test.message", "id": "refused-1"}
            answer = await http.post(f"{victim.url}/v1/notifications", json=item, headers=headers)
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers["content-type"] == "application/problem+json"
    finally:
        os.kill(pid, signal.SIGCONT)
    await status_when(victim, lambda status: status["ready"] and all(shard["storage"] == "ok" for shard in status["shards"]))
    deadline = asyncio.get_running_loop().time() + LATE_S
    while True:
        try:
            results = await victim.publish({"user": "refused", "type": "test.message", "id": "accepted-2"})
            break
        except AssertionError:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.2)
    assert results[0]["seq"] == 1, "the refused message must not have taken a number"
    async with victim.connect("refused") as socket:
        frame = await victim.receive(socket, "messages")
    assert [message["id"] for message in frame["messages"]] == ["accepted-2"]


async def test_an_armed_timer_survives_the_death_of_the_scheduler_and_fires_once(victim: RunningEngine) -> None:
    status = await status_when(victim, lambda status: status["ready"])
    (result,) = await victim.publish({"user": "timed", "type": "test.message", "id": "later", "delay": 2})
    assert result["status"] == "scheduled"
    os.kill(pid_of(status, "scheduler"), signal.SIGKILL)
    async with victim.connect("timed") as socket:
        frame = await victim.receive(socket, "messages", LATE_S)
        assert [message["id"] for message in frame["messages"]] == ["later"]
        await socket.send('{"type":"ack","seq":1}')
        await victim.publish({"user": "timed", "type": "test.message", "id": "next"})
        frame = await victim.receive(socket, "messages", LATE_S)
        assert [message["id"] for message in frame["messages"]] == ["next"], "the timer fired a second time"


async def test_everything_killed_at_once_comes_back_whole_on_the_same_data_directory(victim: RunningEngine, traffic: Traffic) -> None:
    (scheduled,) = await victim.publish({"user": "everything", "type": "test.message", "id": "survives", "delay": 3})
    assert victim.process is not None
    family = [psutil.Process(victim.process.pid), *psutil.Process(victim.process.pid).children(recursive=True)]
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    victim.process.wait(20)
    await asyncio.to_thread(victim.start)
    back_s = await traffic.flowing(LATE_S)
    print(f"everything: served again {back_s:.1f} s after the restart")
    await traffic.finish()
    async with victim.connect("everything") as socket:
        frame = await victim.receive(socket, "messages", LATE_S)
    assert [message["id"] for message in frame["messages"]] == ["survives"]
    assert scheduled["status"] == "scheduled"
