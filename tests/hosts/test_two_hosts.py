"""The promises, where edge, shard and storage are on different hosts, and where a host or the cable to it is lost.

The tests are in this order because each leaves something to the next: a shard stays where it is, so when a host was lost both are on the
other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack
from functools import partial
from operator import lt
from typing import Any

import pytest
from redis.asyncio import Redis

from engine.actors.warm_processes import is_idle
from engine.config import Config, port_range
from engine.core.model.routing import mailbox_key
from engine.store.slot_map import require_slot_map
from tests.support.chaos.single_attempts import SingleAttempts
from tests.support.chaos.traffic import Traffic
from tests.support.engine_on_hosts import EngineOnHosts
from tests.support.hosts import Host
from tests.support.process_tree import role_of
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.engine]

LATE_S = 120
"""Far beyond what Ray's health checks take (15 s): this machine may be doing anything else."""

FAULT_S = 4.0
"""Longer than a link's lease (3 s), so sessions end; shorter than what it takes Ray to give a node up."""

SOME = {"online": 6, "away": 1, "rate": 60}


async def user_of(cluster: EngineOnHosts, shard: int, name: str) -> str:
    """A user that this shard has now: the slots of a shard that was away for a while have gone to the other, and others come back."""
    async with Redis.from_url(cluster.redis_url) as client:

        async def found() -> str | None:
            slots = await require_slot_map(client)
            users = (f"{name}-{number}" for number in range(1000))
            return next((user for user in users if slots.owner(mailbox_key("default", user)) == shard), None)

        return await until(found, LATE_S)


def ray_runs(host: Host) -> bool:
    return "raylet" in {role_of(pid) for pid in host.pids()}


def test_the_commands_of_the_deploy_file_make_one_ray_cluster_of_the_hosts(ray_nodes: EngineOnHosts) -> None:
    assert all(ray_runs(host) for host in ray_nodes.hosts)


def test_every_host_has_a_shard_and_an_edge(cluster: EngineOnHosts) -> None:
    status = cluster.status()
    everywhere = {host.address for host in cluster.hosts}
    assert {row["node"] for row in status["shards"]} == everywhere
    assert {row["node"] for row in status["edges"]} == everywhere


async def test_a_killed_shard_starts_in_the_process_that_its_host_keeps_ready(cluster: EngineOnHosts) -> None:
    host = cluster.hosts[1]

    def ready(status: dict[str, Any]) -> list[int]:
        """The pids, as seen on the host, of its shards that are ready and have a process in reserve."""
        return [row["pid"] for row in status["shards"] if row["node"] == host.address and row["ready"] and row["spares"]]

    def shards() -> set[int]:
        return {pid for pid in host.pids() if role_of(pid) == "shard"}

    before = ready(await until(cluster.status, LATE_S, holds=ready, look_s=0.2))
    kept, (killed,) = {pid for pid in host.pids() if is_idle(pid)}, shards()
    os.kill(killed, signal.SIGKILL)
    (started,) = await until(lambda: shards() - {killed}, LATE_S)
    assert started in kept
    # The status of an edge is up to a second old: it may still tell of the killed process.
    await until(cluster.status, LATE_S, holds=lambda status: set(ready(status)) - set(before), look_s=0.2)


def carriers(cluster: EngineOnHosts) -> dict[str, set[str]]:
    """What links between actors of one host, and of two, travel on."""
    status = cluster.status()
    nodes = {f"{row['role']}-{row['index']}": row["node"] for kind in ("shards", "schedulers", "edges") for row in status[kind]}
    found: dict[str, set[str]] = {"one host": set(), "two hosts": set()}
    for row in [*status["shards"], *status["edges"]]:
        for callee, carrier in row["links"].items():
            found["one host" if nodes[callee] == row["node"] else "two hosts"].add(carrier)
    return found


