"""The controller with real actors: what its status says, and what it does about an actor that is there but silent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from engine.actors.controller import Controller
from engine.config import Config
from engine.core.controller.wanted import WantedNumbers
from engine.store.keys import CONTROLLER_FIELD, META_KEY
from tests.support.chaos.breakable_engine import victim_of
from tests.support.running_engine import RunningEngine

PATIENCE_S = 3
"""Of the controller of `two_edges`."""


def _present(status: dict[str, Any]) -> bool:
    """Whether everybody is ready by the controller that runs: an edge gives the last status of one that has died for a second."""
    return bool(status["ready"]) and psutil.pid_exists(status["controller"]["pid"])


def test_the_status_has_a_row_for_everybody(engine: RunningEngine) -> None:
    found = engine.status_when(lambda status: bool(status["ready"]))
    assert [len(found[kind]) for kind in ("shards", "schedulers", "edges")] == [2, 1, 1]
    rows = [*found["shards"], *found["schedulers"], *found["edges"], found["controller"]]
    for row in rows:
        assert row["alive"]
        assert row["ready"]
        assert row["pid"] > 0
        assert row["node"]
        assert row["rss_bytes"] > 10 << 20
        assert row["cpu_pct"] >= 0
    assert len({row["pid"] for row in rows}) == len(rows), "each part is a process of its own"
    assert found["redis"]["alive"]
    assert found["redis"]["aof_enabled"]
    assert {"connections", "published", "acknowledged", "pending", "p50_ms", "p95_ms", "p99_ms"} <= found["totals"].keys()
    assert {f"{what}_p{percent}_ms" for what in ("send", "ack") for percent in (50, 95, 99)} <= found["totals"].keys()


def test_each_part_is_forked_from_a_process_that_has_loaded_its_code(engine: RunningEngine) -> None:
    found = engine.status_when(lambda status: bool(status["ready"]))
    rows = [*found["shards"], *found["schedulers"], *found["edges"], found["controller"]]
    parents = {psutil.Process(row["pid"]).parent() for row in rows}
    assert ["engine.cli.fork_server" in parent.cmdline() for parent in parents if parent] == [True]


async def test_totals_and_quantiles_follow_what_is_delivered(engine: RunningEngine) -> None:
    before = engine.status_when(lambda status: bool(status["ready"]))["totals"]
    async with engine.connect("controller-status") as socket:
        await engine.publish(*({"user": "controller-status", "type": "test.message", "data": n} for n in range(20)))
        last = 0
        while last < 20:
            last = (await engine.receive(socket, "messages"))["messages"][-1]["seq"]
        await socket.send('{"type":"ack","seq":20}')
        found = engine.status_when(lambda status: status["totals"]["acknowledged"] >= before["acknowledged"] + 20)
    assert found["totals"]["published"] >= before["published"] + 20
    assert found["totals"]["send_p50_ms"] is not None
    assert found["totals"]["ack_p50_ms"] is not None
    assert found["totals"]["p50_ms"] is not None
    assert found["totals"]["p50_ms"] <= found["totals"]["p95_ms"] <= found["totals"]["p99_ms"]


@pytest.mark.slow
@pytest.mark.engine
async def test_counters_are_no_older_than_a_second_however_seldom_the_controller_asks(pressed: RunningEngine) -> None:
    before = pressed.status()["totals"]["published"]
    for published in (before + 1, before + 2):
        await pressed.publish({"user": "counted", "type": "test.message"})
        pressed.status_when(lambda status, published=published: status["totals"]["published"] == published)


async def test_a_control_service_that_is_away_is_not_asked_for_room() -> None:
    """Each question would keep a thread until it is back, and others need the threads."""
    asked: list[bool] = []

    async def capacity(*, by_cores: bool) -> dict[str, int]:
        asked.append(by_cores)
        return {"shard": 1, "scheduler": 1, "edge": 1}

    controller = Controller.__new__(Controller)
    controller._config = Config()
    controller._reconciler = SimpleNamespace(wanted=WantedNumbers(1, 1, 1))  # type: ignore[assignment]
    controller._actors = SimpleNamespace(capacity=capacity)  # type: ignore[assignment]
    controller._fleet = SimpleNamespace(ray_answers=False)  # type: ignore[assignment]
    assert await controller._beyond_capacity({"shards": 2}) == {}
    assert not asked
    controller._fleet.ray_answers = True
    assert "2 shards" in (await controller._beyond_capacity({"shards": 2}))["refused"]


def latencies(status: dict[str, Any], name: str) -> tuple[int, int]:
    """How many all shards have measured so far, and the sum in milliseconds."""
    return sum(count for row in status["shards"] for _, count in row[name]), sum(row[f"{name}_sum_ms"] for row in status["shards"])


@pytest.mark.slow
@pytest.mark.engine
async def test_a_user_s_absence_is_in_neither_latency_that_the_status_shows(two_edges: RunningEngine) -> None:
    away_s = 1.5
    before = two_edges.status_when(lambda status: bool(status["ready"]))
    await two_edges.publish({"user": "away", "type": "test.message"})
    await asyncio.sleep(away_s)  # the absence itself
    async with two_edges.connect("away") as socket:
        message = (await two_edges.receive(socket, "messages"))["messages"][0]
        await socket.send(json.dumps({"type": "ack", "seq": message["seq"]}))
        after = two_edges.status_when(lambda status: latencies(status, "ack_latency")[0] > latencies(before, "ack_latency")[0])
    assert latencies(after, "send_latency") == latencies(before, "send_latency"), "nobody was connected when it was accepted"
    acknowledged, delivered = (
        [now - then for now, then in zip(latencies(after, name), latencies(before, name), strict=True)]
        for name in ("ack_latency", "latency")
    )
    assert (acknowledged[0], delivered[0]) == (1, 1)
    assert delivered[1] - acknowledged[1] >= 1000 * away_s


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("kind", ["schedulers", "shards"])
def test_an_actor_that_is_there_but_silent_is_replaced(two_edges: RunningEngine, kind: str) -> None:
    before = two_edges.status_when(lambda status: bool(status["ready"]))
    row = before[kind][0]
    others = {part["pid"] for name in ("shards", "schedulers", "edges") if name != kind for part in before[name]}
    os.kill(row["pid"], signal.SIGSTOP)
    try:
        after = two_edges.status_when(lambda status: status["ready"] and status[kind][0]["pid"] != row["pid"])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(row["pid"], signal.SIGKILL)
    assert after[kind][0]["restarts"] == row["restarts"] + 1
    assert others <= {part["pid"] for name in ("shards", "schedulers", "edges") for part in after[name]}, "nobody else was disturbed"


@pytest.mark.slow
@pytest.mark.engine
def test_a_controller_that_dies_comes_back_and_disturbs_nobody(two_edges: RunningEngine) -> None:
    before = two_edges.status_when(_present)
    pids = {kind: [row["pid"] for row in before[kind]] for kind in ("shards", "schedulers", "edges")}
    os.kill(before["controller"]["pid"], signal.SIGKILL)
    after = two_edges.status_when(lambda status: _present(status) and status["controller"]["pid"] != before["controller"]["pid"])
    assert {kind: [row["pid"] for row in after[kind]] for kind in ("shards", "schedulers", "edges")} == pids


@pytest.mark.slow
@pytest.mark.engine
def test_a_controller_ends_when_another_has_taken_control_and_disturbs_nobody(two_edges: RunningEngine) -> None:
    """One whose node was cut off, for so long that Ray started another."""
    before = two_edges.status_when(_present)
    pids = {kind: [row["pid"] for row in before[kind]] for kind in ("shards", "schedulers", "edges")}
    with victim_of(two_edges).redis() as redis:
        redis.hincrby(META_KEY, CONTROLLER_FIELD, 1)
        after = two_edges.status_when(lambda status: _present(status) and status["controller"]["pid"] != before["controller"]["pid"])
    assert {kind: [row["pid"] for row in after[kind]] for kind in ("shards", "schedulers", "edges")} == pids


@pytest.mark.slow
@pytest.mark.engine
def test_nobody_is_replaced_by_a_controller_that_does_not_reach_storage(two_edges: RunningEngine) -> None:
    """It may be cut off itself: then all others look silent to it."""
    before = two_edges.status_when(_present)
    shard = before["shards"][0]
    with victim_of(two_edges).stopped("redis"):
        os.kill(shard["pid"], signal.SIGSTOP)
        time.sleep(2 * PATIENCE_S)  # the silence itself; the edges give no status meanwhile
        os.kill(shard["pid"], signal.SIGCONT)
    after = two_edges.status_when(lambda status: bool(status["ready"]))
    assert (after["shards"][0]["pid"], after["shards"][0]["restarts"]) == (shard["pid"], shard["restarts"])
