"""The watcher tells each end once, whoever dies, over a real Redis; Ray and the edges are fakes that remember ids as an engine does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from engine.api.actor_feature import ActorPorts
from engine.config import Config
from engine.errors import Unavailable
from engine.features.ray_events import watcher as watcher_module
from engine.features.ray_events.core.exported import Death
from engine.features.ray_events.core.incidents import Unhealthy
from engine.features.ray_events.core.jobs import Job
from engine.features.ray_events.store import RayEventsStore
from engine.features.ray_events.watcher import Watcher
from tests.support.background_task import background
from tests.support.waiting import until

CONFIG = Config(ray_events="team", ray_events_users=("ops",))
NOW = 1_800_000_000_000


@pytest.fixture(autouse=True)
def short_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_JOBS_S", "_DEATHS_S", "_SERVE_S", "_RETRY_FIRST_S"):
        monkeypatch.setattr(watcher_module, name, 0.02)


def job(name: str, status: str = "RUNNING", end_ms: int = 0) -> Job:
    return Job(name, f"ray-{name}", status, "python x.py", "", "", NOW, end_ms, {"notify": "ann"})


def death(kind: Any = "actor", id: str = "ab", ray_job: str = "ray-a") -> Death:
    of_node = kind == "node"
    return Death(kind, id, "" if of_node else ray_job, "" if of_node else "A", "WORKER_DIED", "", NOW)


class Ray:
    """Jobs, applications and nodes; `away`: its dashboard does not answer; `listing`: it makes a list, which takes until then."""

    def __init__(self) -> None:
        self.listed: list[Job] = []
        self.unhealthy: list[Unhealthy] = []
        self.away = False
        self.listing = threading.Event()
        self.listing.set()
        self.lists = 0

    def connect(self) -> None:
        if self.away:
            raise Unavailable("the dashboard is away")

    def jobs(self) -> list[Job]:
        self.listing.wait()
        self.lists += 1
        return list(self.listed)

    def unhealthy_apps(self) -> list[Unhealthy]:
        if self.away:
            raise Unavailable("the dashboard is away")
        return list(self.unhealthy)

    def node_names(self) -> dict[str, str]:
        return {"n1": "worker-1 (10.0.0.1)"}


class Edges:
    """Takes events, and tells which ids were new. `statuses` are the next answers; `loses`: it takes, and its answer is lost.
    `takes_s`: an answer takes so long."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.repeats = 0
        self.statuses: list[int] = []
        self.loses = False
        self.takes_s = 0.0
        self.never = set[str]()  # jobs and nodes whose events it refuses for now, however often

    async def publish(self, tenant: str, path: str, bodies: Sequence[bytes]) -> list[tuple[int, dict[str, str], bytes]]:
        assert (tenant, path) == ("team", "/v1/events")
        answers = []
        for body in bodies:
            status = self.statuses.pop(0) if self.statuses else 202
            if any(f":{name}" in json.loads(body)["id"] for name in self.never):
                status = 429
            answers.append((status, {}, b"{}"))
            if status == 202:
                event = json.loads(body)
                self.repeats += event["id"] in self.events
                self.events.setdefault(event["id"], event)
            elif status == 429 or status >= 500:
                break
        await asyncio.sleep(self.takes_s)
        if self.loses:
            raise Unavailable("the answer is lost")
        return answers

    def types(self) -> list[str]:
        return [event["type"] for event in self.events.values()]


@contextlib.asynccontextmanager
async def watching(ray: Ray, edges: Edges, redis: Redis, now_ms: int = NOW) -> AsyncIterator[Watcher]:
    """A watcher that is killed at the end of the block, wherever it is."""
    watcher = Watcher(lambda: now_ms, ray)
    async with background(watcher.run(ActorPorts(CONFIG, 0, redis, edges))):
        yield watcher


async def listed(ray: Ray, count: int = 2) -> None:
    """Wait for whole lists from now on."""
    wanted = ray.lists + count
    await until(lambda: ray.lists >= wanted)


async def test_an_end_is_told_once_however_often_the_watcher_restarts(redis_client: Redis) -> None:
    ray, edges = Ray(), Edges()
    ray.listed = [job("old", "FAILED", NOW - 5), job("a")]
    async with watching(ray, edges, redis_client) as watcher:
        await until(lambda: watcher.stats()["running_jobs"] == 1)
    ray.listed[1] = job("a", "FAILED", NOW + 5)
    for _ in range(3):
        async with watching(ray, edges, redis_client):
            await listed(ray)
    assert [(event["type"], event["data"]["notify"]) for event in edges.events.values()] == [("ray.job.failed", ["ann"])]
    assert edges.repeats == 0


