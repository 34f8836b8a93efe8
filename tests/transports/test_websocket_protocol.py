"""WebSockets on a real server, seen by an independent client."""

from __future__ import annotations

import asyncio
import json
import logging
from socket import SO_RCVBUF, SOL_SOCKET
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import InvalidStatus

from engine.core.wire import records as wire
from engine.transports.websocket_protocol import POLICY_VIOLATION
from engine.transports.websocket_transport import DirectWebSocket
from tests.support.edge_world import DEADLINE_S, EPOCH, EdgeWorld, client_frame, closed_with, edge_world, frame_of
from tests.support.waiting import until


async def test_a_client_is_welcomed_and_gets_what_is_published_in_one_frame_per_batch() -> None:
    async with edge_world() as world, world.connect("u1") as socket:
        welcome = await frame_of(socket, "welcome")
        assert welcome["user"] == "u1"
        assert welcome["resumed"] == "new"
        assert welcome["epoch"] == EPOCH
        assert (welcome["seq"], welcome["from"]) == (0, 1)
        assert welcome["reconnect"] == {"delays_ms": [1000, 2000, 5000, 10_000], "jitter": 0.3}
        assert await world.publish("u1", 3) == [1, 2, 3]
        frame = await frame_of(socket)
        assert [message["seq"] for message in frame["messages"]] == [1, 2, 3]
        message = frame["messages"][0]
        assert message["event_id"] == f"{EPOCH}-1"
        assert message["type"] == "test.event"
        assert message["attempt"] == 1
        assert message["data"] == {"n": 0}


async def test_acks_reach_the_shard_only_when_they_grow(world: EdgeWorld, socket: ClientConnection) -> None:
    await world.publish(count=3)
    await frame_of(socket)
    for seq in (2, 1, 2, 3):
        await socket.send(json.dumps({"type": "ack", "seq": seq}))
    await until(lambda: world.shard.acked.get("default:u1") == 3)
    assert [ack.seq for ack in world.shard.of(wire.Ack)] == [2, 3]


async def test_selective_acks_and_nacks_reach_the_shard(world: EdgeWorld, socket: ClientConnection) -> None:
    await frame_of(socket, "welcome")
    await socket.send('{"type":"ack","ids":["a","b"],"ts":1700000000000}')
    await socket.send('{"type":"nack","ids":["c"],"reason":"%s"}' % ("no" * 600))
    await until(lambda: world.shard.of(wire.Nack))
    assert [ack.ids for ack in world.shard.of(wire.AckIds)] == [["a", "b"]]
    assert [(nack.ids, nack.reason) for nack in world.shard.of(wire.Nack)] == [(["c"], "no" * 512)]


async def test_a_ping_is_answered_with_its_ts_and_unknown_types_are_ignored(world: EdgeWorld, socket: ClientConnection) -> None:
    await socket.send('{"type":"subscribe","topics":[1]}')
    await socket.send('{"type":"ping","ts":1234.5}')
    assert (await frame_of(socket, "pong"))["ts"] == 1234.5


async def test_malformed_frames_get_an_error_and_the_tenth_closes(world: EdgeWorld, socket: ClientConnection) -> None:
    await frame_of(socket, "welcome")
    bad: list[str | bytes] = ["nonsense", "[]", '{"type":5}', '{"type":"ack"}', b"binary", "{", "{}", '{"type":"ack","seq":-1}', '""']
    for frame in bad:
        await socket.send(frame)
        error = await frame_of(socket, "error")
        assert error["code"] == "malformed"
        assert error["detail"]
    await socket.send("once more")
    assert (await closed_with(socket))[0] == 1008
    await until(lambda: [detach.code for detach in world.shard.of(wire.Detach)] == [1008])


