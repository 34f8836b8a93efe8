"""The archivist on a real Redis, SQLite and PostgreSQL: every outcome is a row once, whatever dies or is away."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from engine.config import Config
from engine.core.wire.outcomes import AcceptedOutcome, AnyOutcome, OutcomeLog, SentOutcome, encode_outcomes
from engine.errors import StorageUnavailable
from engine.features.event_groups.store import EventStreams, GroupEvent, OutcomeEvent
from engine.features.history.history_database import HistoryDatabase
from engine.features.history.outcome_reader import GROUP, OutcomeReader
from engine.store.keys import OUTCOME_STREAM_KEY
from engine.store.outcome_stream import OutcomeWriter
from engine.store.stream_groups import read_group
from tests.support.archivist_process import archiving
from tests.support.history_databases import emptied
from tests.support.postgresql_server import PostgresqlServer
from tests.support.redis_server import RedisServer
from tests.support.waiting import until


@pytest.fixture
def config(redis_client: Redis, redis_server: RedisServer, tmp_path: Path) -> Config:
    return Config(
        redis_url=redis_server.url,
        redis_durability="reported",
        history_url="sqlite:///history.db",
        data_dir=str(tmp_path),
        history_rows_max=200,
    )


NOW_MS = time.time_ns() // 1_000_000  # rows of long ago are deleted


def outcomes(first: int, count: int) -> list[AnyOutcome]:
    return [
        made
        for number in range(first, first + count)
        for made in (
            AcceptedOutcome("t:alice", NOW_MS + number, f"m{number}", number, "post.liked"),
            SentOutcome("t:alice", NOW_MS + number, f"m{number}", number, 1, "s1", "", 0, "edge-0"),
        )
    ]


def database_of(config: Config) -> HistoryDatabase:
    return HistoryDatabase(config.history_url, config.data_dir)


def counts(config: Config) -> Counter[str]:
    """How often each outcome is a row: `accepted m1` and so on."""
    database = database_of(config)
    try:
        rows = database.query({}, 100_000)
    except StorageUnavailable:
        return Counter()
    finally:
        database.close()
    return Counter(f"{row['event']} {row['message']}" for row in rows)


def all_of(count: int) -> Counter[str]:
    return Counter(f"{event} m{number}" for number in range(count) for event in ("accepted", "sent"))


async def append(client: Redis, config: Config, first: int, count: int) -> None:
    log = OutcomeLog()
    log.extend(outcomes(first, count))
    await OutcomeWriter(client, config, f"shard-0/{first}", log).flush()


async def archived(config: Config, count: int, within_s: float = 30) -> None:
    await until(lambda: len(counts(config)) >= 2 * count, within_s, look_s=0.1)
    assert counts(config) == all_of(count)


async def test_outcomes_become_rows_and_leave_the_stream(redis_client: Redis, config: Config) -> None:
    async with archiving(config) as archivist:
        await append(redis_client, config, 0, 500)
        await append(redis_client, config, 500, 10)
        await archived(config, 510)
        await until(lambda: redis_client.xlen(OUTCOME_STREAM_KEY), holds=lambda left: left == 0)
        stats = await archivist.stats()
        assert (stats["archived"], stats["refused"], stats["database"]) == (1020, 0, "ok")
        rows = await archivist.ask({"tenant": "t", "user": "alice"}, 3)
        assert [row["event"] for row in rows] == ["sent", "accepted", "sent"]
        await archivist.drain()


async def test_rows_that_were_committed_and_not_settled_are_not_stored_twice(
    redis_client: Redis, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any) -> None:
        raise StorageUnavailable("the answer is lost")

    await append(redis_client, config, 0, 300)
    with monkeypatch.context() as patch:
        patch.setattr(OutcomeReader, "settle", never)
        async with archiving(config):
            await until(lambda: len(counts(config)) > 100, look_s=0.05)
    assert await redis_client.xlen(OUTCOME_STREAM_KEY) > 0
    async with archiving(config), archiving(config):
        await append(redis_client, config, 300, 100)
        await archived(config, 400)
        await until(lambda: redis_client.xlen(OUTCOME_STREAM_KEY), holds=lambda left: left == 0)
    assert (await OutcomeReader(redis_client, Config()).lag()).bytes == 0


async def test_batches_are_read_again_after_a_lost_answer(redis_client: Redis, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = list[Any]()

    async def losing(*where: Any, again: bool) -> Any:
        found = await read_group(*where, again=again)
        if found and not again and not lost:
            lost.append(found)
            raise ConnectionError("the answer is lost")
        return found

    monkeypatch.setattr("engine.features.history.outcome_reader.read_group", losing)
    async with archiving(config) as archivist:
        await until(archivist.stats, holds=lambda stats: stats["database"] == "ok")
        await asyncio.sleep(0.5)  # it has nothing to read again
        await append(redis_client, config, 0, 10)
        await archived(config, 10)
    assert lost


async def test_a_batch_of_another_archivist_that_died_meanwhile_is_stored(
    redis_client: Redis, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.features.history.archivist._LEFT_BEHIND_MS", 200)
    async with archiving(config) as archivist:
        await append(redis_client, config, 0, 5)
        await archived(config, 5)
        await until(lambda: redis_client.xlen(OUTCOME_STREAM_KEY), holds=lambda left: left == 0)
        # One script: the other archivist takes the batch, and is gone before this one can read it.
        log = OutcomeLog()
        log.extend(outcomes(5, 5))
        pipeline = redis_client.pipeline(transaction=True)
        pipeline.xadd(OUTCOME_STREAM_KEY, {"s": "shard-0/5", "n": 0, "c": 10, "b": zlib.compress(encode_outcomes(log.take(10)))})
        pipeline.xreadgroup(GROUP, GROUP, {OUTCOME_STREAM_KEY: ">"})
        await pipeline.execute()
        await archived(config, 10)
        await until(lambda: redis_client.xlen(OUTCOME_STREAM_KEY), holds=lambda left: left == 0)
        assert (await archivist.stats())["refused"] == 0


async def test_a_database_that_hangs_is_noticed_and_questions_are_bounded(
    redis_client: Redis, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.features.history.archivist._WATCH_S", 0.05)
    monkeypatch.setattr("engine.features.history.archivist._ANSWER_S", 0.5)
    frozen, ping, query = threading.Event(), HistoryDatabase.ping, HistoryDatabase.query
    frozen.set()

    def waiting(work: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*arguments: Any) -> Any:
            frozen.wait(60)
            return work(*arguments)

        return wait

    monkeypatch.setattr(HistoryDatabase, "ping", waiting(ping))
    monkeypatch.setattr(HistoryDatabase, "query", waiting(query))
    async with archiving(config) as archivist:
        await until(archivist.stats, holds=lambda stats: stats["database"] == "ok")
        frozen.clear()
        try:
            await until(archivist.stats, holds=lambda stats: stats["database"] != "ok")
            asked = [asyncio.ensure_future(archivist.ask({"tenant": "t"}, 10)) for _ in range(1000)]
            refused, waits = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            assert all(isinstance(one.exception(), StorageUnavailable) for one in refused)
            assert len(waits) < 200
        finally:
            frozen.set()
        await asyncio.gather(*waits)
        await until(archivist.stats, holds=lambda stats: stats["database"] == "ok")


async def test_a_group_of_consumers_gets_every_outcome_that_the_archivist_has_settled_before_and_while_it_reads(
    redis_client: Redis, config: Config
) -> None:
    groups = EventStreams(redis_client, config, lambda: time.time_ns() // 1_000_000)
    taken = await groups.take("t", "lake", "a", outcomes=True)
    assert taken is not None
    position, found = taken[1], Counter[str]()
    async with archiving(config) as archivist:
        await append(redis_client, config, 0, 300)
        await archived(config, 300)
        await archivist.drain()
        for first in range(300, 400, 20):
            await append(redis_client, config, first, 20)
            look = await groups.look("t", position, 150)
            found.update(_named(event) for event in look.events)
            position = look.position
        await archived(config, 400)
        while look.events:
            look = await groups.look("t", position, 150)
            found.update(_named(event) for event in look.events)
            position = look.position
        assert (await archivist.stats())["dropped"] == 0
        await until(OutcomeReader(redis_client, config).lag, holds=lambda lag: lag.waiting == 0)
    assert found == all_of(400)


def _named(event: GroupEvent) -> str:
    assert isinstance(event.what, OutcomeEvent), event
    return f"{event.what.members['event']} {event.what.members['message']}"


async def test_a_batch_that_nobody_can_read_holds_nobody_up_and_is_counted(redis_client: Redis, config: Config) -> None:
    await redis_client.xadd(OUTCOME_STREAM_KEY, {"s": "x", "n": 0, "c": 7, "b": b"nonsense"})
    await redis_client.xadd(OUTCOME_STREAM_KEY, {"s": "x", "n": b"4\xb2", "c": "", "b": b"nonsense"})
    await append(redis_client, config, 0, 5)
    async with archiving(config) as archivist:
        await archived(config, 5)
        await until(OutcomeReader(redis_client, Config()).lag, holds=lambda lag: lag.dropped == 7)
        assert (await archivist.stats())["refused"] == 7


async def test_while_postgresql_is_away_rows_wait_and_nothing_else(
    redis_client: Redis, config: Config, postgresql_server: PostgresqlServer
) -> None:
    config = msgspec.structs.replace(config, history_url=emptied(postgresql_server))
    async with archiving(config) as archivist:
        await append(redis_client, config, 0, 50)
        await archived(config, 50)
        postgresql_server.kill()
        await append(redis_client, config, 50, 50)
        await until(archivist.stats, holds=lambda stats: stats["database"] != "ok" and stats["waiting"] == 100)
        with pytest.raises(StorageUnavailable):
            await archivist.ask({"tenant": "t"}, 10)
        postgresql_server.start()
        await archived(config, 100)
        await until(archivist.stats, holds=lambda stats: stats["database"] == "ok" and stats["waiting"] == 0)


async def test_a_database_that_is_away_is_noticed_without_anything_to_write(
    redis_client: Redis, config: Config, postgresql_server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.features.history.archivist._WATCH_S", 0.05)
    config = msgspec.structs.replace(config, history_url=emptied(postgresql_server), history_sweep_ms=3_600_000)
    async with archiving(config) as archivist:
        await until(archivist.stats, holds=lambda stats: stats["database"] == "ok")
        postgresql_server.kill()
        await until(archivist.stats, holds=lambda stats: stats["database"] != "ok")
        postgresql_server.start()
        await until(archivist.stats, holds=lambda stats: stats["database"] == "ok")


async def test_a_database_that_vanished_is_made_anew(redis_client: Redis, config: Config, tmp_path: Path) -> None:
    async with archiving(config) as archivist:
        await append(redis_client, config, 0, 5)
        await archived(config, 5)
        for path in tmp_path.glob("history.db*"):
            path.unlink()
        with pytest.raises(StorageUnavailable):
            await archivist.ask({"tenant": "t"}, 10)
        assert not list(tmp_path.glob("history.db*")), "who reads makes none"
        await append(redis_client, config, 0, 7)
        await archived(config, 7)


async def test_a_database_file_that_cannot_be_made_is_a_fault_and_no_crash(redis_client: Redis, config: Config, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with archiving(msgspec.structs.replace(config, history_url="sqlite:///file/history.db")) as archivist:
        await until(archivist.stats, holds=lambda stats: "File exists" in stats["database"])


@pytest.mark.slow
async def test_an_archivist_that_is_killed_again_and_again_writes_every_row_once(
    redis_client: Redis, redis_server: RedisServer, config: Config
) -> None:
    chance, count = random.Random(7), 0
    command = [sys.executable, "-m", "tests.support.archivist_process", redis_server.url, config.history_url, config.data_dir]
    for _ in range(3):
        process = subprocess.Popen(command)
        try:
            before = len(counts(config))
            for _ in range(6):
                await append(redis_client, config, count, 100)
                count += 100
            await until(growing(config, before), 60, look_s=0.05)
            await asyncio.sleep(chance.random() / 20)
        finally:
            process.kill()
            process.wait()
    async with archiving(config):
        await archived(config, count)
        await until(lambda: redis_client.xlen(OUTCOME_STREAM_KEY), holds=lambda left: left == 0)


def growing(config: Config, before: int) -> Callable[[], bool]:
    return lambda: len(counts(config)) > before