async def test_an_end_whose_acceptance_was_not_stored_is_told_again_under_its_id(redis_client: Redis) -> None:
    ray, edges = Ray(), Edges()
    ray.listed, edges.loses = [job("a", "FAILED", NOW + 5)], True
    async with watching(ray, edges, redis_client) as watcher:
        await until(lambda: len(edges.events) == 1)
        await until(lambda: "the answer is lost" in watcher.stats()["state"])
    edges.loses = False
    async with watching(ray, edges, redis_client) as watcher:
        await until(lambda: watcher.stats()["told"] == 1)
    assert (edges.types(), edges.repeats > 0) == (["ray.job.failed"], True)


async def test_many_deaths_are_told_in_parts_and_once(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher_module, "_BATCH", 10)
    ray, edges = Ray(), Edges()
    await RayEventsStore(redis_client, CONFIG).append([death(id=f"{number:02}") for number in range(35)])
    edges.statuses = [*[202] * 4, 429] * 3
    async with watching(ray, edges, redis_client) as watcher:
        await until(lambda: watcher.stats()["told"] == 35)
        await until(lambda: RayEventsStore(redis_client, CONFIG).waiting(1), holds=lambda waiting: waiting == [])
    assert (len(edges.events), edges.repeats) == (35, 0)


async def test_a_job_that_its_cluster_lost_is_told_after_the_restart(redis_client: Redis) -> None:
    ray, edges = Ray(), Edges()
    ray.listed = [job("a")]
    async with watching(ray, edges, redis_client) as watcher:
        await until(lambda: watcher.stats()["running_jobs"] == 1)
    ray.listed = []
    async with watching(ray, edges, redis_client):
        await until(lambda: edges.types() == ["ray.job.lost"])
        await listed(ray)
    async with watching(ray, edges, redis_client):
        await listed(ray, 4)
    assert (edges.types(), edges.repeats) == (["ray.job.lost"], 0)


async def test_ends_wait_while_the_engine_is_overloaded(redis_client: Redis) -> None:
    ray, edges = Ray(), Edges()
    ray.listed = [job(name, "FAILED", NOW + 5) for name in "abc"]
    edges.statuses = [202, 429, 503]
    async with watching(ray, edges, redis_client):
        await until(lambda: len(edges.events) == 3)


