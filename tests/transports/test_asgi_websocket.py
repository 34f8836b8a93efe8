"""The same WebSockets where the server is not the edge's own: plain ASGI events, another protocol implementation."""

from __future__ import annotations

import asyncio
import json

import pytest
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidStatus

from engine.core.wire import records as wire
from tests.support.edge_world import DEADLINE_S, closed_with, edge_world, frame_of
from tests.support.waiting import until


async def test_a_client_is_served_over_plain_asgi() -> None:
    async with edge_world(websocket_protocol=WebSocketsSansIOProtocol) as world, world.connect() as socket:
        assert (await frame_of(socket, "welcome"))["user"] == "u1"
        await world.publish(count=2)
        assert [message["seq"] for message in (await frame_of(socket))["messages"]] == [1, 2]
        await socket.send('{"type":"ack","seq":2}')
        await socket.send('{"type":"ping","ts":5}')
        assert (await frame_of(socket, "pong"))["ts"] == 5
        assert world.shard.acked["default:u1"] == 2
        await socket.close(1001)
        await until(lambda: [detach.code for detach in world.shard.of(wire.Detach)] == [1001])
        await until(lambda: not world.server.server_state.tasks)


async def test_bad_tokens_and_bad_frames_end_the_same_way_over_plain_asgi() -> None:
    async with edge_world(websocket_protocol=WebSocketsSansIOProtocol) as world:
        with pytest.raises(InvalidStatus) as refused:
            async with world.connect(token="nonsense"):
                pass
        assert refused.value.response.status_code == 401
        async with world.connect() as socket:
            for _ in range(10):
                await socket.send(b"binary")
            assert (await closed_with(socket))[0] == 1008


async def test_a_client_that_takes_nothing_is_ended_over_plain_asgi() -> None:
    body = b'"id":"big","data":"%b"' % (b"x" * 60_000)
    options = {"send_stall_ms": 300, "socket_send_buffer_bytes": 16384}
    async with edge_world(websocket_protocol=WebSocketsSansIOProtocol, **options) as world:
        slow = await world.raw("slow", receive_buffer_bytes=4096)
        await until(lambda: world.shard.attached)
        for first in range(1, 60, 5):
            world.shard.deliver("default:slow", *[(seq, 1, body) for seq in range(first, first + 5)])
            await asyncio.sleep(0)
        await until(lambda: [detach.code for detach in world.shard.of(wire.Detach)] == [4413])
        slow.close()


async def test_a_drain_and_an_expired_token_are_told_over_plain_asgi() -> None:
    async with edge_world(websocket_protocol=WebSocketsSansIOProtocol) as world:
        async with world.connect(token=world.token(ttl_s=1)) as socket:
            assert (await closed_with(socket))[0] == 4401
        async with world.connect() as socket:
            await frame_of(socket, "welcome")
            draining = asyncio.ensure_future(world.gateway.drain())
            frames = [json.loads(await asyncio.wait_for(socket.recv(), DEADLINE_S))]
            assert frames[0]["type"] == "drain"
            assert (await closed_with(socket))[0] == 1012
            await draining
