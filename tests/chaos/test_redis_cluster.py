"""Data in a real Redis Cluster: each store has its users; masters are killed, one forgets, and one store moves."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from engine.config import Config
from engine.core.model.routing import NOBODY, SLOTS, mailbox_key, slot_of, store_of
from engine.store.cluster import tag_of
from engine.store.redis_client import connect
from engine.store.slot_map import require_slot_map
from engine.store.stores import connect_each
from tests.conformance.server_promises import broken_promises
from tests.support.chaos.breakable_engine import SMALL, ask, assert_whole, victim_of
from tests.support.chaos.cluster_group import ClusterGroup
from tests.support.chaos.faults import scaled
from tests.support.chaos.scenarios import Place, Scenario, strike
from tests.support.chaos.sentinel_group import PASSWORD, Server
from tests.support.chaos.victim import Victim
from tests.support.redis_rewind import Moment
from tests.support.running_engine import RunningEngine, running_engine
from tests.support.waiting import until, until_done

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ACCEPTED = ("accepted", "duplicate")


def store_of_user(user: str) -> int:
    return store_of(slot_of(mailbox_key("default", user)), 2)


def user_of(store: int, name: str) -> str:
    """The first name of this kind whose user is in this store."""
    return next(user for user in (f"{name}-{number}" for number in range(100)) if store_of_user(user) == store)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterGroup]:
    """Masters without replicas: what is away stays away until it is started again."""
    with ClusterGroup(tmp_path_factory.mktemp("cluster"), stores=2) as group:
        yield group


@pytest.fixture(scope="module")
def servers(cluster: ClusterGroup) -> list[Server]:
    """The master of each store."""
    return [cluster.master(store) for store in range(cluster.stores)]


@pytest.fixture(scope="module")
def two(cluster: ClusterGroup) -> Iterator[RunningEngine]:
    """An engine of two shards, each with a store of its own."""
    with running_engine("--redis", cluster.url) as running:
        yield running


async def received(engine: RunningEngine, user: str, last: str, cursor: str | None = None) -> tuple[str, list[dict[str, Any]]]:
    """Connects and receives until the message with the id `last`; acknowledges nothing. How it was resumed, and the messages."""
    async with engine.connect(user, cursor=cursor) as socket:
        resumed = (await engine.receive(socket, "welcome"))["resumed"]
        messages: list[dict[str, Any]] = []
        while last not in [message["id"] for message in messages]:
            messages += (await engine.receive(socket, "messages"))["messages"]
        return resumed, messages


async def status_of(engine: RunningEngine, published: dict[str, Any]) -> str:
    """What became of a message, also where it was not accepted; the status of HTTP where the whole request was refused."""
    async with httpx.AsyncClient(base_url=engine.url, timeout=20, trust_env=False, verify=False) as client:
        headers = {"Authorization": f"Bearer {engine.token('app', 'publish')}"}
        answer = await client.post("/v1/notifications", json=[published], headers=headers)
        told = answer.json()
        return str(told["results"][0]["status"] if "results" in told else told["status"])


async def stores_away(engine: RunningEngine) -> list[int]:
    """As `/readyz` has them."""
    async with httpx.AsyncClient(base_url=engine.url, timeout=20, trust_env=False, verify=False) as client:
        answer = await client.get("/readyz")
        return list(answer.json().get("stores_away", ()))


def item(user: str, id: str, **more: Any) -> dict[str, Any]:
    return {"user": user, "type": "test.event", "id": id, **more}


@dataclass(frozen=True)
class TwoStores(Victim):
    """An engine on two masters, which are killed in turn, and started again at once; the first kill of all is of a master."""

    servers: Sequence[Server] = ()
    killed: list[int] = field(default_factory=list)

    def kill(self, role: str) -> int:
        if role != "redis" and self.killed:
            return super().kill(role)
        server = self.servers[len(self.killed) % 2]
        self.killed.append(len(self.killed) % 2)
        server.kill()
        server.start()
        return 0


async def test_shards_and_schedulers_come_and_go_while_parts_and_servers_are_killed_and_nothing_is_lost(
    two: RunningEngine, cluster: ClusterGroup, servers: list[Server]
) -> None:
    """The first test: broadcasts of others would be sent to these clients, who count all they get."""
    known = victim_of(two)
    victim = TwoStores(known.pid, known.url, known.token, known.data_dir, servers=servers)
    numbers = {"shards": 4, "schedulers": 3}, {"shards": 2, "schedulers": 2}
    scenario = Scenario("scale", "up and down", scaled(*numbers, killing=True), within_s=120)
    books = await strike(Place(victim), scenario, "scale-two", 0.3, **SMALL)
    assert_whole(books)
    assert books["killed"] > 0
    assert victim.killed
    for index, client in enumerate(connect_each(connect, Config(redis_url=cluster.url))):
        slots = await require_slot_map(client)
        await client.aclose()
        assert (slots.shards, set(slots.owners)) == (2, {NOBODY, index})


async def test_all_of_a_user_is_in_one_store_and_broadcasts_reach_all(
    two: RunningEngine, cluster: ClusterGroup, servers: list[Server]
) -> None:
    users = [user_of(0, "reader"), user_of(1, "reader")]
    await two.publish(*(item(user, "at-once") for user in users), *(item(user, "later", delay=0.5) for user in users))
    (again,) = await two.publish(item(users[1], "later", delay=0.5))
    assert again["status"] == "duplicate"
    for user in users:
        _, messages = await received(two, user, "later")
        assert list(dict.fromkeys(message["id"] for message in messages)) == ["at-once", "later"]
    for server in servers:
        with server.client() as raw:
            assert {key.partition(b"}")[0] + b"}" for key in raw.scan_iter(count=1000)} == {tag_of(servers.index(server), 2).encode()}
    for index, client in enumerate(connect_each(connect, Config(redis_url=cluster.url))):
        keys = [key.decode() async for key in client.scan_iter(count=1000)]
        of_slots, of_partitions = [[key for key in keys if re.match(rf"{kind}\d", key)] for kind in "st"]
        elsewhere = [key for key in of_slots + of_partitions if store_of(int(key[1 : key.index(":")]), 2) != index]
        assert elsewhere == []
        assert len({key.partition(":")[0] for key in of_slots}) == SLOTS // 2
        assert [key for key in of_slots if key.endswith(":journal")]
        await client.aclose()
    sockets = [await two.connect(user) for user in users]
    for socket in sockets:
        await two.receive(socket, "welcome")
    await ask(two, "POST", "/v1/notifications", [{"broadcast": True, "type": "test.broadcast", "id": "to-all", "ttl": 5}])
    for socket in sockets:
        while "to-all" not in [message["id"] for message in (await two.receive(socket, "messages"))["messages"]]:
            pass
        await socket.close()


async def test_no_store_is_left_without_a_shard_or_a_scheduler(two: RunningEngine) -> None:
    async with httpx.AsyncClient(base_url=two.url, timeout=20, trust_env=False, verify=False) as client:
        headers = {"Authorization": f"Bearer {two.token('ops', 'operator')}"}
        for name, most in (("shards", 32), ("schedulers", 16)):
            answer = await client.post("/v1/scale", json={name: 1}, headers=headers)
            assert answer.status_code == 422
            assert f"a whole number from 2 to {most}" in answer.text


async def test_users_of_the_other_store_are_served_while_one_is_down(
    two: RunningEngine, cluster: ClusterGroup, servers: list[Server]
) -> None:
    here, there = user_of(0, "outage"), user_of(1, "outage")
    await two.publish(item(here, "before"), item(there, "before"))
    servers[1].kill()
    results = await asyncio.gather(*(two.publish(item(here, f"during-{number}")) for number in range(5)))
    assert {result["status"] for (result,) in results} == {"accepted"}
    assert await status_of(two, item(there, "during")) == "unavailable"
    await until(lambda: stores_away(two), holds=lambda found: found == [1])
    status = await asyncio.to_thread(two.status_when, lambda found: not found["redis"]["alive"])
    assert [row["node"] for row in status["redis"]["stores"]] == [f"127.0.0.1:{server.port}" for server in servers]
    found = await asyncio.to_thread(two.status_when, lambda found: not found["ready"])
    os.kill(found["edges"][0]["pid"], signal.SIGKILL)
    await until(lambda: until_done(lambda: status_of(two, item(here, "next-edge")), httpx.TransportError), 30, holds=ACCEPTED.__contains__)
    os.kill(found["shards"][0]["pid"], signal.SIGSTOP)
    await until(lambda: status_of(two, item(here, "replaced")), 60, holds=ACCEPTED.__contains__)
    servers[1].start()
    await until(lambda: status_of(two, item(there, "after")), 60, holds=ACCEPTED.__contains__)
    _, messages = await received(two, here, "during-4")
    assert {message["id"] for message in messages} >= {"before", *(f"during-{number}" for number in range(5))}
    _, messages = await received(two, there, "after")
    assert "before" in [message["id"] for message in messages]
    await asyncio.to_thread(two.status_when, lambda found: found["ready"] and all(row["alive"] for row in found["redis"]["stores"]))


@pytest.mark.parametrize("lost", [0, 1])
async def test_a_loss_in_one_store_is_told_to_its_users_only(
    two: RunningEngine, cluster: ClusterGroup, servers: list[Server], lost: int
) -> None:
    """It comes back as it was before the last messages, as after a fail-over to a replica that lagged."""
    users = [user_of(store, f"rewound-{lost}") for store in (0, 1)]
    await two.publish(*(item(user, "first") for user in users))
    async with Redis(port=servers[lost].port, password=PASSWORD) as client:
        moment = await Moment.taken(client)
        await two.publish(*(item(user, "second") for user in users))
        cursors = [(await received(two, user, "second"))[1][0]["event_id"] for user in users]
        await moment.come_back()

    async def resumed() -> list[str]:
        found = []
        for user, cursor in zip(users, cursors, strict=True):
            async with two.connect(user, cursor=cursor) as socket:
                found.append((await two.receive(socket, "welcome", 5))["resumed"])
        return found

    def noticed(found: list[str]) -> bool:
        assert found in (["ok", "ok"], expected), "nobody else is told"
        return found == expected

    expected = ["gap" if store == lost else "ok" for store in (0, 1)]
    passing = (ConnectionClosed, InvalidHandshake, OSError, TimeoutError)
    # One user may not connect as often as this machine could.
    await until(lambda: until_done(resumed, *passing), holds=noticed, look_s=0.2)
    assert (await received(two, users[1 - lost], "second", cursors[1 - lost]))[0] == "ok"


async def test_a_store_that_another_hand_moves_pauses_and_the_other_goes_on(
    two: RunningEngine, cluster: ClusterGroup, servers: list[Server]
) -> None:
    """Key by key to the master that has no store. What was accepted before and meanwhile is delivered in order, each once."""
    here, there = user_of(0, "moved"), user_of(1, "moved")
    accepted: list[str] = []
    statuses = set()
    await two.publish(item(there, "before"))
    to = next(server for server in cluster.servers if server not in servers)
    steps = cluster.move(1, to)
    for number in range(1000):
        moving = await asyncio.to_thread(next, steps, "moved") != "moved"
        if not moving or number % 5 == 0:
            assert await status_of(two, item(here, f"{number}")) == "accepted"
            status = await status_of(two, item(there, f"{number}")) if moving else "unavailable"
            statuses.add(status)
            accepted += [f"{number}"] if status == "accepted" else []
        if not moving:
            break
    assert cluster.master(1) is to
    assert statuses == {"unavailable"}, "a store that moves accepts nothing"
    await until(lambda: status_of(two, item(there, "after")), 60, holds=ACCEPTED.__contains__)
    _, messages = await received(two, there, "after")
    ids = list(dict.fromkeys(message["id"] for message in messages))
    assert (ids[0], ids[-1]) == ("before", "after")
    assert [message["seq"] for message in messages] == sorted({message["seq"] for message in messages})


async def test_the_promises_of_a_server_hold_in_a_cluster(two: RunningEngine, cluster: ClusterGroup) -> None:
    """Last: its broadcasts would come to the clients of other tests. Theirs has expired."""
    cluster.settled()
    assert await broken_promises(two.url, (two.data_dir / "jwt-secret").read_text().strip()) == {}, two.output.read_text()[-4000:]