async def test_a_frame_over_the_limit_closes_1009_whether_it_arrives_whole_or_not(world: EdgeWorld) -> None:
    async with world.connect() as socket:
        await socket.send("x" * (world.config.frame_bytes_max + 1))
        assert (await closed_with(socket))[0] == 1009
    client = await world.raw()
    await client.send(b"\x81\xff" + (1 << 40).to_bytes(8, "big") + b"mask")
    assert await client.close_code() == 1009
    client.close()
    client = await world.raw()
    half = b"y" * (world.config.frame_bytes_max // 2 + 1)
    await client.send(client_frame(half, fin=False) + client_frame(half, 0)[:8])
    assert await client.close_code() == 1009
    client.close()
    await until(lambda: not world.gateway.connections)


async def test_the_reason_reaches_a_client_that_is_still_sending(world: EdgeWorld) -> None:
    client = await world.raw()
    sending = asyncio.ensure_future(client.send(client_frame(b"x" * 8_000_000)))
    await until(lambda: world.shard.of(wire.Detach))
    await sending
    assert await client.close_code() == 1009
    client.close()


async def test_frames_sent_before_the_answer_to_the_handshake_are_not_lost() -> None:
    begun, may_accept = asyncio.Event(), asyncio.Event()

    def hesitant(application: Any) -> Any:
        async def hesitate(scope: Any, receive: Any, send: Any) -> None:
            begun.set()
            await may_accept.wait()
            await application(scope, receive, send)

        return hesitate

    async with edge_world(wrap=hesitant, short=False) as world:
        client = await world.raw_unasked()
        await client.ask(world.token())
        await begun.wait()
        await client.send(client_frame(b'{"type":"ping","ts":1}') + client_frame(b'{"type":"ping","ts":2}')[:9])
        await asyncio.sleep(0)
        may_accept.set()
        await client.accepted()
        await client.send(client_frame(b'{"type":"ping","ts":2}')[9:])
        seen = [json.loads((await client.frame())[1]) for _ in range(3)]
        assert [frame.get("ts") for frame in seen if frame["type"] == "pong"] == [1, 2]
        client.close()


# -- before the upgrade ----------------------------------------------------------------------------------------------------
async def refusal(world: object, **options: object) -> InvalidStatus:
    with pytest.raises(InvalidStatus) as refused:
        async with world.connect(**options):  # type: ignore[attr-defined]
            pass
    return refused.value


async def test_a_bad_token_is_a_plain_http_answer_before_the_upgrade(world: EdgeWorld) -> None:
    forged = world.token(ttl_s=1, tenant="a").rpartition(".")[0] + "." + 43 * "x"
    for options in ({"additional_headers": {}}, {"token": "nonsense"}, {"token": forged}):
        response = (await refusal(world, **options)).response
        assert response.status_code == 401
        assert response.headers["content-type"] == "application/problem+json"
        assert json.loads(response.body or b"")["status"] == 401
    response = (await refusal(world, token=world.token(scopes="publish"))).response
    assert response.status_code == 403
    assert not world.shard.of(wire.Attach)


async def test_the_token_is_taken_from_query_cookie_and_subprotocol_too(world: EdgeWorld) -> None:
    token = world.token("u2")
    for options in (
        {"query": f"?token={token}", "additional_headers": {}},
        {"additional_headers": {"Cookie": f"notify_token={token}"}},
        {"additional_headers": {}, "subprotocols": ["notify.v1.json", f"bearer.{token}"]},
    ):
        async with world.connect(**options) as socket:  # type: ignore[arg-type]
            assert (await frame_of(socket, "welcome"))["user"] == "u2"


async def test_only_the_offered_protocol_is_echoed_and_never_the_token(world: EdgeWorld) -> None:
    async with world.connect(subprotocols=["notify.v1.json", f"bearer.{world.token()}"]) as socket:
        assert socket.subprotocol == "notify.v1.json"
    async with world.connect() as socket:
        assert socket.subprotocol is None


async def test_a_foreign_origin_is_refused_before_the_upgrade() -> None:
    async with edge_world(allowed_origins=("https://app.example",)) as world:
        assert (await refusal(world, origin="https://evil.example")).response.status_code == 403
        async with world.connect(origin="https://app.example") as socket:
            await frame_of(socket, "welcome")


async def test_a_full_edge_refuses_with_503_and_a_time_to_retry() -> None:
    async with edge_world(connections_max=1) as world, world.connect():
        response = (await refusal(world, user="u2")).response
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1


async def test_no_log_line_ever_contains_a_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with edge_world() as world:
        for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "websockets"):
            caplog.set_level(logging.DEBUG, name)
        token = world.token()
        async with world.connect(query=f"?token={token}", additional_headers={}) as socket:
            await frame_of(socket, "welcome")
        await world.once().get(f"/v1/poll?token={token}&wait=0")
        bad = token[:-3]
        await refusal(world, query=f"?token={bad}", additional_headers={})
    mine = [record for record in caplog.records if not record.name.startswith(("websockets.client", "httpx", "httpcore"))]
    assert not [record for record in mine if bad in record.getMessage()]


