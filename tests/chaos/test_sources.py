"""Kill the readers of sources and the servers that they read from, under a whole engine: each row is accepted once."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest
from aiokafka import AIOKafkaProducer
from nats.errors import Error as NatsError
from nats.js.api import StreamConfig
from redis.asyncio import Redis

from tests.support.chaos.breakable_engine import LATE_S, victim_of
from tests.support.redis_server import RedisServer, find_server
from tests.support.running_engine import RunningEngine, running_engine
from tests.support.source_servers import SourceServer, kafka_server, nats_server
from tests.support.waiting import until, until_done

pytestmark = [pytest.mark.slow, pytest.mark.engine]

ROWS = 300
"""Of each source, half of them before the kills."""
USERS = 10


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[SourceServer, SourceServer, RedisServer]]:
    """NATS and Redis, which keep their data when they are killed, and Kafka, which does not."""
    made = nats_server(tmp_path / "nats"), kafka_server(tmp_path, "orders"), RedisServer(find_server(), tmp_path)
    for server in made:
        server.start()
    yield made
    for server in made:
        server.kill()


@pytest.fixture
def engine_with_sources(servers: tuple[SourceServer, SourceServer, RedisServer]) -> Iterator[RunningEngine]:
    nats_, kafka, redis = servers
    sources: list[dict[str, Any]] = [
        {"name": "nats", "kind": "nats", "connection": f"nats://127.0.0.1:{nats_.port}", "stream": "ORDERS"},
        {"name": "kafka", "kind": "kafka", "connection": f"kafka://127.0.0.1:{kafka.port}", "topics": ["orders"], "group": "engine"},
        {"name": "redis", "kind": "redis", "connection": redis.url, "stream": "orders"},
    ]
    with running_engine("--shards", "1", env={"ENGINE_SOURCES": json.dumps([{**one, "rows_max": 20} for one in sources])}) as running:
        yield running


def rows(kind: str, first: int, last: int) -> list[bytes]:
    return [
        json.dumps({"user": f"user-{number % USERS}", "type": "order.paid", "data": {"row": f"{kind}-{number}"}}).encode()
        for number in range(first, last)
    ]


class Writers:
    """Put rows into the sources."""

    def __init__(self, servers: tuple[SourceServer, SourceServer, RedisServer]) -> None:
        self._nats, self._kafka, self._redis = servers

    async def put(self, first: int, last: int) -> None:
        into_nats = until_done(lambda: self._into_nats(first, last), OSError, NatsError, within_s=LATE_S)  # it may still be starting
        await asyncio.gather(into_nats, self._into_kafka(first, last), self._into_redis(first, last))

    async def _into_nats(self, first: int, last: int) -> None:
        async with await nats.connect(f"nats://127.0.0.1:{self._nats.port}") as client:
            stream = client.jetstream()
            await stream.add_stream(StreamConfig(name="ORDERS", subjects=["orders.*"]))
            for number, row in enumerate(rows("nats", first, last), first):
                await stream.publish("orders.eu", row, headers={"Nats-Msg-Id": str(number)})

    async def _into_kafka(self, first: int, last: int) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{self._kafka.port}")
        await producer.start()
        for row in rows("kafka", first, last):
            await producer.send("orders", row)
        await producer.stop()

    async def _into_redis(self, first: int, last: int) -> None:
        async with Redis.from_url(self._redis.url) as client:
            for row in rows("redis", first, last):
                await client.xadd("orders", {"body": row})


async def received(engine: RunningEngine) -> Counter[str]:
    """How often each row is in what the users are sent. The cursor of a poll acknowledges."""
    found = Counter[str]()
    async with httpx.AsyncClient(base_url=engine.url, trust_env=False, verify=False, timeout=20) as http:
        for user in (f"user-{number}" for number in range(USERS)):
            cursor: dict[str, str] = {}
            while True:
                headers = {"Authorization": f"Bearer {engine.token(user)}"}
                response = await http.get("/v1/poll", params={"wait": "0", **cursor}, headers=headers)
                if response.status_code == 503:  # the shard did not welcome it in time: the next look has the rest
                    break
                answer = response.raise_for_status().json()
                if not answer["messages"]:
                    break
                found.update(message["data"]["row"] for message in answer["messages"])
                cursor = {"last_event_id": answer["last_event_id"]}
    return found


async def test_each_row_of_nats_kafka_and_redis_is_accepted_once_though_readers_and_servers_are_killed(
    engine_with_sources: RunningEngine, servers: tuple[SourceServer, SourceServer, RedisServer]
) -> None:
    engine, (nats_, _, redis), writers = engine_with_sources, servers, Writers(servers)
    victim = victim_of(engine)
    await writers.put(0, ROWS // 2)
    await until(lambda: victim.pids("ingester"), LATE_S, holds=lambda pids: len(pids) == 3)
    for _ in range(3):
        victim.kill("ingester")
    nats_.kill()
    redis.kill()
    nats_.start()
    redis.start()
    await writers.put(ROWS // 2, ROWS)
    wanted = {f"{kind}-{number}" for kind in ("nats", "kafka", "redis") for number in range(ROWS)}
    found = Counter[str]()

    async def more() -> bool:
        found.update(await received(engine))
        return found.keys() >= wanted

    await until(more, LATE_S)
    assert found == Counter(dict.fromkeys(wanted, 1))
