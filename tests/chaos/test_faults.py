"""Break a part of a loaded engine: nothing accepted is lost, no number is used twice, order is kept, service comes back.

The scenarios are those of `python -m bench chaos`, with less of everything. Times are printed, and
asserted very loosely: far beyond the 3 s that are the aim, because this machine may be doing anything else.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.chaos.breakable_engine import LATE_S, SMALL, assert_whole, status_when, victim_of
from tests.support.chaos.scenarios import PLACES, SCENARIOS, Place, Scenario, strike
from tests.support.chaos.traffic import Traffic
from tests.support.missing_programs import missing
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until, until_done

pytestmark = [pytest.mark.slow, pytest.mark.engine]

SHARED = (
    "kill-shard", "lose-shard", "kill-edge", "kill-scheduler", "kill-controller", "kill-redis",
    "stall-shard", "stall-redis", "redis-memory", "redis-readonly", "disk-full",
)  # fmt: skip
"""Scenarios that leave an engine whole behind them; the longer ones are left to the benchmark."""

NUISANCES = ("never-reads", "never-acks", "garbage")
"""Nothing is broken by them, so they can be all at once."""


def scenario_of(name: str) -> Scenario:
    return next(scenario for scenario in SCENARIOS if scenario.name == name)


@pytest.mark.parametrize("name", SHARED)
async def test_a_fault_loses_nothing_and_service_comes_back(victim: RunningEngine, name: str) -> None:
    if name == "disk-full" and not victim.data_dir.is_mount():
        missing("disk-full was not tried: mounting a tmpfs needs root")
    await status_when(victim, lambda status: status["ready"])
    assert_whole(await strike(Place(victim_of(victim)), scenario_of(name), name, 0.3, **SMALL))


async def test_clients_and_publishers_that_misbehave_all_at_once_cost_the_others_nothing(victim: RunningEngine) -> None:
    await status_when(victim, lambda status: status["ready"])
    less = SMALL | {"rate": SMALL["rate"] // len(NUISANCES)}
    for books in await asyncio.gather(*(strike(Place(victim_of(victim)), scenario_of(one), one, 0.3, **less) for one in NUISANCES)):
        assert_whole(books)


async def test_sentinel_failover_loses_nothing_and_service_comes_back() -> None:
    """A store of a Redis Cluster fails over in tests/deploy/test_redis_tls.py."""
    with tempfile.TemporaryDirectory(prefix="engine-chaos-") as folder, PLACES["sentinel"](Path(folder)) as place:
        assert_whole(await strike(place, scenario_of("sentinel"), "sentinel", 0.3, **SMALL))


async def test_a_killed_actor_is_replaced_by_another_process(victim: RunningEngine) -> None:
    broken = victim_of(victim)
    await status_when(victim, lambda status: status["ready"])
    before = {role: set(broken.pids(role)) for role in ("shard", "scheduler", "controller", "edge", "redis")}
    killed = {broken.kill(role) for role in before}
    await status_when(victim, lambda status: status["ready"] and all(shard["storage"] == "ok" for shard in status["shards"]))
    after = {role: set(broken.pids(role)) for role in before}
    assert {role: len(pids) for role, pids in after.items()} == {role: len(pids) for role, pids in before.items()}
    assert not killed & set().union(*after.values())


async def test_a_connection_to_a_killed_edge_waits_for_its_next_process(victim: RunningEngine) -> None:
    await status_when(victim, lambda status: status["ready"])
    killed = victim_of(victim).kill("edge")
    await until(lambda: not psutil.pid_exists(killed), look_s=0)
    async with httpx.AsyncClient(timeout=LATE_S, trust_env=False, verify=False) as http:
        assert (await http.get(f"{victim.url}/healthz")).status_code == 200


async def test_clients_are_refused_soon_where_no_next_edge_can_serve(victim: RunningEngine) -> None:
    await status_when(victim, lambda status: status["ready"])

    async def refused() -> bool:
        try:
            async with httpx.AsyncClient(timeout=1, trust_env=False, verify=False) as http:
                await http.get(f"{victim.url}/healthz")
        except httpx.ConnectError:
            return True
        except httpx.TransportError:  # one that waited is reset
            return False
        return False

    with victim_of(victim).stopped("redis"):
        victim_of(victim).kill("edge")
        await until(refused, 30)
    await status_when(victim, lambda status: status["ready"])


async def test_a_stopped_redis_answers_publishers_503_and_nothing_they_were_refused_appears(victim: RunningEngine) -> None:
    with victim_of(victim).stopped("redis"):
        async with httpx.AsyncClient(timeout=30, trust_env=False, verify=False) as http:
            headers = {"Authorization": f"Bearer {victim.token('app', 'publish')}"}
            item = {"user": "refused", "type": "test.message", "id": "refused-1"}
            answer = await http.post(f"{victim.url}/v1/notifications", json=item, headers=headers)
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers["content-type"] == "application/problem+json"
    await status_when(victim, lambda status: status["ready"] and all(shard["storage"] == "ok" for shard in status["shards"]))
    item = {"user": "refused", "type": "test.message", "id": "accepted-2"}
    results = await until_done(lambda: victim.publish(item), AssertionError, within_s=LATE_S)
    assert results[0]["seq"] == 1, "the refused message must not have taken a number"
    async with victim.connect("refused") as socket:
        frame = await victim.receive(socket, "messages")
    assert [message["id"] for message in frame["messages"]] == ["accepted-2"]


async def test_an_armed_timer_survives_the_death_of_the_scheduler_and_fires_once(victim: RunningEngine) -> None:
    await status_when(victim, lambda status: status["ready"])
    (result,) = await victim.publish({"user": "timed", "type": "test.message", "id": "later", "delay": 2})
    assert result["status"] == "scheduled"
    victim_of(victim).kill("scheduler")
    async with victim.connect("timed") as socket:
        frame = await victim.receive(socket, "messages", LATE_S)
        assert [message["id"] for message in frame["messages"]] == ["later"]
        await socket.send('{"type":"ack","seq":1}')
        await victim.publish({"user": "timed", "type": "test.message", "id": "next"})
        frame = await victim.receive(socket, "messages", LATE_S)
        assert [message["id"] for message in frame["messages"]] == ["next"], "the timer fired a second time"


async def test_everything_killed_at_once_comes_back_whole_on_the_same_data_directory(victim: RunningEngine) -> None:
    (scheduled,) = await victim.publish({"user": "everything", "type": "test.message", "id": "survives", "delay": 3})
    assert scheduled["status"] == "scheduled"
    async with Traffic(victim.url, victim.token, "everything", **SMALL) as traffic:
        assert victim.process is not None
        for process in [psutil.Process(victim.process.pid), *psutil.Process(victim.process.pid).children(recursive=True)]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        victim.process.wait(20)
        victim.start()  # in the main thread: an engine ends with the thread that started it
        traffic.url = victim.url  # another free port
        began_s = time.monotonic()
        back_s = await traffic.flowing(began_s, LATE_S)
        print(f"everything: served again {back_s:.1f} s after the restart")
        assert_whole(await traffic.finish(LATE_S) | {"back_s": back_s})
    async with victim.connect("everything") as socket:
        frame = await victim.receive(socket, "messages", LATE_S)
    assert [message["id"] for message in frame["messages"]] == ["survives"]
