"""Edges inside a real engine: they share a port, die, come back, and take their leave."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.running_engine import RunningEngine, running_engine
from tests.support.waiting import until

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def two_edges() -> Iterator[RunningEngine]:
    """An engine of this module's own with two edges behind one port; its edges may be killed."""
    with running_engine("--edges", "2", "--shards", "1") as running:
        yield running


async def until_edges(engine: RunningEngine, condition: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """The edges' rows of the status, once they are as wanted."""
    status = await asyncio.to_thread(engine.status_when, lambda status: condition(status["edges"]))
    return list(status["edges"])


async def test_two_edges_share_a_port_and_both_get_connections(two_edges: RunningEngine) -> None:
    rows = await until_edges(two_edges, lambda rows: all(row["ready"] for row in rows))
    assert len({row["pid"] for row in rows}) == 2
    assert len({row["port"] for row in rows}) == 1
    sockets = [await two_edges.connect(f"user-{number}") for number in range(24)]
    names = {(await two_edges.receive(socket, "welcome"))["connection"].split("-")[0] for socket in sockets}
    assert names == {"e0", "e1"}
    results = await two_edges.publish(*[{"user": f"user-{number}", "type": "test.event"} for number in range(24)])
    assert {result["status"] for result in results} == {"accepted"}
    for socket in sockets:
        assert len((await two_edges.receive(socket, "messages"))["messages"]) == 1
        await socket.close()


async def test_when_an_edge_dies_the_other_serves_and_a_new_one_takes_its_place(two_edges: RunningEngine) -> None:
    rows = await until_edges(two_edges, lambda rows: all(row["ready"] for row in rows))
    victim = rows[0]
    socket = await two_edges.connect("resumes")
    name = (await two_edges.receive(socket, "welcome"))["connection"]
    while not name.startswith(f"e{victim['index']}-"):
        await socket.close()
        socket = await two_edges.connect("resumes")
        name = (await two_edges.receive(socket, "welcome"))["connection"]
    await two_edges.publish({"user": "resumes", "type": "test.event"}, {"user": "resumes", "type": "test.event"})
    seen = (await two_edges.receive(socket, "messages"))["messages"]
    os.kill(victim["pid"], signal.SIGKILL)
    with pytest.raises(ConnectionClosed):
        await asyncio.wait_for(socket.recv(), 5)
    async with two_edges.connect("resumes", cursor=seen[0]["event_id"]) as again:
        welcome = await two_edges.receive(again, "welcome")
        assert welcome["resumed"] == "ok"
        assert welcome["connection"].startswith(f"e{1 - victim['index']}-")
        assert (await two_edges.receive(again, "messages"))["messages"][0]["seq"] == seen[0]["seq"] + 1
    await until_edges(two_edges, lambda rows: all(row["ready"] and row["pid"] != victim["pid"] for row in rows))


async def test_readiness_and_metrics_tell_of_every_part(two_edges: RunningEngine) -> None:
    await until_edges(two_edges, lambda rows: all(row["ready"] for row in rows))
    async with httpx.AsyncClient(base_url=two_edges.url, timeout=10, trust_env=False, verify=False) as client:
        assert (await client.get("/readyz")).status_code == 200
        text = (await client.get("/metrics")).text
    assert 'engine_up{index="1",role="edge"} 1.0' in text
    assert 'engine_storage_up{index="0",role="shard"} 1.0' in text


async def test_signals_counted_at_any_edge_are_added_up(two_edges: RunningEngine) -> None:
    await until_edges(two_edges, lambda rows: all(row["ready"] for row in rows))
    headers = {"Authorization": f"Bearer {two_edges.token('app', 'publish')}"}
    for _ in range(20):  # each on a connection of its own, so that both edges have a part in it
        async with httpx.AsyncClient(base_url=two_edges.url, headers=headers, timeout=10, trust_env=False, verify=False) as client:
            answer = await client.post("/v1/signals", json={"name": "views", "amount": 3})
            assert answer.json() == {"counted": 1, "dropped": 0}
    async with httpx.AsyncClient(base_url=two_edges.url, headers=headers, timeout=10, trust_env=False, verify=False) as client:
        await until(
            lambda: client.get("/v1/signals?name=views"), holds=lambda answer: answer.json()["signals"] == {"views": 60}, look_s=0.1
        )


async def test_a_revocation_is_in_force_on_every_edge_within_a_second_and_on_one_that_starts_later(two_edges: RunningEngine) -> None:
    rows = await until_edges(two_edges, lambda rows: all(row["ready"] for row in rows))
    token = two_edges.token("leaked", iat=int(time.time()) - 5)
    bearer = {"Authorization": f"Bearer {token}"}
    sockets = [await two_edges.connect("leaked", additional_headers=bearer) for _ in range(8)]
    names = {(await two_edges.receive(socket, "welcome"))["connection"].split("-")[0] for socket in sockets}
    assert names == {"e0", "e1"}
    headers = {"Authorization": f"Bearer {two_edges.token('root', 'admin')}"}
    async with httpx.AsyncClient(base_url=two_edges.url, headers=headers, timeout=10, trust_env=False, verify=False) as client:
        answer = await client.post("/v1/tokens/revoke", json={"user": "leaked"})
        assert answer.status_code == 200, answer.text
    async with asyncio.timeout(1):
        for socket in sockets:
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 4401
    for row in rows:
        os.kill(row["pid"], signal.SIGKILL)
    killed = {row["pid"] for row in rows}
    await until_edges(two_edges, lambda rows: all(row["ready"] and row["pid"] not in killed for row in rows))
    for _ in range(8):
        with pytest.raises(InvalidStatus) as refused:
            await two_edges.connect("leaked", additional_headers=bearer)
        assert refused.value.response.status_code == 401


async def test_stopping_tells_clients_when_to_come_back(two_edges: RunningEngine) -> None:
    """The last one: it ends the engine."""
    socket = await two_edges.connect("leaves")
    await two_edges.receive(socket, "welcome")
    stopping = asyncio.get_running_loop().run_in_executor(None, two_edges.stop)
    assert (await two_edges.receive(socket, "drain"))["after_ms"] >= 0
    with pytest.raises(ConnectionClosed) as closed:
        await asyncio.wait_for(socket.recv(), 5)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012
    assert await stopping == 0
