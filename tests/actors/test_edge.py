"""Edges inside a real engine: they share a port, die, and come back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import psutil
import pytest
from redis import Redis
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus

from engine.client import Client
from engine.store.keys import SESSION_STREAM_KEY
from tests.support.load.poster import Poster
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

pytestmark = pytest.mark.engine


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


async def connected(engine: RunningEngine, user: str, cursor: str) -> ClientConnection:
    """A connection of a user that comes back. The port of a dead process takes connections until the kernel has closed it: then again."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await engine.connect(user, cursor=cursor)
            except (ConnectionError, InvalidMessage):
                continue


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
        await asyncio.wait_for(socket.recv(), 60)
    async with await connected(two_edges, "resumes", seen[0]["event_id"]) as again:
        welcome = await two_edges.receive(again, "welcome")
        assert welcome["resumed"] == "ok"
        assert welcome["connection"].startswith(f"e{1 - victim['index']}-")
        assert (await two_edges.receive(again, "messages"))["messages"][0]["seq"] == seen[0]["seq"] + 1
    await until_edges(two_edges, lambda rows: all(row["ready"] and row["pid"] != victim["pid"] for row in rows))


class Publishing:
    """A publisher that repeats nothing: every request must be accepted. It keeps its connection until it is told to close it."""

    def __init__(self, engine: RunningEngine, user: str, *, keeps: bool) -> None:
        self.engine = engine
        self.user = user
        self.keeps = keeps
        self.sent: list[str] = []
        self.closed_politely = 0

    async def run(self, until_done: asyncio.Event) -> None:
        port = int(self.engine.url.rpartition(":")[2])
        head = f"Authorization: Bearer {self.engine.token('app', 'publish')}\r\nContent-Type: application/json\r\n"
        poster = await Poster.open(port, head)
        while not until_done.is_set():
            id = f"{self.user}-{len(self.sent)}"
            body = json.dumps({"user": self.user, "type": "test.event", "id": id}).encode()
            status, headers, answer = await poster.request("POST", "/v1/notifications", body)
            assert status == 202, answer
            self.sent.append(id)
            told = headers.get("connection") == "close"
            self.closed_politely += told
            if told or not self.keeps:
                poster.close()
                poster = await Poster.open(port, head)
        poster.close()


async def receive_all(engine: RunningEngine, user: str, got: Counter[str]) -> None:
    """A client of the engine: it reconnects as it is told to."""
    async with Client(engine.url, engine.token(user)) as client:
        async for message in client:
            got[message.id] += 1


async def test_an_edge_that_is_drained_under_load_refuses_no_publish_and_loses_no_message(two_edges: RunningEngine) -> None:
    rows = await until_edges(two_edges, lambda rows: all(row["ready"] for row in rows))
    publishing = [Publishing(two_edges, f"drain-{number}", keeps=number % 5 > 0) for number in range(20)]  # 16 that stay at one edge
    got: dict[str, Counter[str]] = {publisher.user: Counter() for publisher in publishing}
    receiving = [asyncio.ensure_future(receive_all(two_edges, user, ids)) for user, ids in got.items()]
    done = asyncio.Event()
    async with asyncio.TaskGroup() as load:
        for publisher in publishing:
            load.create_task(publisher.run(done))
        await until(lambda: all(got.values()))
        command = [sys.executable, "-m", "engine", "drain", "edge-0", "--data-dir", str(two_edges.data_dir)]
        draining = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
        output, _ = await draining.communicate()
        assert draining.returncode == 0, output
        done.set()
    await until(lambda: all(set(publisher.sent) == set(got[publisher.user]) for publisher in publishing), within_s=60)
    for task in receiving:
        assert not task.done()
        task.cancel()
    await asyncio.gather(*receiving, return_exceptions=True)
    assert sum(publisher.closed_politely for publisher in publishing) > 0, "somebody published to the edge that was leaving"
    assert {count for ids in got.values() for count in ids.values()} == {1}
    after = await until_edges(two_edges, lambda rows: all(row["ready"] for row in rows))
    assert [before["pid"] != now["pid"] for before, now in zip(rows, after, strict=True)] == [True, False]


