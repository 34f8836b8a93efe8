"""A publisher holds a connection: every frame is taken, refused and answered as the same request is, and nothing is kept without bound."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import InvalidStatus

from engine.core.model.revocation import USER, Revocation
from engine.core.model.routing import spread
from engine.core.wire import records as wire
from engine.gateway.gateway import GOING_AWAY, TOKEN_REFUSED
from engine.transports.publisher_socket import PublisherSocket
from engine.transports.websocket_protocol import FORBIDDEN, INVALID_DATA, POLICY_VIOLATION, TOO_MANY_FRAMES, TOO_SLOW
from engine.transports.websocket_transport import DirectWebSocket
from tests.support.edge_world import EdgeWorld, client_frame, closed_with, edge_world, frame_of, standing_still
from tests.support.waiting import until

ITEM = {"user": "u1", "type": "order.paid", "data": {"n": 1}}


def publish_frame(items: Any, ref: str = "r") -> str:
    return json.dumps({"type": "publish", "ref": ref, "items": items})


def only_connection(world: EdgeWorld) -> PublisherSocket:
    (connection,) = world.gateway.connections.values()
    assert isinstance(connection, PublisherSocket)
    return connection


async def result(socket: ClientConnection, items: Any, ref: str = "r") -> dict[str, Any]:
    await socket.send(publish_frame(items, ref))
    told = await frame_of(socket, "publish_result")
    assert told["ref"] == ref
    return told


async def test_a_frame_is_accepted_and_answered_as_a_request_and_is_the_same_message_under_its_id() -> None:
    async with edge_world() as world, world.connect_publisher() as socket, world.http() as client:
        told = await result(socket, {**ITEM, "id": "m1"}, "my first")
        assert told == {
            "type": "publish_result",
            "ref": "my first",
            "status": 202,
            "accepted": 1,
            "results": [{"id": "m1", "user": "u1", "status": "accepted", "seq": 1}],
        }
        again = (await client.post("/v1/notifications", json={**ITEM, "id": "m1"})).json()
        assert again["results"][0]["status"] == "duplicate"
        several = await result(socket, [ITEM, {**ITEM, "user": "u2"}, {**ITEM, "delay": 60}])
        assert [one["status"] for one in several["results"]] == ["accepted", "accepted", "scheduled"]


async def test_the_connection_is_nobodys_presence_and_no_shard_knows_it() -> None:
    async with edge_world() as world, world.connect_publisher("u1", token=world.token("u1", "connect publish")) as socket:
        assert (await result(socket, ITEM))["status"] == 202
        assert world.shard.of(wire.Attach) == []
        assert world.gateway.stats()["connections"] == {"websocket": 0, "sse": 0, "poll": 0, "publisher": 1}
        world.shard.reset()
        await socket.close()
        await until(lambda: not world.gateway.connections)
        assert {type(record) for record in world.shard.received} == {wire.Post}
        assert world.gateway.stats()["connections"]["publisher"] == 0


@pytest.mark.parametrize(
    "items",
    [
        {"user": "u1", "type": "a b"},
        [{**ITEM}, {"type": "order.paid"}],
        {**ITEM, "priority": "urgent"},
        {**ITEM, "unknown": 1},
        [],
        "text",
        7,
        {**ITEM, "data": "x" * 70_000},
        [{**ITEM, "n": n} for n in range(3)],
        [ITEM] * 1001,
        {**ITEM, "category": "nothing"},
    ],
)
async def test_what_is_wrong_is_refused_in_the_words_of_a_request_and_the_connection_goes_on(items: Any) -> None:
    async with edge_world() as world, world.connect_publisher() as socket, world.http() as client:
        answer = await client.post("/v1/notifications", json=items)
        told = await result(socket, items)
        assert (told["status"], told["problem"]) == (answer.status_code, answer.json())
        assert told["status"] in (413, 422)
        assert world.shard.of(wire.Post) == [], "nothing partial is accepted"
        assert (await result(socket, ITEM))["status"] == 202


async def test_refusals_of_shards_and_limits_are_those_of_requests_with_the_time_to_come_back() -> None:
    async with edge_world(tenant_requests_per_s=5) as world, world.connect_publisher() as socket:
        await result(socket, {**ITEM, "id": "m1"})
        conflict = await result(socket, {**ITEM, "id": "m1", "data": 2})
        assert (conflict["status"], conflict["problem"]["type"]) == (409, "urn:engine:problem:id-conflict")
        world.shard.status = wire.UNAVAILABLE
        away = await result(socket, ITEM)
        assert (away["status"], away["retry_after"] >= 1, away["problem"]["results"][0]["status"]) == (503, True, "unavailable")
        world.shard.status = wire.ACCEPTED
        with standing_still(world):
            for n in range(20):
                await socket.send(publish_frame(ITEM, str(n)))
            told = [await frame_of(socket, "publish_result") for _ in range(20)]
        over = [one for one in told if one["status"] != 202]
        assert {one["status"] for one in over} == {429}
        assert {one["problem"]["quota"] for one in over} == {"tenant_requests_per_s"}, "each frame counts as a request"
        assert world.gateway.metrics.refused[429] == len(over)


async def test_results_come_as_each_is_durable_not_in_the_order_of_the_frames() -> None:
    async with edge_world(shards=2) as world, world.connect_publisher() as socket:
        world.gateway.set_slots(spread(2, version=2))
        users = {world.gateway.slots.owner(f"default:u{n}"): f"u{n}" for n in range(100)}
        world.shards[0].connected = False
        await socket.send(publish_frame({**ITEM, "user": users[0]}, "held up"))
        assert (await result(socket, {**ITEM, "user": users[1]}, "later"))["status"] == 202
        world.shards[0].reset()
        assert (await frame_of(socket, "publish_result"))["ref"] == "held up"


async def test_frames_of_one_read_each_have_their_own_result() -> None:
    async with edge_world() as world, world.connect_publisher() as socket:
        for n in range(300):
            await socket.send(publish_frame({**ITEM, "user": f"u{n}"} if n % 3 else {**ITEM, "user": ""}, str(n)))
        told = [await frame_of(socket, "publish_result") for _ in range(300)]
        assert {one["ref"]: one["status"] for one in told} == {str(n): 202 if n % 3 else 422 for n in range(300)}
        assert {one["results"][0]["user"] for one in told if one["status"] == 202} == {f"u{n}" for n in range(300) if n % 3}


async def test_a_message_that_is_held_up_holds_up_no_other_frame_of_its_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with edge_world() as world, world.connect_publisher() as socket:
        take = world.shard.take
        monkeypatch.setattr(world.shard, "take", lambda record: getattr(record, "key", "") == "default:slow" or take(record))
        connection = only_connection(world)
        frames = [publish_frame({**ITEM, "user": user}, user) for user in ("u1", "slow", "u2", "u3")]
        connection.data_received(b"".join(client_frame(frame.encode()) for frame in frames))
        assert {(await frame_of(socket, "publish_result"))["ref"] for _ in range(3)} == {"u1", "u2", "u3"}
        monkeypatch.undo()
        world.shard.reset()
        assert (await frame_of(socket, "publish_result"))["ref"] == "slow"


@pytest.mark.parametrize(("scopes", "status"), [("connect", 403), ("connect publish", 101), ("publish", 101)])
@pytest.mark.parametrize("short", [True, False])
async def test_the_scope_publish_opens_it_whatever_way_the_handshake_takes(scopes: str, status: int, short: bool) -> None:
    async with edge_world(short=short) as world:
        connecting = world.connect_publisher(token=world.token("app", scopes))
        if status == 101:
            async with connecting as socket:
                assert (await result(socket, ITEM))["status"] == 202
        else:
            with pytest.raises(InvalidStatus) as refused:
                await connecting
            assert refused.value.response.status_code == status


async def test_a_token_beside_the_subprotocol_opens_it_too_and_none_does_not() -> None:
    async with edge_world() as world:
        offered = ["notify.v1.json", f"bearer.{world.token('app', 'publish')}"]
        async with world.connect_publisher(additional_headers={}, subprotocols=offered) as socket:
            assert socket.subprotocol == "notify.v1.json"
            assert (await result(socket, ITEM))["status"] == 202
        with pytest.raises(InvalidStatus) as refused:
            await world.connect_publisher(additional_headers={})
        assert refused.value.response.status_code == 401


@pytest.mark.parametrize("short", [True, False])
async def test_publishers_and_those_who_receive_take_no_room_from_each_other(short: bool) -> None:
    limits = {"connections_max": 1, "http_connections_max": 20, "publisher_connections_per_user_max": 2}
    async with edge_world(short=short, **limits) as world, contextlib.AsyncExitStack() as held:
        for _ in range(2):
            await held.enter_async_context(world.connect_publisher("p0"))
        with pytest.raises(InvalidStatus) as of_user:
            await world.connect_publisher("p0")
        assert of_user.value.response.status_code == 429
        assert b"connections of this publisher are open here" in (of_user.value.response.body or b"")
        async with world.connect() as receiver:
            await frame_of(receiver, "welcome")
            async with world.connect_publisher("p1") as another:
                assert (await result(another, ITEM))["status"] == 202
            with pytest.raises(InvalidStatus) as full:
                await world.connect("u2")
            assert full.value.response.status_code == 503
        await held.aclose()
        await until(lambda: not world.gateway.connections)
        async with world.connect_publisher("p0") as again:
            assert (await result(again, ITEM))["status"] == 202
            assert world.gateway.publishers.count == 1


async def test_an_edge_holds_as_many_publishers_as_it_may() -> None:
    async with edge_world(http_connections_max=1) as world, world.connect_publisher("p0"):
        with pytest.raises(InvalidStatus) as full:
            await world.connect_publisher("p1")
        assert full.value.response.status_code == 503
        async with world.connect() as receiver:
            await frame_of(receiver, "welcome")


async def test_a_get_without_an_upgrade_is_told_so_and_publishing_by_requests_goes_on() -> None:
    async with edge_world() as world, world.http() as client:
        answer = await client.get("/v1/notifications")
        assert (answer.status_code, answer.headers["upgrade"]) == (426, "websocket")
        assert (await client.post("/v1/notifications", json=ITEM)).status_code == 202


async def test_an_expired_and_a_revoked_token_end_it_with_4401_and_a_fresh_one_does_not() -> None:
    async with edge_world() as world:
        now_s = time.time()
        async with world.connect_publisher() as socket, world.connect_publisher("other") as renewed:
            await socket.send(json.dumps({"type": "auth", "token": world.token("other", "publish")}))
            assert (await closed_with(socket))[0] == FORBIDDEN, "another user's token"
            await renewed.send(json.dumps({"type": "auth", "token": world.token("other", "publish", ttl_s=1200)}))
            assert (await result(renewed, ITEM))["status"] == 202
            (connection,) = world.gateway.connections.values()
            assert connection.expires_ms > (now_s + 1000) * 1000
            connection.expires_ms = int(now_s * 1000)
            await renewed.send(publish_frame(ITEM))
            assert (await closed_with(renewed))[0] == TOKEN_REFUSED
            posts = len(world.shard.of(wire.Post))
            assert posts == 1, "nothing is published with a token that has expired"
        async with world.connect_publisher() as socket:
            assert (await result(socket, ITEM))["status"] == 202
            revoked = [Revocation(USER, "default", "publisher", int((now_s + 600) * 1000), int((now_s + 60) * 1000))]
            await world.gateway.close_revoked(world.gateway.revoked.add(revoked))
            assert (await closed_with(socket))[0] == TOKEN_REFUSED


async def test_an_edge_that_drains_carries_out_what_crosses_its_notice_and_leaves() -> None:
    async with edge_world() as world, world.connect_publisher() as socket:
        world.shard.connected = False
        await socket.send(publish_frame(ITEM, "under way"))
        await until(lambda: len(world.gateway.pending_calls))
        draining = asyncio.create_task(world.gateway.drain())
        assert (await frame_of(socket, "drain"))["type"] == "drain"
        await socket.send(publish_frame(ITEM, "crossed it"))
        await until(lambda: len(world.gateway.pending_calls) == 2)
        world.shard.reset()
        told = [await frame_of(socket, "publish_result") for _ in range(2)]
        assert {(one["ref"], one["status"]) for one in told} == {("under way", 202), ("crossed it", 202)}
        assert (await closed_with(socket))[0] == GOING_AWAY
        await draining
        assert len(world.shard.of(wire.Post)) == 2
        with pytest.raises(InvalidStatus) as full:
            await world.connect_publisher()
        assert full.value.response.status_code == 503


async def test_what_comes_when_a_connection_departs_is_not_begun_and_what_is_under_way_is_answered() -> None:
    async with edge_world() as world, world.connect_publisher() as socket:
        world.shard.connected = False
        await socket.send(publish_frame(ITEM, "under way"))
        await until(lambda: len(world.gateway.pending_calls))
        connection = only_connection(world)
        connection.shutdown()
        connection.data_received(client_frame(publish_frame(ITEM, "too late").encode()))
        await socket.send(publish_frame(ITEM, "later still"))
        world.shard.reset()
        assert (await frame_of(socket, "publish_result"))["ref"] == "under way"
        assert (await closed_with(socket))[0] == GOING_AWAY
        assert len(world.shard.of(wire.Post)) == 1


async def test_a_turn_of_the_loop_handles_a_part_of_a_large_read_and_later_ones_the_rest() -> None:
    async with edge_world(held_publishes_max=2000, publish_delay_target_ms=60_000) as world, world.connect_publisher() as socket:
        connection = only_connection(world)
        frame = client_frame(b'{"type":"publish","items":7}')
        connection.data_received(frame * 5000)
        assert 0 < world.gateway.metrics.frames_received <= (16 << 10) / len(frame)
        assert connection._held, "nothing is read meanwhile"
        assert {(await frame_of(socket, "publish_result"))["status"] for _ in range(5000)} == {422}
        await until(lambda: not connection._held)
        whole = client_frame(publish_frame([{**ITEM, "data": "x" * 50_000}] * 20, "large").encode())
        connection.data_received(whole + client_frame(publish_frame(ITEM, "behind it").encode()))
        assert {(await frame_of(socket, "publish_result"))["ref"] for _ in range(2)} == {"large", "behind it"}


async def test_a_publisher_that_outruns_its_edge_waits_and_nothing_is_kept_beyond_the_window() -> None:
    async with edge_world(held_publishes_max=10) as world:
        world.shard.connected = False
        raw = await world.raw(path="/v1/notifications")
        (connection,) = world.gateway.connections.values()
        frame = client_frame(publish_frame({**ITEM, "data": "x" * 20_000}).encode())
        sent = await raw.send_until_full(frame)
        assert sent > 1 << 20, "the kernel's buffers are full"
        assert len(world.gateway.pending_calls) == 10
        world.shard.reset()
        await until(lambda: world.gateway.metrics.frames_received >= sent // len(frame))
        assert not connection.ended
        raw.close()
        await until(lambda: not world.gateway.connections)


@pytest.mark.parametrize(
    ("frame", "path"),
    [
        ({"type": "publish", "items": ITEM, "ref": 7}, "$.ref"),
        ({"type": "publish", "items": ITEM, "ref": "x" * 200}, "$.ref"),
        ({"type": "auth"}, "token"),
    ],
)
async def test_a_malformed_frame_is_named_and_ten_of_them_end_the_connection(frame: Any, path: str) -> None:
    async with edge_world() as world, world.connect_publisher() as socket:
        for _ in range(10):
            await socket.send(json.dumps(frame))
            told = await frame_of(socket, "error")
            assert told["code"] == "malformed"
            assert path in told["detail"]
        assert (await closed_with(socket))[0] == POLICY_VIOLATION
        assert world.shard.of(wire.Post) == []


async def test_a_publish_frame_without_items_is_refused_under_its_ref_however_large_it_is() -> None:
    async with edge_world() as world, world.connect_publisher() as socket:
        for n in range(20):
            await socket.send(json.dumps({"type": "publish", "ref": str(n), "item": "x" * 500_000}))
            told = await frame_of(socket, "publish_result")
            assert (told["ref"], told["status"]) == (str(n), 422)
            assert "items" in told["problem"]["detail"]
        assert (await result(socket, ITEM))["status"] == 202
        for _ in range(2000):
            await socket.send('{"type":"publish"}')
        code, reason = await closed_with(socket)
        assert code == TOO_MANY_FRAMES
        assert "under the same ids" in reason


async def test_a_ref_of_128_characters_is_taken_however_it_is_escaped() -> None:
    async with edge_world() as world, world.connect_publisher() as socket:
        items = [{**ITEM, "data": "x" * 50_000}] * 20
        room = world.config.body_bytes_max - len(json.dumps(items))
        items.append({**ITEM, "data": "x" * (room - len(json.dumps({**ITEM, "data": ""})) - 2)})
        assert len(json.dumps(items)) == world.config.body_bytes_max
        assert (await result(socket, items, "\U0001f514" * 128))["status"] == 202


async def test_frames_that_are_not_known_are_ignored_and_a_ping_is_answered() -> None:
    async with edge_world() as world, world.connect_publisher() as socket:
        await socket.send(json.dumps({"type": "ack", "seq": 3}))
        await socket.send(json.dumps({"type": "news", "of": "later versions"}))
        await socket.send(json.dumps({"type": "ping", "ts": 7}))
        assert await frame_of(socket, "pong") == {"type": "pong", "ts": 7}
        assert world.shard.received == []


async def test_text_that_is_not_utf_8_and_frames_without_end_end_it() -> None:
    async with edge_world() as world:
        async with world.connect_publisher() as socket:
            await socket.send(b'{"type":"publish","items":"\xff"}', text=True)
            assert (await closed_with(socket))[0] == INVALID_DATA
        async with world.connect_publisher() as socket:
            assert (await result(socket, {**ITEM, "data": "x" * (1 << 20)}))["status"] == 413
            await socket.send(publish_frame({**ITEM, "data": "x" * (2 << 20)}))
            assert (await closed_with(socket))[0] == 1009
        async with world.connect_publisher() as socket:
            assert (await result(socket, [{**ITEM, "data": "x" * 50_000}] * 20))["status"] == 202, "as large as a request may be"
            for _ in range(2000):
                await socket.send('{"type":"ping"}')
            assert (await closed_with(socket))[0] == TOO_MANY_FRAMES
        assert len(world.shard.of(wire.Post)) == 20


async def test_a_publisher_that_takes_no_results_is_held_and_then_closed() -> None:
    async with edge_world(send_stall_ms=300, socket_send_buffer_bytes=4096) as world:
        raw = await world.raw(receive_buffer_bytes=4096, path="/v1/notifications")
        (connection,) = world.gateway.connections.values()
        await raw.send_until_full(client_frame(publish_frame([ITEM] * 50).encode()))
        await until(lambda: connection.ended)
        assert world.gateway.metrics.closes[TOO_SLOW] == 1
        raw.close()


async def test_a_publisher_that_pauses_gets_all_results_when_it_goes_on_however_much_larger_than_its_frames() -> None:
    async with edge_world(send_buffer_bytes_max=128 << 10, socket_send_buffer_bytes=4096) as world:
        raw = await world.raw(receive_buffer_bytes=4096, path="/v1/notifications")
        connection = only_connection(world)
        items = [{"user": f"u{n}", "type": "t"} for n in range(100)]
        connection.data_received(b"".join(client_frame(publish_frame(items, str(n)).encode()) for n in range(60)))
        await until(lambda: connection.unsent and len(connection._results) and not connection._unanswered)
        assert connection._held, "nothing is read while results are not taken"
        told = [json.loads((await raw.frame())[1]) for _ in range(60)]
        assert sum(len(json.dumps(one)) for one in told) > 2 * world.config.send_buffer_bytes_max
        assert {one["ref"] for one in told} == {str(n) for n in range(60)}
        await until(lambda: not connection._held)
        raw.close()


@pytest.mark.parametrize("path", ["/v1/notifications", "/v1/ws"])
async def test_a_frame_that_stays_incomplete_ends_the_connection(path: str) -> None:
    async with edge_world() as world:
        raw = await world.raw(path=path)
        (connection,) = world.gateway.connections.values()
        assert isinstance(connection, DirectWebSocket)
        began_ms, wall_ms = world.gateway.clock(), world.gateway.wall_ms()
        frame, timeout_ms = client_frame(b'{"type":"ping"}'), world.config.request_timeout_s * 1000
        connection.data_received(frame + frame[:9])
        connection.data_received(frame[9:10])
        assert connection.check(began_ms, wall_ms) <= world.gateway.clock() + timeout_ms
        connection._began_ms -= timeout_ms
        connection.data_received(frame[10:] + frame[:5])
        connection.check(world.gateway.clock(), wall_ms)
        assert not connection.ended, "that one was completed, and another has begun"
        connection._began_ms -= timeout_ms
        connection.data_received(frame[5:])
        connection._began_ms -= timeout_ms
        connection.data_received(frame[:5])
        connection.check(world.gateway.clock(), wall_ms)
        assert not connection.ended, "none was incomplete before this one"
        connection.data_received(frame[5:] + client_frame(b'{"type":', fin=False))
        connection.check(world.gateway.clock(), wall_ms)
        assert not connection.ended
        connection._began_ms -= timeout_ms
        connection.data_received(client_frame(b"x", 0, fin=False) + client_frame(b"y", 0)[:5])
        connection.check(world.gateway.clock(), wall_ms)
        assert connection.ended, "a message in fragments has one deadline"
        assert await raw.close_code() == POLICY_VIOLATION
        raw.close()


async def test_a_frame_that_the_edge_does_not_read_on_has_all_its_time_when_it_does() -> None:
    async with edge_world(held_publishes_max=1) as world, world.connect_publisher() as socket:
        world.shard.connected = False
        connection = only_connection(world)
        connection.data_received(client_frame(publish_frame(ITEM).encode()) + client_frame(b'{"type":"ping"}')[:9])
        await until(lambda: connection._held)
        connection._began_ms -= world.config.request_timeout_s * 1000
        connection.check(world.gateway.clock(), world.gateway.wall_ms())
        assert not connection.ended
        world.shard.reset()
        assert (await frame_of(socket, "publish_result"))["status"] == 202
        await until(lambda: not connection._held)
        connection.check(world.gateway.clock(), world.gateway.wall_ms())
        assert not connection.ended
        connection.data_received(client_frame(b'{"type":"ping"}')[9:])
        assert (await frame_of(socket, "pong"))["ts"] is None


async def test_frames_are_traced_as_requests() -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with edge_world() as world, world.connect_publisher() as socket, world.connect("u1") as receiver:
        await frame_of(receiver, "welcome")
        assert (await result(socket, {**ITEM, "traceparent": parent}))["status"] == 202
        assert (await frame_of(receiver))["messages"][0]["traceparent"] == parent
        assert (await result(socket, {**ITEM, "traceparent": "no"}))["problem"]["errors"][0]["path"] == "$.traceparent"
