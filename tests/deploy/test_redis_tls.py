"""A real Redis Cluster whose nodes speak TLS only, with clients and with each other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from httpx import TransportError
from redis.exceptions import ConnectionError

from engine.config import Config
from engine.errors import StorageUnavailable
from engine.features.redis_cluster.cluster_moves import move, places
from engine.store.lua import Script
from engine.store.redis_client import connect, wait_ready
from engine.store.stores import connect_each
from tests.support.chaos.breakable_engine import SMALL, assert_whole, victim_of
from tests.support.chaos.cluster_group import ClusterGroup
from tests.support.chaos.scenarios import Place, Scenario, strike
from tests.support.chaos.victim import Victim
from tests.support.redis_tls import redis_tls
from tests.support.running_engine import running_engine
from tests.support.waiting import until_done

SWAP = Script("slot_map_swap")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterGroup]:
    folder = tmp_path_factory.mktemp("cluster")
    with ClusterGroup(folder, replicas=2, stores=2, tls=redis_tls(folder)) as group:
        yield group


async def test_each_store_is_reached_by_tls_and_followed_through_a_fail_over(cluster: ClusterGroup) -> None:
    clients = connect_each(connect, Config(redis_url=cluster.url, redis_timeout_ms=2000))
    for client in clients:
        await client.set("kept", "before")
        assert await client.execute_command("WAIT", 1, 5000) >= 1
    dead = await asyncio.to_thread(cluster.fail_over, 1)
    assert await until_done(lambda: clients[1].get("kept"), ConnectionError, OSError, within_s=30) == b"before"
    dead.start()
    await asyncio.to_thread(cluster.settled)
    for client in clients:
        swapped = await until_done(lambda client=client: SWAP.run(client, ["kept"], ["before", "after"]), StorageUnavailable, within_s=30)  # type: ignore[misc]
        assert swapped == [b"OK", 1]
        await client.aclose()


async def test_a_store_moves_between_masters_that_speak_tls(cluster: ClusterGroup) -> None:
    config = Config(redis_url=cluster.url)
    async with connect_each(connect, config)[0] as client:
        await client.set("moved", "1")
        target = cluster.master(1)
        _ = [left async for left in move(config, 0, f"127.0.0.1:{target.port}")]
        assert (await places(config))[0].node == f"127.0.0.1:{target.port}"
        assert await until_done(lambda: client.get("moved"), ConnectionError, within_s=30) == b"1"


async def test_nodes_with_a_certificate_of_an_unknown_authority_are_refused(cluster: ClusterGroup) -> None:
    config = Config(redis_url=cluster.url.partition("?")[0])
    async with connect(config) as client:
        with pytest.raises(StorageUnavailable, match="certificate verify failed"):
            await wait_ready(client, config, 0.1)


@pytest.mark.engine
@pytest.mark.slow
async def test_an_engine_delivers_and_loses_nothing_in_a_fail_over_by_tls(cluster: ClusterGroup) -> None:
    async def fail_over(_victim: Victim) -> None:
        await asyncio.to_thread(cluster.fail_over, 1)

    with running_engine("--redis", cluster.url, env={"ENGINE_REDIS_REPLICAS_MIN": "1"}) as engine:
        users = [f"reader-{number}" for number in range(8)]
        items = [{"user": user, "type": "test.event", "id": user, "delay": 0.1} for user in users]
        await until_done(lambda: engine.publish(*items), AssertionError, TransportError, within_s=60)  # a store may be away
        for user in users:
            async with engine.connect(user) as socket:
                frame = await engine.receive(socket, "messages")
                assert [message["id"] for message in frame["messages"]] == [user]
        scenario = Scenario("cluster", "kill -9 the master of the stores; a replica is promoted", fail_over)
        assert_whole(await strike(Place(victim_of(engine)), scenario, "tls", 0.3, **SMALL))