# -- cursors and links -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("cursor", "resumed"),
    [
        ("", "new"),
        (f"{EPOCH}-1", "ok"),
        ("other-1", "gap"),
        (f"{EPOCH}-99", "gap"),
        ("rubbish", "gap"),
        (f"{EPOCH}-x", "gap"),
        ("-5", "gap"),
    ],
)
async def test_any_cursor_is_answered_never_an_error(world: EdgeWorld, cursor: str, resumed: str) -> None:
    await world.publish(count=2)
    async with world.connect(query=f"?last_event_id={cursor}") as socket:
        welcome = await frame_of(socket, "welcome")
        assert welcome["resumed"] == resumed
        frame = await frame_of(socket)
        assert [message["seq"] for message in frame["messages"]] == ([2] if resumed == "ok" else [1, 2])


async def test_a_new_link_session_is_told_every_connection_and_every_unanswered_post(world: EdgeWorld, socket: ClientConnection) -> None:
    await world.publish(count=2)
    await frame_of(socket)
    await socket.send('{"type":"ack","seq":1}')
    await until(lambda: world.shard.of(wire.Ack))
    world.shard.connected = False
    posting = asyncio.ensure_future(world.publish(id="k1"))
    await until(lambda: len(world.gateway.pending_calls) == 1)
    world.shard.received.clear()
    world.shard.reset()
    assert await posting == [3]
    attach = world.shard.of(wire.Attach)[0]
    assert attach.resume
    assert (attach.cursor_epoch, attach.cursor_seq, attach.sent) == (EPOCH, 1, 2)
    assert len(world.shard.of(wire.Post)) == 1
    frame = await frame_of(socket)
    assert [message["seq"] for message in frame["messages"]] == [3]


async def test_a_refusal_is_repeated_to_a_new_link_session_before_the_acknowledgement_that_covers_it_until_it_is_confirmed(
    world: EdgeWorld, socket: ClientConnection
) -> None:
    await world.publish(count=4)
    await frame_of(socket)
    await socket.send('{"type":"ack","seq":1}')
    await until(lambda: world.shard.of(wire.Ack))
    world.shard.connected = False
    await socket.send('{"type":"nack","ids":["x","y"],"reason":"no"}')
    await socket.send('{"type":"ack","seq":4}')
    (connection,) = world.gateway.connections.values()
    await until(lambda: connection.pending_nacks is not None and connection.pending_nacks.acked == 4)
    world.shard.received.clear()
    world.shard.reset()
    attach, nack, ack = world.shard.received
    assert attach.cursor_seq == 1, "an announcement that covers the refusal would settle it"
    assert (nack.ids, nack.reason, ack.seq) == (["x", "y"], "no", 4)

    world.gateway.from_shard(0, [wire.NacksStored(connection.id, ["x"])])
    assert (await frame_of(socket, "nacked"))["ids"] == ["x"]
    world.gateway.from_shard(0, [wire.NacksStored(connection.id, ["y"])])
    assert (await frame_of(socket, "nacked"))["ids"] == ["y"]
    world.shard.received.clear()
    world.shard.reset()
    (attach,) = world.shard.received
    assert attach.cursor_seq == 4


async def test_unconfirmed_refusals_of_a_connection_take_no_more_than_a_window() -> None:
    async with edge_world(window=3) as world, world.connect() as socket:
        await socket.send(json.dumps({"type": "nack", "ids": [f"m{n}" for n in range(5)]}))
        (connection,) = world.gateway.connections.values()
        await until(lambda: connection.pending_nacks)
        assert list(connection.pending_nacks.reasons) == ["m2", "m3", "m4"]


async def test_a_connection_that_was_not_welcomed_yet_is_announced_as_new_again(world: EdgeWorld) -> None:
    world.shard.connected = False
    async with world.connect(query=f"?last_event_id={EPOCH}-0") as socket:
        await until(lambda: world.gateway.connections)
        world.shard.reset()
        assert (await frame_of(socket, "welcome"))["resumed"] == "ok"
    assert not world.shard.of(wire.Attach)[0].resume


async def test_what_has_moved_is_routed_again_by_the_newer_map() -> None:
    async with edge_world(shards=2) as world:
        world.shard.owns = lambda _key: 5
        async with world.connect() as socket:
            posting = asyncio.ensure_future(world.publish())
            await until(lambda: 5 in world.slots_wanted and world.shard.of(wire.Post))
            world.move_all_to(1, 5)
            assert await posting == [1]
            await frame_of(socket, "welcome")
            assert [message["seq"] for message in (await frame_of(socket))["messages"]] == [1]


