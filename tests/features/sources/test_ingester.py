"""The ingester on a real PostgreSQL, a real Redis and a real edge: each committed row is accepted once, whatever is killed."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import psycopg
import pytest
from redis.asyncio import Redis

from engine.api.actor_feature import ActorPorts, EdgeAnswer
from engine.config import Config
from engine.errors import StorageUnavailable
from engine.features.sources import postgresql_outbox
from engine.features.sources.core import PostgresqlSource, sources_of
from engine.features.sources.ingester import Ingester
from engine.features.sources.postgresql_outbox import PostgresqlOutbox, ddl
from engine.features.sources.readers import reader_of
from tests.support.background_task import background
from tests.support.history_databases import emptied
from tests.support.ingesting import emptied_by_the_ingester, ingest, ingesting, lag_of, note, received, table, token
from tests.support.postgresql_server import PostgresqlServer
from tests.support.redis_server import RedisServer
from tests.support.waiting import until


@pytest.fixture
def outbox(postgresql_server: PostgresqlServer) -> PostgresqlSource:
    text = table(kind="postgresql", connection=emptied(postgresql_server), poll_ms=50)
    (source,) = sources_of(text)
    assert isinstance(source, PostgresqlSource)
    with psycopg.connect(source.connection) as connection:
        connection.execute(ddl(source).encode())
    return source


def text_of(source: PostgresqlSource) -> str:
    return table(kind="postgresql", connection=source.connection, poll_ms=50)


def insert(connection: psycopg.Connection[Any], *bodies: dict[str, Any]) -> None:
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO notification_outbox (body) VALUES (%s)", [(json.dumps(body),) for body in bodies])


@pytest.fixture
async def reader(outbox: PostgresqlSource) -> AsyncIterator[PostgresqlOutbox]:
    made = PostgresqlOutbox(outbox)
    yield made
    await made.close()


async def test_committed_rows_are_accepted_once_through_kills(
    url: str, outbox: PostgresqlSource, reader: PostgresqlOutbox, postgresql_server: PostgresqlServer
) -> None:
    """A tenth of the transactions rolls back, and two writers commit out of order; ingester and server are killed meanwhile."""
    chance = random.Random(7)
    committed: set[int] = set()
    command = [sys.executable, "-m", "tests.support.ingesting", text_of(outbox), url, token("source", "publish")]
    process = await asyncio.create_subprocess_exec(*command)
    for part in range(3):
        with psycopg.connect(outbox.connection) as slow, psycopg.connect(outbox.connection) as fast:
            for start in range(part * 250, part * 250 + 250, 25):
                insert(slow, note(start))  # a lower number that commits later
                insert(fast, *map(note, range(start + 1, start + 25)))
                if chance.random() < 0.1:
                    fast.rollback()
                else:
                    fast.commit()
                    committed.update(range(start + 1, start + 25))
                await asyncio.sleep(0)
            slow.commit()
            committed.update(range(part * 250, part * 250 + 250, 25))
        start_waiting = await lag_of(reader)
        await until(lambda: lag_of(reader), 30, holds=lambda waiting, most=start_waiting: waiting < most or waiting == 0)
        process.kill()
        await process.wait()
        if part == 1:
            await reader.close()
            postgresql_server.kill()
            await asyncio.to_thread(postgresql_server.start)
        process = await asyncio.create_subprocess_exec(*command)
    try:
        await emptied_by_the_ingester(reader)
    finally:
        process.kill()
        await process.wait()
    assert await received(url) == Counter(dict.fromkeys(committed, 1))
    assert (await reader.lag()).dead == 0


class SilencedPath:
    """A path to the server, which ends without a word while `there` is not set.

    Args:
        folder: of the server's socket.
        own: folder of the socket that is forwarded.
    """

    def __init__(self, folder: str, own: Path) -> None:
        self._server = f"{folder}/.s.PGSQL.5432"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{own}/.s.PGSQL.5432")
        self._listener.listen()
        self._sockets = [self._listener]
        self._tasks = [asyncio.ensure_future(self._accept())]
        self.there = asyncio.Event()
        self.there.set()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        while True:
            client, server = (await loop.sock_accept(self._listener))[0], socket.socket(socket.AF_UNIX)
            self._sockets += client, server
            server.setblocking(False)
            await loop.sock_connect(server, self._server)
            self._tasks += (asyncio.ensure_future(self._forward(*ends)) for ends in ((client, server), (server, client)))

    async def _forward(self, source: socket.socket, target: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(source, 65536):
            await self.there.wait()
            await loop.sock_sendall(target, data)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self._sockets:
            one.close()


async def test_a_server_that_vanishes_is_away_after_a_while(
    outbox: PostgresqlSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_outbox, "_ANSWER_S", 0.3)
    folder = parse_qs(urlsplit(outbox.connection).query)["host"][0]
    path = SilencedPath(folder, tmp_path)
    reader = PostgresqlOutbox(msgspec.structs.replace(outbox, connection=outbox.connection.replace(folder, str(tmp_path))))
    try:
        assert await reader.read(10) == []
        path.there.clear()
        async with asyncio.timeout(20):  # the driver tries to cancel the statement, for twice 5 s
            with pytest.raises(StorageUnavailable):
                await reader.read(10)
        path.there.set()
        assert await reader.read(10) == []
    finally:
        await reader.close()
        await path.close()


async def test_a_row_sent_before_a_crash_is_not_delivered_twice(url: str, outbox: PostgresqlSource, reader: PostgresqlOutbox) -> None:
    """The crash between the edge's answer and the settlement: the rows are read again."""
    with psycopg.connect(outbox.connection) as connection:
        insert(connection, note(1), note(2))
    first = Ingester(lambda: 0)
    settle = PostgresqlOutbox.settle
    with pytest.MonkeyPatch.context() as patch:

        async def dies(self: PostgresqlOutbox, *_fates: Any) -> None:
            await self.close()
            raise KeyError("killed")

        patch.setattr(PostgresqlOutbox, "settle", dies)
        with pytest.raises(ExceptionGroup):
            await ingest(first, text_of(outbox), url, token("source", "publish"))
    assert PostgresqlOutbox.settle is settle
    assert await lag_of(reader) == 2
    async with ingesting(text_of(outbox), url):
        await emptied_by_the_ingester(reader)
    assert await received(url) == Counter({1: 1, 2: 1})


