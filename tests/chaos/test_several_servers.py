"""Data on two Redis servers: each has its users; one of them is killed, and one forgets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from engine.core.model.routing import NOBODY, mailbox_key, server_of, slot_of
from engine.store.slot_map import require_slot_map
from tests.support.chaos.breakable_engine import SMALL, ask, assert_whole, victim_of
from tests.support.chaos.faults import scaled
from tests.support.chaos.scenarios import Place, Scenario, strike
from tests.support.chaos.victim import Victim
from tests.support.redis_rewind import Moment
from tests.support.redis_server import RedisServer, redis_to_break
from tests.support.running_engine import RunningEngine, running_engine
from tests.support.waiting import until, until_done

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def server_of_user(user: str) -> int:
    return server_of(slot_of(mailbox_key("default", user)), 2)


def user_on(server: int, name: str) -> str:
    """The first name of this kind whose user is on this server."""
    return next(user for user in (f"{name}-{number}" for number in range(100)) if server_of_user(user) == server)


@pytest.fixture(scope="module")
def servers() -> Iterator[list[RedisServer]]:
    with redis_to_break() as first, redis_to_break() as second:
        yield [first, second]


@pytest.fixture(scope="module")
def two(servers: list[RedisServer]) -> Iterator[RunningEngine]:
    """An engine of two shards, each on a server of its own."""
    with running_engine("--schedulers", "2", "--redis", " ".join(server.url for server in servers)) as running:
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
    """What became of a message, also where it was not accepted."""
    async with httpx.AsyncClient(base_url=engine.url, timeout=20, trust_env=False, verify=False) as client:
        headers = {"Authorization": f"Bearer {engine.token('app', 'publish')}"}
        answer = await client.post("/v1/notifications", json=[published], headers=headers)
        return str(answer.json()["results"][0]["status"])


def item(user: str, id: str, **more: Any) -> dict[str, Any]:
    return {"user": user, "type": "test.event", "id": id, **more}


@dataclass(frozen=True)
class TwoServers(Victim):
    """An engine on two servers, which are killed in turn, and started again at once."""

    servers: Sequence[RedisServer] = ()
    killed: list[int] = field(default_factory=list)

    def kill(self, role: str) -> int:
        if role != "redis":
            return super().kill(role)
        server = self.servers[len(self.killed) % 2]
        self.killed.append(len(self.killed) % 2)
        server.kill()
        server.start()
        return 0


async def test_shards_and_schedulers_come_and_go_while_parts_and_servers_are_killed_and_nothing_is_lost(
    two: RunningEngine, servers: list[RedisServer]
) -> None:
    """The first test: broadcasts of others would be sent to these clients, who count all they get."""
    known = victim_of(two)
    victim = TwoServers(known.pid, known.url, known.token, known.data_dir, servers=servers)
    numbers = {"shards": 5, "schedulers": 4}, {"shards": 2, "schedulers": 2}
    scenario = Scenario("scale", "up and down", scaled(*numbers, killing=True), within_s=120)
    books = await strike(Place(victim), scenario, "scale-two", 0.3, **SMALL)
    assert_whole(books)
    assert books["killed"] > 0
    assert victim.killed
    for index, server in enumerate(servers):
        async with Redis.from_url(server.url) as client:
            slots = await require_slot_map(client)
        assert (slots.shards, set(slots.owners)) == (2, {NOBODY, index})


async def test_messages_timers_ids_and_pages_of_a_user_are_on_one_server_and_broadcasts_reach_all(
    two: RunningEngine, servers: list[RedisServer]
) -> None:
    users = [user_on(0, "reader"), user_on(1, "reader")]
    await two.publish(*(item(user, "at-once") for user in users), *(item(user, "later", delay=0.5) for user in users))
    (again,) = await two.publish(item(users[1], "later", delay=0.5))
    assert again["status"] == "duplicate"
    for user in users:
        _, messages = await received(two, user, "later")
        assert list(dict.fromkeys(message["id"] for message in messages)) == ["at-once", "later"]
    for index, server in enumerate(servers):
        async with Redis.from_url(server.url, decode_responses=True) as client:
            of_slots, of_partitions = await client.keys("{s[0-9]*"), await client.keys("{t[0-9]*")
            elsewhere = [key for key in of_slots + of_partitions if server_of(int(key[2 : key.index("}")]), 2) != index]
            assert elsewhere == []
            assert len({key.partition("}")[0] for key in of_slots}) == 512
            assert await client.exists("{shard-0}journal", "{shard-1}journal") == await client.exists(f"{{shard-{index}}}journal") == 1
    sockets = [await two.connect(user) for user in users]
    for socket in sockets:
        await two.receive(socket, "welcome")
    await ask(two, "POST", "/v1/notifications", [{"broadcast": True, "type": "test.broadcast", "id": "to-all"}])
    for socket in sockets:
        while "to-all" not in [message["id"] for message in (await two.receive(socket, "messages"))["messages"]]:
            pass
        await socket.close()


async def test_no_server_is_left_without_a_shard_or_a_scheduler(two: RunningEngine) -> None:
    async with httpx.AsyncClient(base_url=two.url, timeout=20, trust_env=False, verify=False) as client:
        headers = {"Authorization": f"Bearer {two.token('ops', 'operator')}"}
        for name, most in (("shards", 1024), ("schedulers", 16)):
            answer = await client.post("/v1/scale", json={name: 1}, headers=headers)
            assert answer.status_code == 422
            assert f"a whole number from 2 to {most}" in answer.text


async def test_while_one_server_is_down_users_of_the_other_are_served_and_nothing_is_lost(
    two: RunningEngine, servers: list[RedisServer]
) -> None:
    here, there = user_on(0, "outage"), user_on(1, "outage")
    await two.publish(item(here, "before"), item(there, "before"))
    servers[1].kill()
    results = await asyncio.gather(*(two.publish(item(here, f"during-{number}")) for number in range(5)))
    assert {result["status"] for (result,) in results} == {"accepted"}
    assert await status_of(two, item(there, "during")) == "unavailable"
    servers[1].start()
    await until(lambda: status_of(two, item(there, "after")), 60, holds=lambda status: status in ("accepted", "duplicate"))
    _, messages = await received(two, here, "during-4")
    assert {message["id"] for message in messages} >= {"before", *(f"during-{number}" for number in range(5))}
    _, messages = await received(two, there, "after")
    assert "before" in [message["id"] for message in messages]
    await asyncio.to_thread(two.status_when, lambda found: found["ready"] and all(row["alive"] for row in found["redis"]["servers"]))


@pytest.mark.parametrize("lost", [0, 1])
async def test_what_one_server_has_lost_is_told_to_its_users_only(two: RunningEngine, servers: list[RedisServer], lost: int) -> None:
    """It comes back as it was before the last messages, as after a fail-over to a replica that lagged."""
    users = [user_on(server, f"rewound-{lost}") for server in (0, 1)]
    await two.publish(*(item(user, "first") for user in users))
    async with Redis.from_url(servers[lost].url) as client:
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

    expected = ["gap" if server == lost else "ok" for server in (0, 1)]
    while (found := await until_done(resumed, ConnectionClosed, InvalidHandshake, OSError, TimeoutError, within_s=60)) != expected:
        assert found == ["ok", "ok"], "the loss is not noticed yet"
    assert (await received(two, users[1 - lost], "second", cursors[1 - lost]))[0] == "ok"
