"""Topics of Kafka as a source, on a Kafka API server in memory, a real Redis and a real edge."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.records_to_delete import RecordsToDelete

from engine.errors import StorageUnavailable
from engine.features.sources.core import KafkaSource, sources_of
from engine.features.sources.kafka_topics import KafkaTopics, connection_options
from tests.support.ingesting import emptied_by_the_ingester, ingesting, note, received, table
from tests.support.source_servers import SourceServer, kafka_server
from tests.support.waiting import until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SourceServer]:
    made = kafka_server(tmp_path_factory.mktemp("kafka"), "orders", "clicks", "bad", "large", "many", "anew", "behind")
    made.start()
    yield made
    made.kill()


def source_of(text: str) -> KafkaSource:
    (source,) = sources_of(text)
    assert isinstance(source, KafkaSource)
    return source


def text_of(server: SourceServer, *topics: str) -> str:
    return table(kind="kafka", connection=f"kafka://127.0.0.1:{server.port}", topics=topics, group=f"engine-{topics[0]}")


@pytest.fixture
async def producer(server: SourceServer) -> AsyncIterator[AIOKafkaProducer]:
    made = AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{server.port}")
    await made.start()
    yield made
    await made.stop()


async def produce(producer: AIOKafkaProducer, topic: str, *bodies: str) -> None:
    for number, body in enumerate(bodies):
        await producer.send(topic, body.encode(), key=str(number % 5).encode())
    await producer.flush()


async def test_records_are_accepted_once_though_a_reader_dies(url: str, server: SourceServer, producer: AIOKafkaProducer) -> None:
    text = text_of(server, "orders", "clicks")
    await produce(producer, "orders", *(json.dumps(note(number)) for number in range(100)))
    await produce(producer, "clicks", *(json.dumps(note(number)) for number in range(100, 120)))
    first, reader = KafkaTopics(source_of(text)), KafkaTopics(source_of(text))
    rows = await first.read(20)
    await first.settle(rows[:3], [])
    assert (await reader.lag()).waiting == 120 - 3
    assert (await reader.lag()).oldest_ms > 0
    assert [row.id for row in (await first.read(20))[:2]] == [row.id for row in rows[3:5]]
    await first.close()  # it settles nothing more, as one that was killed
    async with ingesting(text, url):
        await emptied_by_the_ingester(reader)
    three = {json.loads(row.body)["data"]["n"] for row in rows[:3]}  # settled without an edge
    assert await received(url) == Counter(dict.fromkeys(set(range(120)) - three, 1))
    await reader.close()


async def test_bad_records_are_set_aside_with_the_reason_and_come_back(url: str, server: SourceServer, producer: AIOKafkaProducer) -> None:
    text = text_of(server, "bad")
    reader = KafkaTopics(source_of(text))
    await produce(producer, "bad", json.dumps(note(1)), '{"user": "user-0"}', "no json", json.dumps(note(2)))
    async with ingesting(text, url):
        await emptied_by_the_ingester(reader)
    assert await received(url) == Counter({1: 1, 2: 1})
    reasons = {row.body: row.reason for row in await reader.dead_rows(10)}
    assert "type" in reasons['{"user": "user-0"}']
    assert "JSON object" in reasons["no json"]
    assert (await reader.lag())[::2] == (0, 2)
    assert await reader.redrive() == 2
    assert (await reader.lag())[::2] == (2, 0)
    await reader.close()


async def test_a_redrive_ends_though_the_engine_refuses_all_again(monkeypatch: pytest.MonkeyPatch) -> None:
    place = TopicPartition("bad.dead", 0)
    dead, begin = [b"no json", b"no type", b"no user"], 0

    class Server:
        async def send_and_wait(self, topic: str, value: bytes, key: bytes | None) -> None:
            assert topic == "bad"
            await asyncio.sleep(0)
            dead.append(value)  # refused at once

        async def delete_records(self, ends: Mapping[TopicPartition, RecordsToDelete]) -> None:
            nonlocal begin
            begin = ends[place].before_offset

    async def ends(_: KafkaTopics) -> Mapping[TopicPartition, tuple[int, int]]:
        return {place: (begin, len(dead))}

    async def records(_: KafkaTopics, begins: Mapping[TopicPartition, int], limit: int) -> list[Any]:
        found = list(enumerate(dead))[begins[place] :][:2]
        return [SimpleNamespace(topic="bad.dead", partition=0, offset=offset, value=value, key=None) for offset, value in found]

    async def server(_: KafkaTopics) -> Server:
        return Server()

    for name, fake in (("_dead_ends", ends), ("_records", records), ("_producing", server), ("_administering", server)):
        monkeypatch.setattr(KafkaTopics, name, fake)
    reader = KafkaTopics(source_of(table(kind="kafka", connection="kafka://127.0.0.1:1", topics=["bad"])))
    async with asyncio.timeout(5):
        assert await reader.redrive() == 3
    assert dead[begin:] == [b"no json", b"no type", b"no user"]


async def test_a_dead_record_too_large_for_its_topic_has_no_body(server: SourceServer, producer: AIOKafkaProducer) -> None:
    """A record as large as the broker allows, by its body or its key, leaves no room for the reason."""
    reader, reason, large = KafkaTopics(source_of(text_of(server, "large"))), "x" * 1000, b"x" * ((1 << 20) - 500)
    for content in ({"value": large}, {"key": large}):
        await producer.send_and_wait("large", **content)
        (row,) = await until(lambda: reader.read(1))
        await reader.settle([], [(row, reason)])
    assert (await reader.lag())[::2] == (0, 2)
    assert [(dead.reason, dead.body) for dead in await reader.dead_rows(2)] == [(reason, "")] * 2
    await reader.close()


async def test_a_topic_made_anew_has_other_ids(server: SourceServer, producer: AIOKafkaProducer) -> None:
    """The engine would take its records for those of before."""
    admin, ids = AIOKafkaAdminClient(bootstrap_servers=f"127.0.0.1:{server.port}"), list[str]()
    await admin.start()
    for group in "ab":
        reader = KafkaTopics(source_of(table(kind="kafka", connection=f"kafka://127.0.0.1:{server.port}", topics=["anew"], group=group)))
        await producer.send_and_wait("anew", b"1", partition=0)
        ids += [row.id for row in await until(lambda reader=reader: reader.read(1))]  # type: ignore[misc]
        await reader.close()
        await admin.delete_topics(["anew"])
        await admin.create_topics([NewTopic("anew", 1, 1)])
    await admin.close()
    assert len(set(ids)) == 2


async def test_many_bad_records_are_set_aside_at_a_distant_broker(
    server: SourceServer, producer: AIOKafkaProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It confirms none before it has all: one by one they would take longer than a settlement may."""
    send, begun, sent = AIOKafkaProducer.send_and_wait, asyncio.Event(), list[str]()

    async def confirmed_late(self: AIOKafkaProducer, topic: str, *content: Any, **options: Any) -> Any:
        sent.append(topic)
        if len(sent) == 3:
            begun.set()
        await begun.wait()
        return await send(self, topic, *content, **options)

    reader = KafkaTopics(source_of(text_of(server, "many")))
    await produce(producer, "many", "0", "1", "2")
    rows = await until(lambda: reader.read(3), holds=lambda rows: len(rows) == 3)
    monkeypatch.setattr(AIOKafkaProducer, "send_and_wait", confirmed_late)
    await reader.settle([], [(row, "bad") for row in rows])
    assert {dead.body for dead in await reader.dead_rows(3)} == {"0", "1", "2"}
    await reader.close()


