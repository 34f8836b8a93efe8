"""A publisher that holds a connection: who publishes cannot tell it from requests, whatever becomes of the connection."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from engine import Publisher
from engine.client import PublishError, SyncPublisher, held_publishing
from engine.client import http_connection as http
from engine.client.credentials import parse_url
from engine.client.held_publishing import ITEMS_BYTES_MAX, PATH, UNDER_WAY_BYTES_MAX, HeldPublishing
from engine.core.wire import records as wire
from engine.errors import Forbidden, Unauthorized, Unreachable
from tests.support.background_loop import in_background
from tests.support.edge_world import EdgeWorld, edge_world
from tests.support.publish_server import running
from tests.support.waiting import until

Step = Callable[[ServerConnection, dict[str, Any]], Awaitable[None]]


def publisher_of(world: EdgeWorld, **options: Any) -> Publisher:
    return Publisher(world.url(), options.pop("token", world.token("app", "publish")), **options)


@asynccontextmanager
async def carrying(url: str) -> AsyncIterator[HeldPublishing]:
    """The carrier of a publisher, for attempts one by one."""
    address = parse_url(url)
    carrier = HeldPublishing(address, http.HttpConnection(address))
    try:
        yield carrier
    finally:
        await carrier.close()


async def attempt(carrier: HeldPublishing, token: str, text: str = "", timeout_s: float = 10) -> http.Response:
    body = json.dumps([{"id": "m", "user": "u1", "type": "t", "data": text}]).encode()
    return await carrier.request("POST", PATH, {"Authorization": f"Bearer {token}"}, body, timeout_s=timeout_s)


def held(world: EdgeWorld) -> int:
    return world.gateway.stats()["connections"]["publisher"]


async def test_the_second_publish_opens_a_connection_and_all_others_use_it() -> None:
    async with edge_world() as world, publisher_of(world) as publisher:
        await publisher.publish(user="u1", type="t")
        assert held(world) == 0, "one alone is a request"
        results = await asyncio.gather(*(publisher.publish(user=f"u{n}", type="t", data=n) for n in range(300)))
        assert [result.user for result in results] == [f"u{n}" for n in range(300)]
        assert held(world) == 1
        assert len(world.shard.of(wire.Post)) == 301
        assert world.gateway.metrics.frames_received == 300
        many = await publisher.publish_many([{"users": ["a", "b"], "type": "t"}, {"user": "c", "type": "t"}])
        assert [result.user for result in many] == ["a", "b", "c"]
    await until(lambda: held(world) == 0)


async def test_posted_items_keep_their_order_over_it() -> None:
    async with edge_world() as world:
        async with publisher_of(world, batch_max=7) as publisher:
            for n in range(100):
                await publisher.post(user="u1", type="t", data=n)
        told = [json.loads(b"{%b}" % post.envelope.body)["data"] for post in world.shard.of(wire.Post)]
        assert told == list(range(100))
        assert world.gateway.metrics.frames_received > 0


async def test_rejections_are_those_of_requests() -> None:
    async with edge_world() as world, publisher_of(world) as publisher:
        await publisher.publish(user="u1", type="t", id="m1")
        with pytest.raises(PublishError, match="422") as caught:
            await publisher.publish(user="u1", type="not a type")
        assert caught.value.errors[0].path.endswith("type")
        with pytest.raises(PublishError, match="different payload") as conflict:
            await publisher.publish(user="u1", type="t", data="other", id="m1")
        assert conflict.value.status == 409
        with pytest.raises(PublishError, match="413"):
            await publisher.publish(user="u1", type="t", data="x" * (2 << 20))
        assert (await publisher.publish(user="u1", type="t")).status == "accepted"
        assert held(world) == 1


async def test_what_an_overloaded_engine_refuses_is_sent_again_after_the_time_it_says() -> None:
    async with edge_world() as world, publisher_of(world) as publisher:
        await publisher.publish(user="u1", type="t")
        world.shard.status = wire.UNAVAILABLE
        waiting = asyncio.create_task(publisher.publish(user="u1", type="t", id="m1"))
        await until(lambda: world.gateway.metrics.refused[503])
        world.shard.status = wire.ACCEPTED
        assert (await waiting).status == "accepted"
        assert held(world) == 1


async def test_a_drained_edge_loses_nothing_and_is_left() -> None:
    async with edge_world() as world, publisher_of(world) as publisher:
        await publisher.publish(user="u1", type="t")
        world.shard.connected = False
        waiting = asyncio.create_task(publisher.publish(user="u1", type="t"))
        await until(lambda: len(world.gateway.pending_calls))
        draining = asyncio.create_task(world.gateway.drain())
        await until(lambda: world.gateway.draining)
        world.shard.reset()
        assert (await waiting).status == "accepted"
        await draining
        await until(lambda: held(world) == 0)
        world.gateway.draining = False  # the edge that came after
        assert (await publisher.publish(user="u1", type="t")).status == "accepted"
        assert held(world) == 1


async def test_a_fresh_token_is_used_before_the_old_one_expires_and_after_the_engine_refused_it() -> None:
    tokens: list[str] = []
    async with edge_world() as world:

        def token() -> str:
            tokens.append(world.token("app", "publish", ttl_s=600))
            return tokens[-1]

        async with publisher_of(world, token=token) as publisher:
            await publisher.publish(user="u1", type="t")
            await publisher.publish(user="u1", type="t")
            (connection,) = world.gateway.connections.values()
            world.shard.connected = False
            waiting = asyncio.create_task(publisher.publish(user="u1", type="t"))
            await until(lambda: len(world.gateway.pending_calls))
            connection.close(4401, "the token was revoked")
            world.shard.reset()
            assert (await waiting).status in ("accepted", "duplicate")
            assert len(tokens) == 2
        async with publisher_of(world) as publisher:
            await publisher.publish(user="u1", type="t")
            await publisher.publish(user="u1", type="t")
            (connection,) = world.gateway.connections.values()
            world.shard.connected = False
            waiting = asyncio.create_task(publisher.publish(user="u1", type="t"))
            await until(lambda: len(world.gateway.pending_calls))
            connection.close(4401, "the token was revoked")
            with pytest.raises(Unauthorized, match="revoked"):
                await waiting


@pytest.mark.parametrize(("scopes", "kind"), [("connect", Forbidden)])
async def test_a_token_without_the_scope_is_refused_as_by_a_request(scopes: str, kind: type[Exception]) -> None:
    async with edge_world() as world, publisher_of(world, token=world.token("app", scopes)) as publisher:
        for _ in range(3):
            with pytest.raises(kind):
                await publisher.publish(user="u1", type="t")


@pytest.mark.parametrize("status", [401, 403, 405, 429, 503])
async def test_where_no_websocket_gets_through_requests_are_used(status: int) -> None:
    async with running() as engine, Publisher(engine.url, "tok") as publisher:
        engine.handshake_status = status
        for _ in range(5):
            assert (await publisher.publish(user="u1", type="t")).status == "accepted"
        assert len(engine.requests) == 5
        assert engine.handshakes == 1


async def test_an_edge_without_room_for_a_connection_is_sent_requests_until_it_has() -> None:
    async with edge_world(publisher_connections_per_user_max=1) as world, publisher_of(world) as second:
        async with publisher_of(world) as first:
            for publisher in (first, first, second, second, second):
                assert (await publisher.publish(user="u1", type="t")).status == "accepted"
            assert world.gateway.metrics.frames_received == 1
        await until(lambda: held(world) == 0)

        async def holds() -> bool:
            await second.publish(user="u1", type="t")
            return held(world) == 1

        async with asyncio.timeout(30):  # it says when to try again: long before a proxy that says nothing
            while not await holds():
                pass


async def test_a_frame_that_the_engine_finds_too_large_is_refused_alone() -> None:
    async with edge_world(body_bytes_max=20_000) as world, publisher_of(world) as publisher:
        await publisher.publish(user="u1", type="t")
        assert (await publisher.publish(user="u1", type="t")).status == "accepted"
        world.shard.connected = False
        waiting = [asyncio.create_task(publisher.publish(user=f"u{n}", type="t")) for n in range(20)]
        await until(lambda: len(world.gateway.pending_calls))
        large = [asyncio.create_task(publisher.publish(user="u1", type="t", data="x" * 30_000)) for _ in range(3)]
        await until(lambda: held(world) == 0)
        world.shard.reset()
        assert {result.status for result in await asyncio.gather(*waiting)} <= {"accepted", "duplicate"}
        for refused in large:
            with pytest.raises(PublishError, match="413"):
                await refused
        with pytest.raises(PublishError, match="413"):
            await publisher.publish(user="u1", type="t", data="x" * 30_000)
        assert world.gateway.metrics.closes[1009] == 1


async def test_large_batches_are_requests() -> None:
    async with edge_world() as world, publisher_of(world) as publisher:
        items = [{"user": "u1", "type": "t", "data": "x" * 50_000} for _ in range(ITEMS_BYTES_MAX // 50_000 + 1)]
        for _ in range(3):
            await publisher.publish_many(items)
        assert world.gateway.metrics.frames_received == 0


async def test_no_more_bytes_are_under_way_than_an_engine_reads() -> None:
    async with edge_world() as world, publisher_of(world) as publisher:
        await publisher.publish(user="u1", type="t")
        world.shard.connected = False
        size = 60_000
        fit = UNDER_WAY_BYTES_MAX // size
        waiting = [asyncio.create_task(publisher.publish(user=f"u{n}", type="t", data="x" * size)) for n in range(2 * fit)]
        await until(lambda: world.gateway.metrics.frames_received == fit)
        await publisher.scheduled("none")  # what was sent before has arrived
        assert world.gateway.metrics.frames_received == fit
        world.shard.reset()
        assert {result.status for result in await asyncio.gather(*waiting)} == {"accepted"}
        assert world.gateway.metrics.frames_received == 2 * fit


async def test_another_token_is_another_connection_and_the_first_is_closed_when_its_results_are_there() -> None:
    async with edge_world() as world, carrying(world.url()) as carrier:
        old, fresh = world.token("app", "publish", ttl_s=600), world.token("app", "publish", ttl_s=900)
        assert [(await attempt(carrier, old)).status for _ in range(2)] == [202, 202]
        world.shard.connected = False
        waiting = asyncio.create_task(attempt(carrier, old))
        await until(lambda: len(world.gateway.pending_calls))
        later = asyncio.create_task(attempt(carrier, fresh))
        await until(lambda: held(world) == 2)
        world.shard.reset()
        assert [(await waiting).status, (await later).status] == [202, 202]
        await until(lambda: held(world) == 1)
        assert (await attempt(carrier, fresh)).status == 202
        assert held(world) == 1
        assert world.gateway.metrics.frames_received == 4
        assert world.gateway.metrics.closes == Counter({1000: 1})


async def test_all_that_a_token_was_refused_for_share_the_fresh_one_and_its_connection() -> None:
    tokens: list[str] = []
    async with edge_world() as world:

        async def token() -> str:
            tokens.append(world.token("app", "publish", ttl_s=600 + len(tokens)))
            await asyncio.sleep(0)
            return tokens[-1]

        async with publisher_of(world, token=token) as publisher:
            await publisher.publish(user="u1", type="t")
            await publisher.publish(user="u1", type="t")
            (connection,) = world.gateway.connections.values()
            world.shard.connected = False
            waiting = [asyncio.create_task(publisher.publish(user=f"u{n}", type="t")) for n in range(50)]
            await until(lambda: world.gateway.metrics.frames_received == 51)
            connection.close(4401, "the token was revoked")
            await until(lambda: world.gateway.metrics.frames_received == 101)
            world.shard.reset()
            assert {result.status for result in await asyncio.gather(*waiting)} <= {"accepted", "duplicate"}
            assert held(world) == 1
            assert len(tokens) == 2
        await until(lambda: held(world) == 0)
        assert world.gateway.metrics.closes == Counter({4401: 1, 1000: 1})


async def test_a_token_that_is_not_valid_is_refused_also_after_one_that_was() -> None:
    async with edge_world() as world, carrying(world.url()) as carrier:
        assert [(await attempt(carrier, world.token("app", "publish"))).status for _ in range(2)] == [202, 202]
        assert (await attempt(carrier, "nonsense")).status == 401


async def test_a_publisher_that_is_closed_ends_its_connection_with_a_close_frame() -> None:
    async with edge_world() as world:
        async with publisher_of(world) as publisher:
            await publisher.publish(user="u1", type="t")
            await publisher.publish(user="u1", type="t")
            assert held(world) == 1
        await until(lambda: held(world) == 0)
        assert world.gateway.metrics.closes == Counter({1000: 1})


async def test_a_blocking_publisher_holds_one_too() -> None:
    async with edge_world() as world:

        def publish() -> list[str]:
            with SyncPublisher(world.url(), world.token("app", "publish")) as publisher:
                return [publisher.publish(user="u1", type="t").status for _ in range(3)]

        assert await asyncio.to_thread(publish) == ["accepted"] * 3
        assert world.gateway.metrics.frames_received == 2


class Scripted:
    """A server of held connections whose frames are answered by steps, one each; then all are accepted. Requests are refused with 404."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.ids: list[str] = []
        self.accepted: dict[str, int] = {}
        self.posts = 0
        self.handshakes = 0
        self.ended = 0
        self.handshake_s = 0.0
        self.url = ""

    async def refuse_requests(self, _connection: ServerConnection, request: Request) -> Response | None:
        self.handshakes += 1
        assert request.path == "/v1/notifications"
        await asyncio.sleep(self.handshake_s)
        return None

    async def handle(self, socket: ServerConnection) -> None:
        try:
            await self.take(socket)
        finally:
            self.ended += 1

    async def take(self, socket: ServerConnection) -> None:
        async for text in socket:
            frame = json.loads(text)
            if frame["type"] == "publish":
                self.ids.append(frame["items"][0]["id"])
                await (self.steps.pop(0) if self.steps else self.accept)(socket, frame)

    async def accept(self, socket: ServerConnection, frame: dict[str, Any]) -> None:
        results = [
            {"id": item["id"], "user": item["user"], "status": "duplicate" if item["id"] in self.accepted else "accepted", "seq": 1}
            for item in frame["items"]
        ]
        self.accepted.update((item["id"], 1) for item in frame["items"])
        await socket.send(json.dumps({"type": "publish_result", "ref": frame["ref"], "status": 202, "accepted": 1, "results": results}))


