"""`Publisher.stream` against real edges with a real Redis, which die and forget."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from redis.asyncio import Redis

from engine.client.client import Client
from engine.client.credentials import Credentials, parse_url
from engine.client.frames import Part
from engine.client.growing_messages import GrowingMessage, PartSender
from engine.client.http_connection import HttpConnection, Response
from engine.client.protocol import Transport
from engine.client.publisher import Publisher
from engine.client.retried_requests import RetriedRequests
from engine.errors import Refused
from engine.features.growing.core import IDLE
from engine.features.growing.store import GrowingStore
from tests.support.edge_world import EdgeWorld, edge_world
from tests.support.raw_http_server import RawRequest, answer, raw_server
from tests.support.waiting import until

KEY = "default:u1"
FAST = {"growing_poll_ms": 20, "growing_chunk_ms": 20, "growing_rollup_ms": 10}


class Switching:
    """A carrier whose requests a test sends to another edge from some time on, as a proxy does when one dies."""

    engine = "the engine"

    def __init__(self, *worlds: EdgeWorld) -> None:
        self.at = 0
        self.requests: list[tuple[str, Any]] = []
        self._connections = [HttpConnection(parse_url(world.url()), connections_max=2) for world in worlds]

    async def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes, **options: Any) -> Response:
        self.requests.append((path, json.loads(body)))
        return await self._connections[self.at].request(method, path, headers, body, **options)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


@pytest.fixture
async def worlds(redis_client: Redis) -> AsyncIterator[tuple[EdgeWorld, EdgeWorld]]:
    slow = {**FAST, "growing_chunk_ms": 3_600_000}  # it stores only what is urgent
    async with edge_world(storage=redis_client, **slow) as first, edge_world(storage=redis_client, **FAST) as second:
        yield first, second


def messages(world: EdgeWorld) -> list[dict[str, Any]]:
    return [json.loads(b"{%b}" % body) for body in world.shard.mailboxes.get(KEY, {}).values()]


async def test_text_that_an_edge_lost_is_sent_again(worlds: tuple[EdgeWorld, EdgeWorld]) -> None:
    carrier = Switching(*worlds)
    requests = RetriedRequests(lambda: carrier, Credentials(worlds[0].token("app", "publish")), timeout_s=10, retry_for_s=20)
    sender = PartSender(requests, lambda: "w1")
    text = "".join(f"tökén {number} " for number in range(300))
    async with GrowingMessage(sender, {"id": "m1", "user": "u1", "type": "t"}, list=False) as message:
        for place in range(0, len(text), 10):
            await message.append(text[place : place + 10])
            if place == len(text) // 20 * 10:
                while message._have < len(message._text):
                    await sender.taken()
                assert message._stored < message._have
                carrier.at = 1  # the first edge is dead, with what it had not stored
    assert message.seq == 1
    assert [one["data"]["text"] for one in messages(worlds[1])] == [text]
    await sender.close()
    await requests.close()


async def test_the_last_progress_outlives_the_edge_that_took_it(worlds: tuple[EdgeWorld, EdgeWorld]) -> None:
    carrier = Switching(*worlds)
    requests = RetriedRequests(lambda: carrier, Credentials(worlds[0].token("app", "publish")), timeout_s=10, retry_for_s=20)
    sender = PartSender(requests, lambda: "w1")
    async with GrowingMessage(sender, {"id": "m1", "user": "u1", "type": "t"}, list=False) as message:
        await message.progress(1.0, text="done")
        while message._progress is not None:
            await sender.taken()
        carrier.at = 1
    assert messages(worlds[1])[0]["data"]["progress"] == {"value": 1.0, "text": "done"}
    await sender.close()
    await requests.close()


async def test_an_engine_that_knows_no_progress_of_an_end_ends_the_message() -> None:
    async def respond(request: RawRequest, writer: asyncio.StreamWriter) -> None:
        body = json.loads(request.body)
        if request.path == "/v1/growing":
            writer.write(answer(200, {"id": "m1", "state": "ok", "generation": 1}))
        elif request.path == "/v1/parts":
            writer.write(answer(200, {"parts": [{"state": "ok"}]}))
        else:
            writer.write(answer(422, {}) if "progress" in body else answer(200, {"id": "m1", "state": "ended", "seq": 7}))

    async with raw_server(respond) as server, Publisher(server.url, "tok") as publisher:
        async with publisher.stream(user="u1", type="t", id="m1") as message:
            await message.progress(1.0)
        assert message.seq == 7


async def test_a_pause_does_not_hide_that_an_edge_died(worlds: tuple[EdgeWorld, EdgeWorld]) -> None:
    carrier = Switching(*worlds)
    requests = RetriedRequests(lambda: carrier, Credentials(worlds[0].token("app", "publish")), timeout_s=10, retry_for_s=20)
    sender = PartSender(requests, lambda: "w1")
    async with GrowingMessage(sender, {"id": "m1", "user": "u1", "type": "t"}, list=False) as message, asyncio.timeout(20):
        await message.append("Hello")
        while not message._have:
            await sender.taken()
        carrier.at = 1
        while message._stored < 5:  # nothing is appended meanwhile
            await sender.taken()
    await sender.close()
    await requests.close()


async def test_messages_of_two_users_under_one_id_stay_apart(worlds: tuple[EdgeWorld, EdgeWorld]) -> None:
    async with Publisher(worlds[1].url(), worlds[1].token("app", "publish")) as publisher:
        same = [publisher.stream(user=user, type="t", id="same") for user in ("u1", "u2")]
        for one in same:
            await one.__aenter__()
        await asyncio.gather(*(one.append(one.user) for one in same))
        await asyncio.gather(*(one.end() for one in same))
    assert messages(worlds[1])[0]["data"]["text"] == "u1"
    assert json.loads(b"{%b}" % worlds[1].shard.mailboxes["default:u2"][1])["data"]["text"] == "u2"


async def test_progress_and_lists_arrive(worlds: tuple[EdgeWorld, EdgeWorld]) -> None:
    async with (
        Publisher(worlds[1].url(), worlds[1].token("app", "publish")) as publisher,
        publisher.stream(user="u1", type="job.rows", list=True, data={"job": 7}) as message,
    ):
        await message.append({"row": 1})
        await message.progress(0.5, text="1 of 2")
        await message.append({"row": 2})
    assert messages(worlds[1])[0]["data"] == {
        "job": 7,
        "items": [{"row": 1}, {"row": 2}],
        "progress": {"value": 0.5, "text": "1 of 2"},
    }


@pytest.mark.parametrize("wrong", [{"value": 1.5}, {"text": "x" * 10_000}])
async def test_progress_that_is_refused_ends_its_own_message_alone(worlds: tuple[EdgeWorld, EdgeWorld], wrong: dict[str, Any]) -> None:
    async with Publisher(worlds[1].url(), worlds[1].token("app", "publish")) as publisher:
        streams = [publisher.stream(user="u1", type="t", id=f"m{number}") for number in range(5)]
        for one in streams:
            await one.__aenter__()
            await one.append("text")
        await streams[2].progress(**wrong)
        for one in streams[:2] + streams[3:]:
            await one.end()
        with pytest.raises(Refused):
            await streams[2].end()
    assert len(messages(worlds[1])) == 4


async def test_parts_are_sent_in_as_many_requests_as_they_need(redis_client: Redis) -> None:
    async with (
        edge_world(storage=redis_client, **FAST, body_bytes_max=32 << 10) as world,
        Publisher(world.url(), world.token("app", "publish")) as publisher,
    ):
        streams = [publisher.stream(user="u1", type="t", id=f"m{number}") for number in range(5)]
        for one in streams:
            await one.__aenter__()
        for one in streams:
            await one.append("x" * (16 << 10))
        await asyncio.gather(*(one.end() for one in streams))
        assert [len(one["data"]["text"]) for one in messages(world)] == [16 << 10] * 5


async def test_progress_that_is_no_unicode_is_an_error_at_once(worlds: tuple[EdgeWorld, EdgeWorld]) -> None:
    async with (
        Publisher(worlds[1].url(), worlds[1].token("app", "publish")) as publisher,
        publisher.stream(user="u1", type="t") as message,
    ):
        with pytest.raises(ValueError):
            await message.progress(0.5, text="\ud800")
        await message.append("text")
    assert len(messages(worlds[1])) == 1


async def test_an_end_that_was_interrupted_can_be_repeated(worlds: tuple[EdgeWorld, EdgeWorld]) -> None:
    async with Publisher(worlds[1].url(), worlds[1].token("app", "publish")) as publisher:
        message = publisher.stream(user="u1", type="t")
        await message.__aenter__()
        await message.append("text")
        ending = asyncio.create_task(message.end())
        await asyncio.sleep(0)
        ending.cancel()
        await asyncio.wait({ending})
        await message.append(", and more")
        async with asyncio.timeout(5):
            await message.end()
    assert [one["data"]["text"] for one in messages(worlds[1])] == ["text, and more"]


async def test_a_stream_begun_anew_refuses_the_former_one(worlds: tuple[EdgeWorld, EdgeWorld]) -> None:
    async with Publisher(worlds[1].url(), worlds[1].token("app", "publish")) as publisher:
        former, newer = (publisher.stream(user="u1", type="t", id="m1") for _ in range(2))
        await former.__aenter__()
        await newer.__aenter__()
        await newer.append("newer")
        with pytest.raises(Refused, match="anew"):
            await former.append("former")
        await newer.end()
    assert [one["data"]["text"] for one in messages(worlds[1])] == ["newer"]


async def test_a_publisher_that_closes_ends_the_wait_of_its_streams(worlds: tuple[EdgeWorld, EdgeWorld]) -> None:
    publisher = Publisher(worlds[1].url(), worlds[1].token("app", "publish"))
    message = publisher.stream(user="u1", type="t")
    await message.__aenter__()
    await message.append("text")
    ending = asyncio.create_task(message.end())
    await asyncio.sleep(0)
    await publisher.close()
    with pytest.raises(RuntimeError, match="closed"):
        async with asyncio.timeout(5):
            await ending


async def fails(stream: GrowingMessage) -> None:
    async with stream as message:
        await message.append("one try")
        raise RuntimeError


async def test_an_exception_leaves_the_message_to_the_next_try(worlds: tuple[EdgeWorld, EdgeWorld]) -> None:
    async with Publisher(worlds[1].url(), worlds[1].token("app", "publish")) as publisher:
        with pytest.raises(RuntimeError):
            await fails(publisher.stream(user="u1", type="t", id="m1"))
        async with publisher.stream(user="u1", type="t", id="m1") as message:
            await message.append("another")
        async with publisher.stream(user="u1", type="t", id="m1") as again:
            assert again.ended
            await again.append("dropped")
    assert [one["data"]["text"] for one in messages(worlds[1])] == ["another"]


async def test_a_writer_that_runs_again_goes_on_with_its_message(worlds: tuple[EdgeWorld, EdgeWorld]) -> None:
    async with Publisher(worlds[1].url(), worlds[1].token("app", "publish")) as publisher:

        def run() -> GrowingMessage:
            return publisher.stream(user="u1", type="run.progress", id="m1", writer="run-7")

        with pytest.raises(RuntimeError):
            await fails(run())
        async with run() as message:
            await message.append("one try, and the rest")
            await message.end(type="run.done", data={"rows": 3})
        async with run() as again:
            assert (again.ended, again.idle) == (True, False)
    ((kind, data),) = [(one["type"], one["data"]) for one in messages(worlds[1])]
    assert (kind, data) == ("run.done", {"rows": 3, "text": "one try, and the rest"})


async def test_an_end_of_a_message_taken_for_lost_is_refused(worlds: tuple[EdgeWorld, EdgeWorld], redis_client: Redis) -> None:
    async with Publisher(worlds[1].url(), worlds[1].token("app", "publish")) as publisher:
        message = publisher.stream(user="u1", type="run.progress", id="m1", idle={"type": "run.lost"})
        await message.__aenter__()
        await GrowingStore([redis_client], worlds[1].config).close(KEY, "m1", None, -1, IDLE, b"", 0, 60_000)
        with pytest.raises(Refused, match="ended"):
            await message.end(type="run.done")
        assert message.idle
    assert [one["type"] for one in messages(worlds[1])] == ["run.lost"]


async def test_a_writer_that_has_written_less_cannot_end(worlds: tuple[EdgeWorld, EdgeWorld]) -> None:
    async with (
        Publisher(worlds[1].url(), worlds[1].token("app", "publish")) as publisher,
        publisher.stream(user="u1", type="t", id="m1", writer="run-7") as first,
    ):
        await first.append("one try")
        while first._stored < 7:
            await first._sender.taken()
        with pytest.raises(Refused, match="has written more"):
            async with publisher.stream(user="u1", type="t", id="m1", writer="run-7"):
                pass


async def test_a_text_that_is_too_long_ends_the_stream(redis_client: Redis) -> None:
    async with (
        edge_world(storage=redis_client, **FAST, growing_bytes_max=100) as world,
        Publisher(world.url(), world.token("app", "publish")) as publisher,
    ):
        with pytest.raises(Refused, match="growing_bytes_max"):
            async with publisher.stream(user="u1", type="t") as message:
                await message.append("x" * 101)


async def test_a_page_of_a_proxy_is_no_end() -> None:
    async def respond(request: RawRequest, writer: asyncio.StreamWriter) -> None:
        if request.path == "/v1/growing":
            writer.write(answer(200, {"id": "m", "state": "growing", "generation": 1}))
        else:
            writer.write(answer(409, b"<title>Conflict</title>"))

    async with raw_server(respond) as server, Publisher(server.url, "tok") as publisher:
        with pytest.raises(Refused, match="Conflict"):
            async with publisher.stream(user="u1", type="t"):
                pass


@pytest.mark.parametrize("transport", ["websocket", "sse", "poll"])
async def test_a_client_gets_parts_and_reads_what_came_before(worlds: tuple[EdgeWorld, EdgeWorld], transport: Transport) -> None:
    world = worlds[1]
    parts: list[Part] = []

    def note(event: object) -> None:
        if isinstance(event, Part):
            parts.append(event)

    async with (
        Publisher(world.url(), world.token("app", "publish")) as publisher,
        Client(world.url(), world.token("u1"), transports=[transport], on_event=note) as client,
        publisher.stream(user="u1", type="t", id="m1") as message,
    ):
        await message.append("hé")
        await until(lambda: "".join(part.text for part in parts) == "hé", 20)
        assert parts[0].generation == message._generation
        grown = await client.grown("m1", offset=1, wait_s=5)
        assert (grown.text, grown.offset, grown.state) == ("é", 1, "growing")