async def test_edges_killed_during_a_hand_over_take_every_connection_again(two_edges: RunningEngine) -> None:
    rows = await until_edges(two_edges, lambda rows: all(row["ready"] for row in rows))
    port = int(two_edges.url.rpartition(":")[2])

    async def is_dropped() -> bool:
        """Whether the kernel drops the request for a new connection, which the edge that leaves has told it to."""
        try:
            async with asyncio.timeout(0.2):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
        except TimeoutError:
            return True
        writer.close()
        return False

    headers = {"Authorization": f"Bearer {two_edges.token('ops', 'operator')}"}
    async with httpx.AsyncClient(base_url=two_edges.url, headers=headers, timeout=30, trust_env=False, verify=False) as client:
        assert (await client.post("/v1/edges/edge-0/drain")).status_code == 202
    await until(is_dropped, look_s=0)
    for row in reversed(rows):  # the one that leaves is the last
        os.kill(row["pid"], signal.SIGKILL)
        await until(lambda pid=row["pid"]: not psutil.pid_exists(pid), look_s=0)
    killed = {row["pid"] for row in rows}
    await until_edges(two_edges, lambda rows: all(row["ready"] and row["pid"] not in killed for row in rows))
    assert not any([await is_dropped() for _ in range(24)])


async def test_the_only_edge_that_serves_is_not_drained(two_edges: RunningEngine) -> None:
    await until_edges(two_edges, lambda rows: all(row["ready"] for row in rows))
    headers = {"Authorization": f"Bearer {two_edges.token('ops', 'operator')}"}
    async with httpx.AsyncClient(base_url=two_edges.url, headers=headers, timeout=30, trust_env=False, verify=False) as client:
        first, second = [await client.post(f"/v1/edges/edge-{index}/drain") for index in (0, 1)]
    assert (first.status_code, second.status_code) == (202, 409)
    assert "nowhere to go" in second.json()["detail"]
    pid = (await until_edges(two_edges, lambda rows: not rows[0]["ready"]))[0]["pid"]
    await until_edges(two_edges, lambda rows: all(row["ready"] for row in rows) and rows[0]["pid"] != pid)


async def test_readiness_and_metrics_tell_of_every_part(two_edges: RunningEngine) -> None:
    await until_edges(two_edges, lambda rows: all(row["ready"] for row in rows))
    headers = {"Authorization": f"Bearer {two_edges.token('prometheus', 'metrics')}"}
    async with httpx.AsyncClient(base_url=two_edges.url, headers=headers, timeout=30, trust_env=False, verify=False) as client:
        assert (await client.get("/readyz")).status_code == 200

        async def text() -> str:
            return (await client.get("/metrics")).text

        wanted = ('engine_edge_frames_sent_total{edge="edge-0"}', 'engine_edge_frames_sent_total{edge="edge-1"}')
        wanted = (*wanted, 'engine_up{index="1",role="edge"} 1.0', 'engine_storage_up{index="0",role="shard"} 1.0')
        # Whichever edge is asked. A part that was late to answer is missing for a moment.
        await until(text, holds=lambda found: all(line in found for line in wanted), look_s=0.2)


async def test_a_user_whose_connection_is_lost_is_suspect_and_one_who_leaves_is_offline(two_edges: RunningEngine) -> None:
    await until_edges(two_edges, lambda rows: all(row["ready"] for row in rows))
    headers = {"Authorization": f"Bearer {two_edges.token('flaps')}", "X-Client-ID": "phone", "X-Last-Seq": "0"}
    async with httpx.AsyncClient(base_url=two_edges.url, headers=headers, timeout=30, trust_env=False, verify=False) as client:

        async def becomes(state: str) -> None:
            answer = await until(lambda: client.get("/v1/heartbeat"), holds=lambda answer: answer.json()["state"] == state, look_s=0.05)
            assert answer.json() == {"online": state != "offline", "state": state, "seq": 0}

        await becomes("offline")
        socket = await two_edges.connect("flaps", device="phone")
        await becomes("connected")
        socket.transport.abort()
        await becomes("suspect")
        async with two_edges.connect("flaps", device="phone"):
            await becomes("connected")
        await becomes("offline")
    # The shard's answer is ahead of its next write.
    told = await until(lambda: asyncio.to_thread(session_events, two_edges, "flaps"), holds=lambda told: told[-1][0] == "offline")
    assert [event for event, _ in told] == ["connect", "disconnect", "suspect", "connect", "back", "disconnect", "offline"]
    assert [code for event, code in told if event in ("suspect", "offline")] == ["1006", "1000"]