@asynccontextmanager
async def scripted(monkeypatch: pytest.MonkeyPatch, *steps: Step) -> AsyncIterator[Scripted]:
    """The server, and publishers that begin with a held connection."""
    monkeypatch.setattr(held_publishing.HeldPublishing, "_holds", lambda self: True)
    server = Scripted(*steps)
    async with serve(server.handle, "127.0.0.1", 0, process_request=server.refuse_requests) as listening:
        server.url = f"http://127.0.0.1:{next(iter(listening.sockets)).getsockname()[1]}"
        yield server


async def resets(socket: ServerConnection, _frame: dict[str, Any]) -> None:
    socket.transport.abort()


async def says_nothing(_socket: ServerConnection, _frame: dict[str, Any]) -> None:
    pass


async def talks_nonsense(socket: ServerConnection, _frame: dict[str, Any]) -> None:
    await socket.send("{nonsense")


async def test_everything_unanswered_is_sent_again_with_its_id_over_a_new_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted(monkeypatch) as server:

        async def accepts_and_resets(socket: ServerConnection, frame: dict[str, Any]) -> None:
            server.accepted[frame["items"][0]["id"]] = 1
            socket.transport.abort()

        async with Publisher(server.url, "tok") as publisher:
            await publisher.publish(user="u", type="t", id="first")
            server.steps += [says_nothing, says_nothing, accepts_and_resets]
            results = await asyncio.gather(*(publisher.publish(user="u", type="t", id=f"m{n}") for n in range(3)))
        assert [result.status for result in results] == ["accepted", "accepted", "duplicate"]
        assert sorted(server.ids) == ["first", "m0", "m0", "m1", "m1", "m2", "m2"]
        assert server.handshakes == 2


