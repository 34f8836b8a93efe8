"""A stream of NATS JetStream as a source, on a real nats-server, Redis and edge."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.api import PubAck, StreamConfig

from engine.errors import StorageUnavailable
from engine.features.sources import nats_stream
from engine.features.sources.core import NatsSource, sources_of
from engine.features.sources.nats_stream import NatsStream
from tests.support.ingesting import emptied_by_the_ingester, ingesting, note, received, table
from tests.support.source_servers import SourceServer, nats_server
from tests.support.waiting import until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SourceServer]:
    made = nats_server(tmp_path)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def text(server: SourceServer) -> str:
    return table(kind="nats", connection=f"nats://127.0.0.1:{server.port}", stream="ORDERS")


@pytest.fixture
async def stream(server: SourceServer) -> AsyncIterator[JetStreamContext]:
    async with await nats.connect(f"nats://127.0.0.1:{server.port}") as client:
        await client.jetstream().add_stream(StreamConfig(name="ORDERS", subjects=["orders.*"]))
        yield client.jetstream()


@pytest.fixture
async def reader(text: str) -> AsyncIterator[NatsStream]:
    (source,) = sources_of(text)
    assert isinstance(source, NatsSource)
    made = NatsStream(source)
    yield made
    await made.close()


async def test_messages_are_accepted_once_though_a_reader_dies_and_the_server_is_killed(
    url: str, text: str, server: SourceServer, stream: JetStreamContext, reader: NatsStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_stream, "_ACK_WAIT_S", 1.0)
    for number in range(100):
        await stream.publish("orders.eu", json.dumps(note(number)).encode())
    assert len(await reader.read(20)) == 20
    assert (await reader.lag()).waiting == 100
    await reader.close()  # it settles nothing, as one that was killed
    async with ingesting(text, url) as ingester:
        await emptied_by_the_ingester(reader)
        server.kill()
        await until(lambda: ingester.stats()["state"], holds=lambda state: state != "ok")
        server.start()
        with pytest.raises(StorageUnavailable):
            await reader.lag()
        await reader.close()
        before = ingester.stats()["accepted"]
        async with await nats.connect(f"nats://127.0.0.1:{server.port}") as client:
            await client.jetstream().publish("orders.eu", json.dumps(note(100)).encode())
        await until(lambda: ingester.stats()["accepted"], holds=lambda accepted: accepted > before)
    assert await received(url) == Counter(dict.fromkeys(range(101), 1))


async def test_a_dead_message_too_large_for_its_stream_has_no_body(stream: JetStreamContext, reader: NatsStream) -> None:
    """A message as large as the server allows leaves no room for the reason."""
    await stream.publish("orders.eu", b"x" * (1 << 20))
    (row,) = await reader.read(1)
    await reader.settle([], [(row, "too large")])
    assert [(dead.id, dead.reason, dead.body) for dead in await reader.dead_rows(1)] == [(row.id, "too large", "")]
    assert (await reader.lag())[::2] == (0, 1)


async def test_many_bad_messages_are_set_aside_at_a_distant_server(
    stream: JetStreamContext, reader: NatsStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It confirms none before it has all: one by one they would take longer than a settlement may."""
    publish, begun = JetStreamContext.publish, asyncio.Event()
    subjects: list[str] = []

    async def confirmed_late(self: JetStreamContext, subject: str, *content: Any, **options: Any) -> PubAck:
        subjects.append(subject)
        if subjects.count("ORDERS_DEAD") == 3:
            begun.set()
        if subject == "ORDERS_DEAD":
            await begun.wait()
        return await publish(self, subject, *content, **options)

    monkeypatch.setattr(JetStreamContext, "publish", confirmed_late)
    for number in range(3):
        await stream.publish("orders.eu", str(number).encode())
    await reader.settle([], [(row, "bad") for row in await reader.read(3)])
    assert {dead.body for dead in await reader.dead_rows(3)} == {"0", "1", "2"}


async def test_bad_messages_are_set_aside_with_the_reason_and_come_back(
    url: str, text: str, stream: JetStreamContext, reader: NatsStream
) -> None:
    for body in (json.dumps(note(1)), '{"user": "user-0"}', "no\n json", json.dumps(note(2))):
        await stream.publish("orders.eu", body.encode())
    async with ingesting(text, url):
        await emptied_by_the_ingester(reader)
    assert await received(url) == Counter({1: 1, 2: 1})
    rows = await reader.dead_rows(10)
    assert {row.id.rpartition(":")[0] for row in rows} == {"ORDERS:2", "ORDERS:3"}
    assert {row.body: word for row in rows for word in ("type", "JSON object") if word in row.reason} == {
        '{"user": "user-0"}': "type",
        "no\n json": "JSON object",
    }
    assert (await reader.lag()).dead == 2
    assert await reader.redrive() == 2
    assert (await reader.lag())[::2] == (2, 0)


async def test_new_messages_are_read_behind_one_that_waits(stream: JetStreamContext, reader: NatsStream) -> None:
    for number in range(4):
        await stream.publish("orders.eu", str(number).encode())
    rows = await reader.read(2)
    await reader.settle(rows[1:], [])
    assert await reader.read(1) == rows[:1]
    assert [row.body for row in await reader.read(10)] == [b"0", b"2", b"3"]


async def test_a_look_for_new_messages_that_ends_loses_no_held_one(
    stream: JetStreamContext, reader: NatsStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client raises asyncio's error where its time ends between its two requests."""
    await stream.publish("orders.eu", b"1")
    rows = await reader.read(1)

    async def ends(*_args: object, **_options: object) -> None:
        raise TimeoutError

    with monkeypatch.context() as patched:
        patched.setattr(JetStreamContext.PullSubscription, "fetch", ends)
        assert await reader.read(10) == rows
    await reader.settle(rows, [])
    assert (await reader.lag()).waiting == 0


async def test_a_stream_made_anew_has_other_ids(stream: JetStreamContext, reader: NatsStream) -> None:
    """The engine would take its messages for those of before."""
    ids = list[str]()
    for _ in range(2):
        await stream.publish("orders.eu", b"1")
        ids += [row.id for row in await reader.read(1)]
        await reader.close()
        await stream.delete_stream("ORDERS")
        await stream.add_stream(StreamConfig(name="ORDERS", subjects=["orders.*"]))
    assert len(set(ids)) == 2


async def test_others_messages_in_the_dead_stream_end_no_redrive(stream: JetStreamContext, reader: NatsStream) -> None:
    await stream.publish("orders.eu", b"1")
    (row,) = await reader.read(1)
    await reader.settle([], [(row, "bad")])
    await stream.publish("ORDERS_DEAD", b"somebody else's")
    assert await reader.redrive() == 1
    assert [dead.body for dead in await reader.dead_rows(10)] == ["somebody else's"]


async def test_a_stream_that_does_not_exist_is_unavailable(reader: NatsStream) -> None:
    with pytest.raises(StorageUnavailable, match="source orders"):
        await reader.read(1)
