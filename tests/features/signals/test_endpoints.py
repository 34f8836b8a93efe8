"""Counter signals over HTTP and in Redis: merged, added once whatever gets lost, dropped only without room."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from engine.features.signals.core import CounterBatch
from engine.features.signals.keys import signals_key
from engine.features.signals.store import CounterSums
from tests.support.edge_world import EdgeWorld, edge_world
from tests.support.scrapes import rendered
from tests.support.waiting import until


async def count(world: EdgeWorld, body: Any, status: int = 202, **claims: Any) -> Any:
    answer = await world.once("app", **claims).post("/v1/signals", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def sums(world: EdgeWorld, *names: str, status: int = 200) -> Any:
    async with world.http("app") as client:
        answer = await client.get("/v1/signals", params=[("name", name) for name in names])
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_signals_are_merged_and_added_up_under_their_tenant() -> None:
    async with edge_world(signals_flush_ms=20) as world:
        assert await count(world, [{"name": "views:1"}, {"name": "views:1", "amount": 4}, {"name": "heat"}]) == {"counted": 3, "dropped": 0}
        assert await count(world, {"name": "views:1"}) == {"counted": 1, "dropped": 0}
        await until(lambda: world.sums.sums == {"default:views:1": 6, "default:heat": 1})
        assert await sums(world, "views:1", "heat", "other") == {"signals": {"views:1": 6, "heat": 1, "other": 0}}


async def test_a_batch_whose_answer_was_lost_counts_once() -> None:
    async with edge_world(signals_flush_ms=20) as world:
        world.sums.failures = 3
        await count(world, {"name": "a", "amount": 5})
        await until(lambda: world.sums.failures < 0)
        await count(world, {"name": "a", "amount": 2})
        await until(lambda: world.sums.sums == {"default:a": 7})
        assert world.sums.numbers == [1, 2]


async def test_without_storage_what_has_a_place_still_counts_and_the_rest_is_dropped_and_told() -> None:
    async with edge_world(signals_flush_ms=20, signals_names_max=4) as world:
        world.sums.failures = 1 << 30
        await count(world, {"name": "first"})
        await until(lambda: world.sums.numbers == [1])
        told = {"counted": 3, "dropped": 1, "quota": "signals_names_max"}
        assert await count(world, [{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "a"}]) == told
        await sums(world, "a", status=503)
        assert b'engine_edge_signals_dropped_total{edge="edge-0"} 1.0' in rendered(world.gateway.metrics, None)
        world.sums.failures = 0
        await until(lambda: world.sums.sums == {"default:first": 1, "default:a": 2, "default:b": 1})


async def test_an_edge_that_stops_adds_what_it_has() -> None:
    async with edge_world(signals_flush_ms=60_000) as world:
        await count(world, {"name": "a"})
        await world.signals.drain()
        assert world.sums.sums == {"default:a": 1}


async def test_an_edge_that_stops_waits_for_the_batch_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async with edge_world(signals_flush_ms=20) as world:
        add, under_way, held = world.sums.add, asyncio.Event(), asyncio.Event()

        async def late(*arguments: Any) -> int:
            under_way.set()
            await held.wait()
            return await add(*arguments)

        monkeypatch.setattr(world.sums, "add", late)
        await count(world, {"name": "a"})
        await under_way.wait()
        await count(world, {"name": "b"})
        draining = asyncio.create_task(world.signals.drain())
        await asyncio.wait({draining}, timeout=0.1)
        held.set()
        await draining
        assert world.sums.sums == {"default:a": 1, "default:b": 1}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "$"),
        ({"name": ""}, "$.name"),
        ({"name": "a", "amount": 0}, "$.amount"),
        ([{"name": "a"}, {"name": "a", "amount": 1 << 40}], "$[1].amount"),
        ({"name": "a", "amount": 1.5}, "$.amount"),
        ({"name": "a", "value": 1}, "$.value"),
    ],
)
async def test_a_wrong_signal_is_refused_with_its_path_and_none_is_counted(body: Any, path: str) -> None:
    async with edge_world(items_max=2) as world:
        assert (await count(world, body, 422))["errors"][0]["path"] == path
        await count(world, [{"name": "a"}] * 3, 413)
        await count(world, {"name": "a"}, 403, scopes="connect")
        await sums(world, status=400)
        assert world.signals.figures() == {"signals": [(0,)], "signals_dropped": [(0,)]}


async def test_redis_adds_each_batch_of_a_writer_once(redis_client: Redis) -> None:
    store = CounterSums(redis_client)
    batch = CounterBatch(1, {"t:a": 2, "t:b:c": 3, "u:a": 4})
    for _ in range(2):
        await store.add("w1", batch)
    await store.add("w1", CounterBatch(2, {"t:a": 1}))
    await store.add("w1", batch)
    await store.add("w2", CounterBatch(1, {"t:a": 10}))
    assert await store.read("t", ["a", "b:c", "none"]) == [13, 3, 0]
    assert await store.read("u", ["a"]) == [4]
    assert await redis_client.hlen(signals_key("t")) == 2