async def test_the_offset_of_an_unsettled_record_is_not_committed(server: SourceServer, producer: AIOKafkaProducer) -> None:
    text = table(kind="kafka", connection=f"kafka://127.0.0.1:{server.port}", topics=["orders"], group="gaps")
    await produce(producer, "orders", *(json.dumps(note(number)) for number in range(10)))
    reader = KafkaTopics(source_of(text))
    rows = await reader.read(10)
    await reader.settle(rows[1:], [])
    assert {row.id for row in rows} & {row.id for row in await reader.read(10)} == {rows[0].id}
    await reader.close()

    async def handled() -> list[str]:
        found = await reader.read(10)  # of one partition, or of both
        await reader.settle(found, [])
        return [row.id for row in found]

    await until(handled, holds=lambda ids: rows[0].id in ids)
    await reader.close()


async def test_other_partitions_are_read_while_a_record_waits(server: SourceServer, producer: AIOKafkaProducer) -> None:
    reader = KafkaTopics(source_of(text_of(server, "behind")))
    for partition in (0, 1):
        await producer.send_and_wait("behind", str(partition).encode(), partition=partition)
    (waits,) = await until(lambda: reader.read(1))
    rows = await until(lambda: reader.read(10), holds=lambda rows: len(rows) > 1)
    await producer.send_and_wait("behind", b"later", partition=waits.key[0].partition)
    await producer.send_and_wait("behind", b"later", partition=rows[1].key[0].partition)
    await reader.settle(rows[1:], [])
    found = await until(lambda: reader.read(10), holds=lambda rows: len(rows) > 1)
    assert [(row.key[0], row.body) for row in found] == [(waits.key[0], waits.body), (rows[1].key[0], b"later")]
    await reader.close()


async def test_a_server_that_does_not_answer_is_unavailable() -> None:
    reader = KafkaTopics(source_of(table(kind="kafka", connection="kafka://127.0.0.1:1", topics=["orders"])))
    with pytest.raises(StorageUnavailable, match="source orders"):
        await reader.read(1)
    await reader.close()


def test_a_connection_names_brokers_and_a_login() -> None:
    text = table(kind="kafka", connection="kafka+ssl://app:p%40ss@one:9092,two:9092", topics=["orders"], sasl_mechanism="SCRAM-SHA-256")
    options = connection_options(source_of(text))
    assert options["bootstrap_servers"] == ["one:9092", "two:9092"]
    assert (options["security_protocol"], options["sasl_mechanism"]) == ("SASL_SSL", "SCRAM-SHA-256")
    assert (options["sasl_plain_username"], options["sasl_plain_password"]) == ("app", "p@ss")