async def cannot_read_it(socket: ServerConnection, _frame: dict[str, Any]) -> None:
    await socket.send(json.dumps({"type": "error", "code": "malformed", "detail": "no JSON"}))


async def tells_more_than_is_taken(socket: ServerConnection, _frame: dict[str, Any]) -> None:
    await socket.send(json.dumps({"type": "pong", "ts": "x" * 100_000}))


@pytest.mark.parametrize("step", [resets, talks_nonsense, cannot_read_it, tells_more_than_is_taken])
async def test_a_connection_that_brings_nothing_is_not_tried_again_soon(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_publishing, "RESPONSE_BYTES_MAX", 50_000)
    async with scripted(monkeypatch, step) as server, Publisher(server.url, "tok", retry_for_s=0.5) as publisher:
        with pytest.raises(Unreachable):  # this server takes no requests
            await publisher.publish(user="u", type="t")
        assert server.handshakes == 1


async def test_silence_ends_the_connection_and_what_waits_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted(monkeypatch) as server, Publisher(server.url, "tok", timeout_s=0.3) as publisher:
        await publisher.publish(user="u", type="t", id="first")
        server.steps += [says_nothing]
        assert (await publisher.publish(user="u", type="t", id="m1")).status == "accepted"
        assert server.ids == ["first", "m1", "m1"]