def test_links_between_the_hosts_are_tcp_and_links_on_one_are_unix_sockets(cluster: EngineOnHosts, pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--ray-links"):
        pytest.skip("links are Ray calls in this run")
    assert carriers(cluster) == {"one host": {"unix"}, "two hosts": {"tcp"}}


def test_link_ports_are_open_on_the_address_of_the_node_only(cluster: EngineOnHosts, pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--ray-links"):
        pytest.skip("no link port is open in this run")
    for host in cluster.hosts:
        listening = subprocess.run(host.command("ss", "-Hltn"), check=True, capture_output=True, text=True).stdout
        addresses = [line.split()[3].rpartition(":") for line in listening.splitlines()]
        assert {address for address, _, port in addresses if int(port) in port_range(Config().link_ports)} == {host.address}


@pytest.mark.parametrize("published", ["a", "b"])
@pytest.mark.parametrize("shard", ["a", "b"])
async def test_a_message_arrives_and_a_client_resumes_on_whichever_hosts_they_are(
    cluster: EngineOnHosts, shard: str, published: str
) -> None:
    hosts = {host.name: host for host in cluster.hosts}
    user = await user_of(cluster, cluster.shard_on(hosts[shard]), f"reader-{shard}-{published}")
    publisher = cluster.at(hosts[published])
    cursor = None
    for seq, connected in enumerate(("b", "a", "b"), 1):  # each time at the other edge
        await publisher.publish({"user": user, "type": "test.message", "id": f"{user}-{seq}"})
        client = cluster.at(hosts[connected])
        async with client.connect(user, cursor=cursor) as socket:
            (message,) = (await client.receive(socket, "messages"))["messages"]
            assert (message["seq"], message["id"]) == (seq, f"{user}-{seq}")
            await socket.send(f'{{"type":"ack","seq":{seq}}}')
            cursor = message["event_id"]


async def assert_that_batches_arrive_whole(cluster: EngineOnHosts, name: str) -> None:
    """Large ones: publishes on their way to a shard of the other host, and messages on theirs to the client's edge."""
    here, there = cluster.hosts
    user = await user_of(cluster, cluster.shard_on(there), name)
    sent = [{"user": user, "type": "test.message", "id": f"{name}-{n}", "data": {"n": n, "text": chr(97 + n) * 50_000}} for n in range(12)]
    seen = cluster.at(here)
    got: list[Any] = []
    async with seen.connect(user) as socket:
        await seen.publish(*sent)
        while len(got) < len(sent):
            got += (await seen.receive(socket, "messages"))["messages"]
    assert [(message["id"], message["data"]) for message in got] == [(item["id"], item["data"]) for item in sent]


async def test_batches_above_100_kib_arrive_whole_on_the_other_host(cluster: EngineOnHosts) -> None:
    await assert_that_batches_arrive_whole(cluster, "bulk")


@contextlib.contextmanager
def cable_of_b_pulled(a: Host, b: Host) -> Iterator[None]:
    with b.unplugged():
        yield


@contextlib.contextmanager
def b_not_reaching_a(a: Host, b: Host) -> Iterator[None]:
    with b.not_reaching(a):
        yield


@contextlib.contextmanager
def b_hung(a: Host, b: Host) -> Iterator[None]:
    with b.hung():
        yield


def assert_whole(books: dict[str, Any]) -> None:
    print(books)
    assert books["accepted"] > 0
    assert (books["lost"], books["out_of_order"], books["wrong"]) == (0, 0, [])


@pytest.mark.parametrize("fault", [cable_of_b_pulled, b_not_reaching_a, b_hung])
async def test_a_fault_of_seconds_loses_nothing_and_every_answer_given_meanwhile_is_true(
    cluster: EngineOnHosts, fault: Callable[[Host, Host], AbstractContextManager[None]]
) -> None:
    a, b = cluster.hosts
    name = fault.__name__
    users = [await user_of(cluster, shard, name) for shard in (0, 1)]
    attempts = SingleAttempts(users)
    async with AsyncExitStack() as stack:
        traffics = [
            await stack.enter_async_context(Traffic(cluster.at(host).url, cluster.token, f"{name}-{host.name}", **SOME)) for host in (a, b)
        ]
        async with attempts.going_on(cluster.at(a), cluster.at(b)):
            with fault(a, b):
                await asyncio.sleep(FAULT_S)
            back_at_s = time.monotonic()
        print(name, "back after", [round(await traffic.flowing(back_at_s, LATE_S), 1) for traffic in traffics])
        for traffic in traffics:
            assert_whole(await traffic.finish(LATE_S))
    print({user: len(ids) for user, ids in attempts.accepted.items()}, len(attempts.refused), "refused", len(attempts.unknown), "unknown")
    assert await attempts.false_answers(cluster.at(a), LATE_S) == []


async def test_messages_are_accepted_delivered_and_acknowledged_while_ray_on_the_head_is_dead(cluster: EngineOnHosts) -> None:
    a, b = cluster.hosts
    user = await user_of(cluster, cluster.shard_on(b), "headless")
    seen = cluster.at(b)
    async with seen.connect(user) as socket:
        await seen.receive(socket, "welcome")
        cluster.kill_ray(a)
        for seq in range(1, 21):
            await seen.publish({"user": user, "type": "test.message", "id": f"headless-{seq}"})
            (message,) = (await seen.receive(socket, "messages"))["messages"]
            assert (message["seq"], message["id"]) == (seq, f"headless-{seq}")
            await socket.send(f'{{"type":"ack","seq":{seq}}}')
        assert "gcs" not in {role_of(pid) for pid in a.pids()}
    async with seen.connect(user) as socket:  # without a cursor: what is not acknowledged comes again
        await seen.publish({"user": user, "type": "test.message", "id": "headless-21"})
        (message,) = (await seen.receive(socket, "messages"))["messages"]
        assert message["id"] == "headless-21"


def test_the_head_that_starts_again_finds_the_actors_of_the_other_host_and_so_does_engine_up(cluster: EngineOnHosts) -> None:
    a, b = cluster.hosts
    running = {pid for pid in b.pids() if role_of(pid) in ("edge", "shard", "controller")}
    assert running
    cluster.start_node(a)()
    cluster.at(b).status_when(lambda status: status["ready"], LATE_S)
    assert cluster.process is not None
    assert cluster.process.poll() is None, "engine up lives on"
    cluster.stop(number=signal.SIGKILL)
    cluster.start()
    assert running <= set(b.pids())


async def test_a_host_that_is_lost_loses_nothing_and_its_clients_resume_on_the_other(cluster: EngineOnHosts) -> None:
    a, b = cluster.hosts
    lost_shard = cluster.shard_on(b)
    async with AsyncExitStack() as stack:
        stays = await stack.enter_async_context(Traffic(cluster.at(a).url, cluster.token, "stays", **SOME))
        moves = await stack.enter_async_context(Traffic(cluster.at(b).url, cluster.token, "moves", **SOME))
        b.kill()
        killed_at_s = time.monotonic()
        await moves.move(stays.url)
        back_s = [round(await traffic.flowing(killed_at_s, LATE_S), 1) for traffic in (stays, moves)]
        print("a host lost: served again after", back_s)
        for traffic in (stays, moves):
            assert_whole(await traffic.finish(LATE_S))
    # The controller may have been on the lost host too, and its successor asks everyone first.
    known = await asyncio.to_thread(cluster.at(a).status_when, lambda status: all(row["node"] for row in status["shards"]), LATE_S)
    assert [row["node"] for row in known["shards"]] == [a.address, a.address], f"shard {lost_shard} was on b"


async def test_a_host_that_was_lost_and_comes_back_has_an_edge_again(cluster: EngineOnHosts) -> None:
    a, b = cluster.hosts
    cluster.join(b)
    status = cluster.at(a).status_when(lambda status: status["ready"], LATE_S)
    assert {row["node"] for row in status["edges"]} == {a.address, b.address}
    await cluster.at(b).publish({"user": "again", "type": "test.message"})


def test_an_engine_that_stops_leaves_the_ray_cluster_running(cluster: EngineOnHosts) -> None:
    assert cluster.stop() == 0
    assert all(ray_runs(host) for host in cluster.hosts)


@pytest.fixture
def by_ray_calls(cluster: EngineOnHosts) -> EngineOnHosts:
    """The engine, stopped and started again without carriers of its own."""
    cluster.stop()
    cluster.env |= {"ENGINE_LINK_TRANSPORT": "ray"}
    RunningEngine.start(cluster)
    return cluster


async def test_of_ray_calls_batches_above_100_kib_arrive_whole_through_the_object_stores_of_both_hosts(by_ray_calls: EngineOnHosts) -> None:
    assert carriers(by_ray_calls) == {"one host": {"ray"}, "two hosts": {"ray"}}
    stored = {host: by_ray_calls.objects_stored(host) for host in by_ray_calls.hosts}
    await assert_that_batches_arrive_whole(by_ray_calls, "bulk-by-ray")
    for host in by_ray_calls.hosts:
        await until(partial(by_ray_calls.objects_stored, host), LATE_S, holds=partial(lt, stored[host]), look_s=0.1)


async def test_a_node_that_is_drained_is_emptied_first_and_no_publish_is_refused(by_ray_calls: EngineOnHosts) -> None:
    a, b = by_ray_calls.hosts
    before = by_ray_calls.at(a).status_when(lambda status: status["ready"] and status["scaling"]["settled"], LATE_S)
    (there,) = {row["node_id"] for row in before["shards"] if row["node"] == b.address}
    drain = f"ray drain-node --address {a.address}:6380 --node-id {there} --reason DRAIN_NODE_REASON_PREEMPTION --reason-message spot"

    def empty(status: dict[str, Any]) -> bool:
        served = [row["node_id"] for row in (*status["shards"], *status["edges"]) if row["ready"]]
        return all(row["ready"] for row in status["shards"]) and there not in served

    async with Traffic(by_ray_calls.at(a).url, by_ray_calls.token, "drained", **SOME) as traffic:
        drained = subprocess.run(a.command("sh", "-c", drain), env=a.environment() | {"RAY_AUTH_MODE": "token"}, check=False)
        assert drained.returncode == 0
        after = await asyncio.to_thread(by_ray_calls.at(a).status_when, empty, 1.5 * LATE_S)
        books = await traffic.finish(LATE_S)
    assert_whole(books)
    assert books["unavailable"] == 0
    assert max(row["restarts"] for row in after["shards"]) == 1
