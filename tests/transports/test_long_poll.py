"""Long polling over a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from engine.core.wire import records as wire
from tests.support.edge_world import DEADLINE_S, EPOCH, EdgeWorld, edge_world
from tests.support.waiting import until


async def poll(world: EdgeWorld, cursor: str = "", wait: float = 0) -> dict[str, Any]:
    answer = await world.once().get("/v1/poll", params={"last_event_id": cursor, "wait": wait})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def test_a_poll_answers_at_once_when_something_is_pending(world: EdgeWorld) -> None:
    await world.publish(count=2)
    answer = await poll(world, wait=30)
    assert [message["seq"] for message in answer["messages"]] == [1, 2]
    assert answer["last_event_id"] == f"{EPOCH}-2"
    assert answer["resumed"] == "new"
    assert not world.gateway.connections
    await until(lambda: world.shard.of(wire.Detach))


async def test_an_early_copy_whose_place_the_answer_reaches_is_left_out() -> None:
    async with edge_world() as world:
        waiting = asyncio.ensure_future(poll(world, wait=30))
        await until(lambda: world.shard.attached)
        (conn,) = world.shard.attached
        bodies = [(seq, 1, b'"id":"m%d"' % seq) for seq in (1, 2, 3)]
        world.shard.say(wire.DeliverEarly(conn, bodies[1:]), wire.Deliver(conn, bodies[:2]))
        answer = await waiting
    assert [message["seq"] for message in answer["messages"]] == [1, 2]
    assert [message["seq"] for message in answer["early"]] == [3]
    assert answer["last_event_id"] == f"{EPOCH}-2"


async def test_the_next_poll_acknowledges_and_waits_for_what_comes(world: EdgeWorld) -> None:
    await world.publish(count=2)
    waiting = asyncio.ensure_future(poll(world, f"{EPOCH}-2", 30))
    await until(lambda: world.shard.attached)
    assert world.shard.acked["default:u1"] == 2
    await world.publish()
    answer = await waiting
    assert [message["seq"] for message in answer["messages"]] == [3]
    assert answer["resumed"] == "ok"


async def test_a_poll_without_news_gives_the_cursor_back(world: EdgeWorld) -> None:
    await world.publish(count=2)
    expected = {"messages": [], "last_event_id": f"{EPOCH}-2", "resumed": "ok", "user": "u1"}
    assert await poll(world, f"{EPOCH}-2", 0.1) == expected


async def test_a_poll_that_is_not_to_wait_answers_as_soon_as_the_shard_has_spoken() -> None:
    async with edge_world(poll_grace_ms=60_000) as world, asyncio.timeout(60):
        world.shard.connected = False
        asked = asyncio.ensure_future(poll(world, wait=0))
        await until(lambda: world.gateway.connections)
        await asyncio.sleep(0.05)  # the wait is over, and the shard has not spoken
        world.shard.reset()
        assert (await asked)["messages"] == []


async def test_a_poll_tells_gaps_and_what_comes_behind_them(world: EdgeWorld) -> None:
    waiting = asyncio.ensure_future(poll(world, "other-9", 30))
    await until(lambda: world.shard.attached)
    conn = next(iter(world.shard.attached))
    world.shard.say(wire.GapRange(conn, 1, 4), wire.Deliver(conn, [(5, 1, b'"id":"a"')]))
    answer = await waiting
    assert answer["gaps"] == [{"from": 1, "to": 4}]
    assert [message["seq"] for message in answer["messages"]] == [5]
    assert answer["last_event_id"] == f"{EPOCH}-5"
    assert answer["resumed"] == "gap"


async def test_a_poll_stays_after_a_gap_for_an_announced_message() -> None:
    async with edge_world(poll_grace_ms=60_000) as world:
        asked, conn = await poll_with_two_ahead(world)
        world.shard.say(wire.GapRange(conn, 2, 2))
        await until(lambda: world.gateway.connections[conn]._seq == 2)
        world.shard.say(wire.Deliver(conn, [(3, 1, b'"id":"a"')]))
        answer = await asked
    assert answer["gaps"] == [{"from": 2, "to": 2}]
    assert [message["seq"] for message in answer["messages"]] == [3]


async def test_a_poll_answers_with_a_gap_when_nothing_follows() -> None:
    async with edge_world(poll_grace_ms=50) as world:
        asked, conn = await poll_with_two_ahead(world)
        world.shard.say(wire.GapRange(conn, 2, 2))
        answer = await asyncio.wait_for(asked, DEADLINE_S)
    assert answer["gaps"] == [{"from": 2, "to": 2}]


async def poll_with_two_ahead(world: EdgeWorld) -> tuple[asyncio.Future[dict[str, Any]], int]:
    """A poll of a user with the numbers 2 and 3 before it, of which nothing was sent, and its connection."""
    world.shard.heads["default:u1"] = 3
    asked = asyncio.ensure_future(poll(world, f"{EPOCH}-1", 60))
    await until(lambda: any(one.welcomed for one in world.gateway.connections.values()))
    return asked, next(iter(world.shard.attached))


async def test_a_client_that_leaves_ends_its_poll(world: EdgeWorld) -> None:
    with pytest.raises(httpx.ReadTimeout):
        await world.once().get("/v1/poll?wait=30", timeout=0.3)
    await until(lambda: world.shard.of(wire.Detach))
    assert not world.gateway.connections


async def test_a_poll_ends_with_its_token(world: EdgeWorld) -> None:
    answer = await world.once(ttl_s=1).get("/v1/poll?wait=30")
    assert (answer.status_code, answer.json()["detail"]) == (401, "the token has expired")


async def test_a_poll_that_is_one_too_many_is_told_so(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    waiting = asyncio.ensure_future(client.get("/v1/poll?wait=30"))
    await until(lambda: world.shard.attached)
    world.shard.say(wire.Hangup(next(iter(world.shard.attached)), 4409, "too many connections of this user"))
    answer = await waiting
    assert answer.status_code == 429
    assert "retry-after" in answer.headers


async def test_a_shard_that_does_not_answer_makes_a_poll_fail_not_lie() -> None:
    async with edge_world(poll_grace_ms=200) as world, world.http() as client:
        world.shard.connected = False
        assert (await client.get("/v1/poll?wait=0")).status_code == 503


async def test_a_drain_answers_polls_at_once(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    waiting = asyncio.ensure_future(client.get("/v1/poll?wait=30"))
    await until(lambda: world.shard.attached)
    await world.gateway.drain()
    assert (await asyncio.wait_for(waiting, DEADLINE_S)).status_code == 503