async def test_connections_follow_their_slot_when_the_map_changes_under_them() -> None:
    async with edge_world(shards=2) as world, world.connect() as socket:
        await frame_of(socket, "welcome")
        world.move_all_to(1, 2)
        await until(lambda: world.shards[1].of(wire.Attach))
        assert world.shards[1].of(wire.Attach)[0].resume
        assert world.shards[1].of(wire.Attach)[0].since_ms == world.shards[0].of(wire.Attach)[0].since_ms > 0
        await until(lambda: world.shards[0].of(wire.Detach))
        await world.publish()
        assert [message["seq"] for message in (await frame_of(socket))["messages"]] == [1]


async def test_gap_revoke_and_faults_are_told_in_the_order_they_came(world: EdgeWorld, socket: ClientConnection) -> None:
    await frame_of(socket, "welcome")
    conn = next(iter(world.shard.attached))
    world.shard.say(
        wire.Deliver(conn, [(1, 1, b'"id":"a"')]),
        wire.Deliver(conn, [(2, 1, b'"id":"b"')]),
        wire.GapRange(conn, 3, 5),
        wire.Deliver(conn, [(6, 1, b'"id":"c"')]),
        wire.Revoke(conn, ["a"]),
        wire.Fault(conn, "unknown_seq", "no such number"),
    )
    frames = [json.loads(await asyncio.wait_for(socket.recv(), DEADLINE_S)) for _ in range(5)]
    assert [[message["seq"] for message in frames[0]["messages"]], frames[1]] == [[1, 2], {"type": "gap", "from": 3, "to": 5}]
    assert [message["seq"] for message in frames[2]["messages"]] == [6]
    assert frames[3] == {"type": "revoke", "ids": ["a"]}
    assert frames[4] == {"type": "error", "code": "unknown_seq", "detail": "no such number"}


async def test_the_shard_can_hang_up(world: EdgeWorld, socket: ClientConnection) -> None:
    await frame_of(socket, "welcome")
    world.shard.say(wire.Hangup(next(iter(world.shard.attached)), 4409, "too many connections of this user"))
    assert await closed_with(socket) == (4409, "too many connections of this user")
    await until(lambda: [detach.code for detach in world.shard.of(wire.Detach)] == [4409])


async def test_the_end_of_a_client_is_told_with_its_code(world: EdgeWorld) -> None:
    async with world.connect() as socket:
        await frame_of(socket, "welcome")
        await socket.close(1001, "bye")
    client = await world.raw()
    await client.frame()
    client.close()
    await until(lambda: len(world.shard.of(wire.Detach)) == 2)
    assert [detach.code for detach in world.shard.of(wire.Detach)] == [1001, 1006]
    assert not world.gateway.connections


# -- time ------------------------------------------------------------------------------------------------------------------
async def test_an_expired_token_closes_4401_and_a_fresh_one_extends() -> None:
    async with (
        edge_world() as world,
        world.connect(token=world.token(ttl_s=4)) as keeps,
        world.connect(token=world.token(ttl_s=4)) as socket,
    ):
        await keeps.send(json.dumps({"type": "auth", "token": world.token()}))
        assert (await closed_with(socket))[0] == 4401
        await keeps.send('{"type":"ping","ts":1}')
        assert (await frame_of(keeps, "pong"))["ts"] == 1


async def test_a_fresh_token_that_expires_sooner_closes_4401_in_time() -> None:
    async with edge_world() as world, world.connect() as socket, asyncio.timeout(10):
        await frame_of(socket, "welcome")
        await socket.send(json.dumps({"type": "auth", "token": world.token(ttl_s=2)}))
        assert (await closed_with(socket))[0] == 4401


async def test_a_fresh_token_must_be_good_and_the_same_users(world: EdgeWorld, socket: ClientConnection) -> None:
    await socket.send('{"type":"auth","token":"nonsense"}')
    assert (await frame_of(socket, "error"))["code"] == "unauthorized"
    await socket.send(json.dumps({"type": "auth", "token": world.token("somebody-else")}))
    assert (await closed_with(socket))[0] == 4403