async def test_whatever_fails_while_results_are_read_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_held: object, _frame: bytes) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(held_publishing._Held, "_take", fails)
    async with scripted(monkeypatch) as server, carrying(server.url) as carrier:
        with pytest.raises(ConnectionResetError, match="a bug"):
            await attempt(carrier, "tok")
        await until(lambda: server.ended == 1)


async def test_an_attempt_has_its_time_once_for_connecting_and_for_publishing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted(monkeypatch) as server, carrying(server.url) as carrier:

        async def takes_most_of_the_time(socket: ServerConnection, frame: dict[str, Any]) -> None:
            await asyncio.sleep(0.9)
            await server.accept(socket, frame)

        server.handshake_s, server.steps = 0.2, [takes_most_of_the_time]
        with pytest.raises(OSError):
            await attempt(carrier, "tok", timeout_s=1)


async def test_a_request_has_the_time_that_a_handshake_without_an_answer_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    had: list[float] = []

    class Requests(http.HttpConnection):
        async def request(self, *_request: Any, timeout_s: float, **_more: Any) -> http.Response:
            had.append(timeout_s)
            return http.Response(202, {}, b"")

    async with scripted(monkeypatch) as server:
        server.handshake_s = 1
        carrier = HeldPublishing(parse_url(server.url), Requests(parse_url(server.url)))
        assert (await attempt(carrier, "tok", timeout_s=0.5)).status == 202
        assert had[0] <= 0.25
        await carrier.close()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_publisher_goes_on_after_its_event_loop_was_closed() -> None:
    with in_background(edge_world()) as world:
        publisher = publisher_of(world, timeout_s=60)
        begun_s = time.monotonic()
        for _ in range(2):
            assert asyncio.run(publisher.publish(user="u1", type="t")).status == "accepted"
            assert asyncio.run(publisher.signal_sums("views")) == {"views": 0}
        assert time.monotonic() - begun_s < 30, "no attempt waited for an answer on a connection of a closed loop"
        asyncio.run(publisher.close())
        del publisher
        gc.collect()