async def test_events_that_an_edge_never_takes_hold_up_no_others(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant that has all its users answers 429 to an event that names a new one, for as long as that is so."""
    monkeypatch.setattr(watcher_module, "_BATCH", 2)
    monkeypatch.setattr(watcher_module, "_DEATHS", 2)
    ray, edges, store = Ray(), Edges(), RayEventsStore(redis_client, CONFIG)
    edges.never = {f"new-{number}" for number in range(5)} | {f"0{number}" for number in range(5)}
    ray.listed = [job(name, "FAILED", NOW + number) for number, name in enumerate([*sorted(edges.never), "a", "b", "c"])]
    for id in (*sorted(edges.never), "11", "12", "13"):
        await store.append([death("node", id)])
    async with watching(ray, edges, redis_client):
        await until(lambda: len(edges.events) == 6)
        await until(lambda: store.jobs(0), holds=lambda stored: len(stored.told) == 3)
        await until(lambda: store.waiting(99), holds=lambda waiting: len(waiting) == 10)
        edges.never = set()
        await until(lambda: len(edges.events) == 26)
        await until(lambda: store.waiting(1), holds=lambda waiting: waiting == [])
    assert edges.repeats == 0


async def test_an_event_that_is_refused_stops_no_other(redis_client: Redis) -> None:
    ray, edges = Ray(), Edges()
    ray.listed = [job(name, "FAILED", NOW + 5) for name in "ab"]
    edges.statuses = [422]
    async with watching(ray, edges, redis_client) as watcher:
        await until(lambda: (watcher.stats()["refused"], watcher.stats()["told"]) == (1, 1))
        await listed(ray)
    assert len(edges.events) == 1


async def test_a_death_is_told_when_its_job_goes_on_and_else_is_none(redis_client: Redis) -> None:
    ray, edges = Ray(), Edges()
    ray.listed = [job("a"), job("b", "FAILED", NOW - 5)]
    store = RayEventsStore(redis_client, CONFIG)
    await store.append([death(), death(id="cd", ray_job="ray-b"), death("node", "n1")])
    async with watching(ray, edges, redis_client):
        await until(lambda: len(edges.events) == 2)
        await store.append([death(), death("node", "n1")])  # as Ray posts a batch again whose answer it did not get
        await until(lambda: edges.repeats == 2)
    node, actor = edges.events.values()
    assert (actor["type"], actor["context"], actor["data"]["notify"]) == ("ray.actor.died", "a", ["ann"])
    assert (node["type"], node["data"]["node"], node["data"]["notify"]) == ("ray.node.lost", "worker-1 (10.0.0.1)", ["ops"])
    assert await store.waiting(9) == []


async def test_a_lost_node_is_told_while_the_dashboard_is_away(redis_client: Redis) -> None:
    ray, edges = Ray(), Edges()
    ray.away = True
    await RayEventsStore(redis_client, CONFIG).append([death("node", "n1")])
    async with watching(ray, edges, redis_client) as watcher:
        await until(lambda: edges.types() == ["ray.node.lost"])
        assert "jobs: the dashboard is away" in watcher.stats()["state"]


async def test_a_death_waits_for_a_slow_first_list_and_nodes_do_not(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher_module, "_AWAY_S", 0.0)
    ray, edges = Ray(), Edges()
    store = RayEventsStore(redis_client, CONFIG)
    await store.append([death(), death("node", "n1")])
    ray.listing.clear()
    async with watching(ray, edges, redis_client):
        try:
            await until(lambda: edges.types() == ["ray.node.lost"])
            ray.listed = [job("a", "FAILED", NOW + 5)]
        finally:
            ray.listing.set()
        await until(lambda: store.waiting(9), holds=lambda waiting: waiting == [])
        await until(lambda: len(edges.events) == 2)
    assert (edges.types(), edges.repeats) == (["ray.node.lost", "ray.job.failed"], 0)


async def test_deaths_in_jobs_are_told_while_the_dashboard_stays_away(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher_module, "_AWAY_S", 0.2)
    ray, edges = Ray(), Edges()
    ray.away = True
    await RayEventsStore(redis_client, CONFIG).append([death()])
    async with watching(ray, edges, redis_client):
        await until(lambda: edges.types() == ["ray.actor.died"])
    (event,) = edges.events.values()
    assert (event["context"], event["data"]["notify"]) == ("ray-a", ["ops"])


async def test_an_edge_that_answers_late_delays_no_list(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher_module, "_PATIENCE", 1000)
    ray, edges = Ray(), Edges()
    ray.listed, edges.takes_s = [job("a", "FAILED", NOW + 5)], 0.2
    async with watching(ray, edges, redis_client):
        await listed(ray)
    assert edges.types() == ["ray.job.failed"]


async def test_one_slow_list_delays_the_next_for_a_while_only(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher_module, "_PATIENCE", 1000)
    monkeypatch.setattr(watcher_module, "_PATIENCE_CAP_S", 0.1)
    ray = Ray()
    ray.listing.clear()
    async with watching(ray, Edges(), redis_client):
        await asyncio.sleep(0.2)  # the list takes so long
        ray.listing.set()
        await listed(ray)


async def test_an_unhealthy_application_is_told_once_until_it_is_healthy(redis_client: Redis) -> None:
    ray, edges, store = Ray(), Edges(), RayEventsStore(redis_client, CONFIG)
    ray.unhealthy = [Unhealthy("shop", "UNHEALTHY", "no replica")]
    async with watching(ray, edges, redis_client):
        while await store.unhealthy() != {"shop": (NOW, True)}:
            await asyncio.sleep(0.01)
    assert edges.types() == ["ray.serve.unhealthy"]
    async with watching(ray, edges, redis_client):
        await listed(ray)
    assert edges.repeats == 0
    ray.unhealthy = []
    async with watching(ray, edges, redis_client):
        while await store.unhealthy():
            await asyncio.sleep(0.01)
    ray.unhealthy = [Unhealthy("shop", "UNHEALTHY", "again")]
    async with watching(ray, edges, redis_client, NOW + 60_000):
        await until(lambda: len(edges.events) == 2)


async def test_the_horizon_follows_the_lists(redis_client: Redis) -> None:
    ray, edges = Ray(), Edges()
    ray.listed = [job("a", "FAILED", NOW + 5)]
    async with watching(ray, edges, redis_client):
        await listed(ray)
    a_week_later = NOW + 7 * 86_400_000
    async with watching(ray, edges, redis_client, a_week_later):
        await listed(ray)
    stored = await RayEventsStore(redis_client, CONFIG).jobs(0)
    assert (stored.horizon_ms, stored.told) == (a_week_later - 86_400_000, [])
    async with watching(ray, edges, redis_client, a_week_later + 1):
        await listed(ray)
    assert (len(edges.events), edges.repeats) == (1, 0)