async def test_a_peer_that_answers_no_ping_is_closed_4408_and_one_that_does_is_not() -> None:
    async with edge_world(heartbeat_ms=200, pong_timeout_ms=2000) as world, world.connect("alive") as alive:
        client = await world.raw("dead")
        assert await client.close_code() == 4408
        client.close()
        await alive.send('{"type":"ping","ts":1}')
        assert (await frame_of(alive, "pong"))["ts"] == 1


async def test_text_pings_are_life_enough() -> None:
    now_s = asyncio.get_running_loop().time
    async with edge_world(heartbeat_ms=200, pong_timeout_ms=2000) as world:
        client = await world.raw()
        began_s, pings = now_s(), 0
        while pings < 3 or now_s() < began_s + 6:  # longer than it has for an answer
            opcode, _ = await client.frame()
            if opcode == 9:
                pings += 1
                await client.send(client_frame(b'{"type":"ping","ts":1}'))
        assert world.gateway.connections
        client.close()


# -- more than it may send -------------------------------------------------------------------------------------------------
async def test_ten_tokens_that_are_not_valid_close_1008(world: EdgeWorld, socket: ClientConnection) -> None:
    for number in range(10):
        await socket.send(json.dumps({"type": "auth", "token": f"nonsense {number}"}))
    for _ in range(10):
        assert (await frame_of(socket, "error"))["code"] == "unauthorized"
    assert (await closed_with(socket))[0] == 1008


async def test_a_token_that_cannot_be_checked_now_is_no_bad_one(world: EdgeWorld, socket: ClientConnection) -> None:
    await frame_of(socket, "welcome")
    world.gateway.revoked.unknown = True
    for number in range(10):
        await socket.send(json.dumps({"type": "auth", "token": world.token(ttl_s=1000 + number)}))
    for _ in range(10):
        assert (await frame_of(socket, "error"))["code"] == "unavailable"
    world.gateway.revoked.unknown = False
    (connection,) = world.gateway.connections.values()
    before_ms = connection.expires_ms
    await socket.send(json.dumps({"type": "auth", "token": world.token(ttl_s=2000)}))
    await until(lambda: connection.expires_ms > before_ms)


async def test_subscriptions_beyond_the_budget_close_4429_and_leave_room_for_publishers() -> None:
    async with edge_world(publish_inflight_max=100) as world, world.connect() as socket:
        await frame_of(socket, "welcome")
        world.shard.subscribe = lambda _record: None  # type: ignore[method-assign]
        for number in range(world.config.client_frames_burst + 40):
            await socket.send(json.dumps({"type": "subscribe", "topics": [f"t{number}"]}))
        assert (await frame_of(socket, "error"))["code"] == "overloaded"
        assert (await closed_with(socket))[0] == 4429
        assert len(world.shard.of(wire.Subscribe)) == len(world.gateway.pending_calls) == 16
        assert await world.publish("u2", count=80, priority="high") == list(range(1, 81))


async def test_the_requests_of_all_connections_are_bounded_and_answers_make_room() -> None:
    async with edge_world(frame_requests_max=3) as world, world.connect("a") as first, world.connect("b") as second:
        held: list[Any] = []
        answer = world.shard.subscribe
        world.shard.subscribe = held.append  # type: ignore[method-assign]
        for socket in (first, second):
            for number in range(2):
                await socket.send(json.dumps({"type": "subscribe", "topics": [f"t{number}"]}))
        assert (await frame_of(second, "error"))["code"] == "overloaded"
        await until(lambda: len(held) == 3)
        for record in held:
            answer(record)
        assert (await frame_of(second, "subscribed"))["topics"] == ["t0"]
        await until(lambda: world.gateway.frame_requests == 0)


async def test_every_kind_of_frame_but_a_cumulative_ack_counts() -> None:
    kinds = {
        "ping": client_frame(b'{"type":"ping"}'),
        "unknown": client_frame(b'{"type":"what"}'),
        "ids": client_frame(b'{"type":"ack","ids":["x"]}'),
        "nack": client_frame(b'{"type":"nack","ids":["x"]}'),
        "control": client_frame(b"x", 9),
        "pong": client_frame(b"x", 10),
        "pieces": client_frame(b'{"type":"ack",', fin=False) + client_frame(b'"seq":0}', 0),
    }
    async with edge_world(client_frames_burst=50) as world:
        for name, frame in kinds.items():
            client = await world.raw(name)
            await client.send(frame * 60)
            assert await client.close_code() == 4429, name
            client.close()
        client = await world.raw()
        await client.send(client_frame(b'{"type":"ack","seq":0}') * 10_000 + client_frame(b'{"type":"ping","ts":3}'))
        while b'"pong"' not in (await client.frame())[1]:
            pass
        client.close()