async def test_bad_rows_are_set_aside_with_the_reason_and_come_back(url: str, outbox: PostgresqlSource, reader: PostgresqlOutbox) -> None:
    with psycopg.connect(outbox.connection) as connection:
        insert(connection, note(1), {"type": "no.user"}, note(2), {"user": "user-0"}, note(3))
    async with ingesting(text_of(outbox), url) as ingester:
        await emptied_by_the_ingester(reader)
        await until(lambda: ingester.stats()["dead"], holds=lambda dead: dead == 2)
    assert await received(url) == Counter({1: 1, 2: 1, 3: 1})
    reasons = [row.reason for row in await reader.dead_rows(10)]
    assert len(reasons) == 2
    assert "user" in reasons[0]
    assert "type" in reasons[1]
    assert await reader.redrive() == 2
    assert (await reader.lag())[::2] == (2, 0)


async def test_bad_rows_of_a_table_that_counts_anew_are_set_aside(outbox: PostgresqlSource, reader: PostgresqlOutbox) -> None:
    with psycopg.connect(outbox.connection, autocommit=True) as connection:
        for reason in ("first", "second"):
            connection.execute("TRUNCATE notification_outbox RESTART IDENTITY")
            insert(connection, note(1), note(2))
            await reader.settle([], [(row, reason) for row in await reader.read(9)])
    assert [row.reason for row in await reader.dead_rows(9)] == ["first", "first", "second", "second"]


async def test_rows_wait_in_the_source_while_no_edge_answers(outbox: PostgresqlSource, reader: PostgresqlOutbox) -> None:
    with psycopg.connect(outbox.connection) as connection:
        insert(connection, note(1))
    async with ingesting(text_of(outbox), "http://127.0.0.1:1") as ingester:
        await until(lambda: ingester.stats()["state"], holds=lambda state: state == "no edge answers")
    assert await lag_of(reader) == 1


class FailsAtOne:
    """An edge that fails at each request with the row `bad`, and takes all others."""

    def __init__(self) -> None:
        self.failed = 0

    async def publish(self, tenant: str, path: str, bodies: Sequence[bytes]) -> list[EdgeAnswer]:
        self.failed += b'"bad"' in bodies[0]
        return [(500, {"retry-after": "0.001"}, b'{"detail": "broken"}') if b'"bad"' in bodies[0] else (202, {}, b"{}")]


async def test_a_row_that_the_engine_fails_at_is_told_by_its_id(
    redis_client: Redis, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    sources, edge, ingester = table(kind="redis", connection=redis_server.url, stream="orders"), FailsAtOne(), Ingester(lambda: 0)
    for number in range(20):
        body = json.dumps({"type": "bad" if number == 13 else "order.paid", "user": "u"})
        await redis_client.xadd("orders", {"body": body}, id=f"7-{number}")
    async with background(ingester.run(ActorPorts(Config(sources=sources), 0, redis_client, edge))):
        await until(lambda: ingester.stats()["state"], holds=lambda state: state.startswith("row "))
        failed = edge.failed
        await until(lambda: edge.failed > failed + 3)
    assert ingester.stats()["state"] == "row orders:7-13 waits: the engine answers 500: broken"
    assert ingester.stats()["accepted"] == 13, "those before it"
    assert [record.message for record in caplog.records if "7-13" in record.message] == [
        "source orders: row orders:7-13 waits: the engine answers 500: broken"
    ]


async def test_stream_entries_are_accepted_once_and_leave_the_stream(url: str, redis_client: Redis, redis_server: RedisServer) -> None:
    sources = table(kind="redis", connection=redis_server.url, stream="orders")
    (source,) = sources_of(sources)
    reader = reader_of(source)
    async with redis_client.pipeline() as pipe:
        for body in (*(json.dumps(note(number)) for number in range(200)), "no json"):
            pipe.xadd("orders", {"body": body})
        await pipe.execute()
    await reader.read(20)  # a reader that died: these are pending
    async with ingesting(sources, url):
        await emptied_by_the_ingester(reader)
    assert await received(url) == Counter(dict.fromkeys(range(200), 1))
    (dead,) = await reader.dead_rows(10)
    assert (dead.body, "JSON object" in dead.reason) == ("no json", True)
    await reader.close()