def session_events(engine: RunningEngine, user: str) -> list[tuple[str, str]]:
    """Events and codes of a user, as another system reads them."""
    with Redis.from_url(engine.state["redis_url"], decode_responses=True) as redis:
        entries: Any = redis.xrange(SESSION_STREAM_KEY)
    return [(fields["event"], fields["code"]) for _, fields in entries if fields["user"] == user]


async def test_signals_counted_at_any_edge_are_added_up(two_edges: RunningEngine) -> None:
    await until_edges(two_edges, lambda rows: all(row["ready"] for row in rows))
    headers = {"Authorization": f"Bearer {two_edges.token('app', 'publish')}"}
    for _ in range(20):  # each on a connection of its own, so that both edges have a part in it
        async with httpx.AsyncClient(base_url=two_edges.url, headers=headers, timeout=30, trust_env=False, verify=False) as client:
            answer = await client.post("/v1/signals", json={"name": "views", "amount": 3})
            assert answer.json() == {"counted": 1, "dropped": 0}
    async with httpx.AsyncClient(base_url=two_edges.url, headers=headers, timeout=30, trust_env=False, verify=False) as client:
        await until(
            lambda: client.get("/v1/signals?name=views"), holds=lambda answer: answer.json()["signals"] == {"views": 60}, look_s=0.1
        )


async def test_the_status_of_a_tenant_counts_its_connections_at_every_edge(two_edges: RunningEngine) -> None:
    await until_edges(two_edges, lambda rows: all(row["ready"] for row in rows))
    sockets = [await two_edges.connect(f"u{number}", tenant="counted") for number in range(16)]
    names = {(await two_edges.receive(socket, "welcome"))["connection"].split("-")[0] for socket in sockets}
    assert names == {"e0", "e1"}
    for tenant, count in (("counted", 16), ("another", 0)):
        headers = {"Authorization": f"Bearer {two_edges.token('root', 'admin', tenant=tenant)}"}
        async with httpx.AsyncClient(base_url=two_edges.url, headers=headers, timeout=30, trust_env=False, verify=False) as client:
            status = (await client.get("/v1/status")).json()
            assert (status["tenant"], status["connections"]) == (tenant, count)
    for socket in sockets:
        await socket.close()


async def test_a_revocation_is_in_force_on_every_edge_within_a_second_and_on_one_that_starts_later(two_edges: RunningEngine) -> None:
    rows = await until_edges(two_edges, lambda rows: all(row["ready"] for row in rows))
    token = two_edges.token("leaked", iat=int(time.time()) - 5)
    bearer = {"Authorization": f"Bearer {token}"}
    sockets, names = [], set()
    while len(sockets) < 8 or (names != {"e0", "e1"} and len(sockets) < 50):  # the kernel chooses the edge
        sockets.append(await two_edges.connect("leaked", additional_headers=bearer))
        names.add((await two_edges.receive(sockets[-1], "welcome"))["connection"].split("-")[0])
    assert names == {"e0", "e1"}
    headers = {"Authorization": f"Bearer {two_edges.token('root', 'admin')}"}
    async with httpx.AsyncClient(base_url=two_edges.url, headers=headers, timeout=30, trust_env=False, verify=False) as client:
        answer = await client.post("/v1/tokens/revoke", json={"user": "leaked"})
        assert answer.status_code == 200, answer.text
    async with asyncio.timeout(10):  # a second is the promise; this machine may be doing anything else
        for socket in sockets:
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 4401
    for row in rows:
        os.kill(row["pid"], signal.SIGKILL)
    killed = {row["pid"] for row in rows}
    await until_edges(two_edges, lambda rows: all(row["ready"] and row["pid"] not in killed for row in rows))

    async def refused() -> int:
        with pytest.raises(InvalidStatus) as caught:
            await two_edges.connect("leaked", additional_headers=bearer)
        return caught.value.response.status_code

    for _ in range(8):  # 503: storage does not answer, and an edge that does not know what is revoked takes no new token
        assert await until(refused, holds=lambda status: status != 503) == 401