async def test_a_large_frame_counts_for_its_size() -> None:
    async with edge_world(client_frames_burst=50) as world:
        client = await world.raw()
        await client.send(client_frame(b'{"type":"ack","ids":["%b"]}' % (b"x" * 256 * 50)))
        assert await client.close_code() == 4429
        client.close()


async def test_messages_may_be_acknowledged_one_by_one_by_id_at_any_rate() -> None:
    async with edge_world(client_frames_burst=20, client_frames_per_s=1) as world, world.connect() as socket:
        await frame_of(socket, "welcome")
        for round_ in range(20):
            await world.publish(count=10)
            seen: list[Any] = []
            while len(seen) < 10:
                seen += (await frame_of(socket))["messages"]
            for message in seen:
                await socket.send(json.dumps({"type": "ack", "ids": [message["id"]]}))
            await until(lambda rounds=round_ + 1: len(world.shard.of(wire.AckIds)) == 10 * rounds)


async def test_early_copies_may_be_acknowledged_one_by_one_at_any_rate() -> None:
    async with edge_world(client_frames_burst=20, client_frames_per_s=1) as world, world.connect() as socket:
        await frame_of(socket, "welcome")
        (conn,) = world.shard.attached
        for seq in range(2, 102):
            world.shard.say(wire.DeliverEarly(conn, [(seq, 1, b'"id":"m%d"' % seq)]))
            (message,) = (await frame_of(socket, "early"))["messages"]
            await socket.send(json.dumps({"type": "ack", "ids": [message["id"]]}))
            await until(lambda acked=seq - 1: len(world.shard.of(wire.AckIds)) == acked)


async def test_what_a_client_sends_after_it_was_closed_is_discarded() -> None:
    async with edge_world(close_timeout_ms=60_000) as world:
        client = await world.raw()
        await client.send(client_frame(b"{", fin=False))
        empty = client_frame(b"", 0, fin=False)
        await client.send(empty * 200)
        assert await client.close_code() == 1008
        received = world.gateway.metrics.frames_received
        await client.send(empty * 5000 + client_frame(b"nonsense") * 100)
        client.close()
        await until(lambda: not world.server.server_state.connections)
        assert world.gateway.metrics.frames_received == received


# -- slow clients ----------------------------------------------------------------------------------------------------------
BIG = b'"id":"big","data":"%b"' % (b"x" * 60_000)


async def test_a_client_that_takes_nothing_is_closed_4413_and_costs_its_neighbour_nothing() -> None:
    async with edge_world(send_stall_ms=500, close_timeout_ms=300, socket_send_buffer_bytes=16384) as world:
        slow = await world.raw("slow", receive_buffer_bytes=4096)
        async with world.connect("quick") as quick:
            await frame_of(quick, "welcome")
            await until(lambda: len(world.shard.attached) == 2)
            world.shard.deliver("default:slow", *[(seq, 1, BIG) for seq in range(1, 11)])
            await until(lambda: world.gateway.backlog)
            while world.gateway.backlog:
                await world.publish("quick")
                await frame_of(quick)
            assert [detach.code for detach in world.shard.of(wire.Detach)] == [4413]
        await until(lambda: not world.server.server_state.connections - {None} or len(world.server.server_state.connections) <= 1)
        slow.close()


async def test_too_many_unsent_bytes_close_4413_at_once() -> None:
    async with edge_world(send_buffer_bytes_max=500_000, socket_send_buffer_bytes=16384) as world:
        slow = await world.raw("slow", receive_buffer_bytes=4096)
        await until(lambda: world.shard.attached)
        for first in range(1, 31, 3):
            world.shard.deliver("default:slow", *[(seq, 1, BIG) for seq in range(first, first + 3)])
            await asyncio.sleep(0)
        await until(lambda: [detach.code for detach in world.shard.of(wire.Detach)] == [4413])
        assert await slow.close_code() == 4413  # it reads again: everything, and the reason at the end
        slow.close()


async def test_too_many_unsent_bytes_of_all_close_who_has_the_most() -> None:
    async with edge_world(send_buffers_bytes_max=700_000, socket_send_buffer_bytes=16384) as world:
        more, less = [await world.raw(user, receive_buffer_bytes=4096) for user in ("more", "less")]
        await until(lambda: len(world.shard.attached) == 2)
        world.shard.deliver("default:less", *[(seq, 1, BIG) for seq in range(1, 6)])
        await until(lambda: world.gateway.backlog)
        (kept,) = world.gateway.backlog
        world.shard.deliver("default:more", *[(seq, 1, BIG) for seq in range(1, 11)])
        await until(lambda: world.shard.of(wire.Detach))
        assert [detach.code for detach in world.shard.of(wire.Detach)] == [4413]
        assert list(world.gateway.connections.values()) == [kept]
        more.close()
        less.close()


async def test_a_client_that_reads_slowly_but_does_read_is_kept() -> None:
    async with edge_world(send_stall_ms=2000, socket_send_buffer_bytes=16384) as world:
        slow = await world.raw("slow", receive_buffer_bytes=4096)
        await until(lambda: world.shard.attached)
        world.shard.deliver("default:slow", *[(seq, 1, BIG) for seq in range(1, 11)])
        await until(lambda: world.gateway.backlog)
        total = 0
        while world.gateway.backlog:
            total += len(await slow.read(4000))
            await asyncio.sleep(0.02)
        assert total > 100_000
        assert world.gateway.connections
        slow.close()


async def test_nothing_is_repeated_to_a_client_that_has_not_taken_the_first_time() -> None:
    async with edge_world(socket_send_buffer_bytes=16384) as world:
        slow = await world.raw("slow", receive_buffer_bytes=4096)
        await until(lambda: world.shard.attached)
        world.shard.deliver("default:slow", *[(seq, 1, BIG) for seq in range(1, 11)])
        await until(lambda: world.gateway.backlog)
        world.shard.deliver("default:slow", (1, 2, BIG), (2, 2, BIG), (11, 1, b'"id":"new"'))
        seen: list[tuple[int, int]] = []
        while (11, 1) not in seen:
            opcode, payload = await slow.frame()
            if opcode == 1 and b'"messages"' in payload:
                seen += [(message["seq"], message["attempt"]) for message in json.loads(payload)["messages"]]
        assert seen == [(seq, 1) for seq in range(1, 12)]
        slow.close()


# -- going away ------------------------------------------------------------------------------------------------------------
async def test_a_drain_tells_everybody_when_to_come_back_and_closes_1012() -> None:
    async with edge_world(drain_spread_ms=3000) as world, world.connect() as socket:
        await frame_of(socket, "welcome")
        draining = asyncio.ensure_future(world.gateway.drain())
        assert 0 <= (await frame_of(socket, "drain"))["after_ms"] < 3000
        assert (await closed_with(socket))[0] == 1012
        await draining


async def test_handing_over_closes_connections_evenly_over_the_time_that_is_set() -> None:
    async with edge_world(drain_spread_ms=1000) as world:
        sockets = [await world.connect(f"u{number}") for number in range(20)]
        for socket in sockets:
            await frame_of(socket, "welcome")
        handing_over = asyncio.ensure_future(world.gateway.hand_over())
        began_ms = world.gateway.clock()
        open_at_half = 0
        while world.gateway.connections:
            if world.gateway.clock() - began_ms < 500:
                open_at_half = len(world.gateway.connections)
            await asyncio.sleep(0)
        assert 5 <= open_at_half <= 15
        for socket in sockets:
            assert (await frame_of(socket, "drain"))["after_ms"] == 0
            assert (await closed_with(socket))[0] == 1012
        await handing_over


async def test_while_an_edge_leaves_a_handshake_is_refused() -> None:
    async with edge_world(drain_spread_ms=100) as world:
        await world.gateway.hand_over()
        assert (await refusal(world)).response.status_code == 503


async def test_a_frame_that_stays_incomplete_ends_the_connection(world: EdgeWorld) -> None:
    raw = await world.raw()
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


async def test_an_unread_response_before_the_upgrade_is_unsent() -> None:
    async with edge_world(socket_send_buffer_bytes=16384) as world:
        client = await world.raw_unasked()
        client._sock.setsockopt(SOL_SOCKET, SO_RCVBUF, 8192)
        await client.send(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.head()).startswith(b"HTTP/1.1 200 ")
        await client.ask(world.token())
        await until(lambda: world.gateway.connections)
        assert list(world.gateway.connections.values()) == list(world.gateway.backlog)
        client.close()
