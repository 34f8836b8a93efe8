"""Server-sent events over a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import pytest

from engine.core.wire import records as wire
from tests.support.edge_world import DEADLINE_S, EPOCH, EdgeWorld, edge_world, frame_of
from tests.support.waiting import until


class Event(dict[str, str]):
    """One server-sent event: its fields; `data` as JSON by `body`."""

    @property
    def body(self) -> Any:
        return json.loads(self["data"])


async def events(response: httpx.Response) -> AsyncIterator[Event]:
    """As a browser reads them."""
    event = Event()
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(":")
            event[name or "comment"] = value.removeprefix(" ")
        elif event:
            yield event
            event = Event()


async def next_event(stream: AsyncIterator[Event], name: str = "message") -> Event:
    while True:
        event = await asyncio.wait_for(anext(stream), DEADLINE_S)
        if event.get("event") == name:
            return event


async def test_a_stream_begins_with_a_comment_and_every_block_is_an_event() -> None:
    async with edge_world(heartbeat_ms=50) as world, world.http() as client, client.stream("GET", "/v1/sse") as response:
        await world.publish(count=1)
        text = ""
        async for part in response.aiter_text():
            text += part
            if text.count("\n:\n") >= 2 and "event: message" in text:
                break
    assert text.startswith(":\nretry: 1000\nevent: welcome\n")
    blocks = [block for block in text.removesuffix(text.rpartition("\n\n")[2]).split("\n\n") if block]
    assert len(blocks) == 2
    assert all("event: " in block and "data: " in block for block in blocks)


async def test_a_stream_says_retry_and_welcome_and_then_every_message_with_its_cursor() -> None:
    async with edge_world() as world, world.http() as client, client.stream("GET", "/v1/sse") as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert "no-cache" in response.headers["cache-control"]
        stream = events(response)
        welcome = await asyncio.wait_for(anext(stream), DEADLINE_S)
        assert (welcome["event"], welcome["retry"]) == ("welcome", "1000")
        assert welcome.body["resumed"] == "new"
        assert "id" not in welcome
        await world.publish(count=2)
        first, second = await next_event(stream), await next_event(stream)
        assert (first["id"], second["id"]) == (f"{EPOCH}-1", f"{EPOCH}-2")
        assert first.body["seq"] == 1
        assert first.body["data"] == {"n": 0}
        assert world.shard.of(wire.Attach)[0].kind == wire.SSE
        await until(lambda: [written.seq for written in world.shard.of(wire.Written)][-1:] == [2])


@pytest.mark.parametrize(
    ("query", "headers", "first"),
    [
        (f"?last_event_id={EPOCH}-2", {}, 3),
        ("", {"Last-Event-ID": f"{EPOCH}-2"}, 3),
        (f"?last_event_id={EPOCH}-1", {"Last-Event-ID": f"{EPOCH}-2"}, 3),
        ("", {}, 1),
    ],
)
async def test_a_stream_goes_on_behind_the_cursor_and_the_header_wins(
    world: EdgeWorld, query: str, headers: dict[str, str], first: int
) -> None:
    await world.publish(count=3)
    async with world.http() as client, client.stream("GET", f"/v1/sse{query}", headers=headers) as response:
        assert (await next_event(events(response))).body["seq"] == first


async def test_gap_revoke_and_drain_are_events_without_an_id() -> None:
    async with edge_world() as world, world.http() as client, client.stream("GET", "/v1/sse?ack=explicit") as response:
        stream = events(response)
        await next_event(stream, "welcome")
        conn, attach = next(iter(world.shard.attached.items()))
        assert attach.kind == wire.SSE_EXPLICIT
        world.shard.say(wire.GapRange(conn, 1, 4), wire.Deliver(conn, [(5, 1, b'"id":"a",\n"data":1')]), wire.Revoke(conn, ["a"]))
        gap = await next_event(stream, "gap")
        assert gap.body == {"type": "gap", "from": 1, "to": 4}
        message = await next_event(stream)
        assert message["id"] == f"{EPOCH}-5"
        assert message.body["data"] == 1
        revoke = await next_event(stream, "revoke")
        assert revoke.body["ids"] == ["a"]
        assert not {"id"} & (gap.keys() | revoke.keys())
        draining = asyncio.ensure_future(world.gateway.drain())
        assert "after_ms" in (await next_event(stream, "drain")).body
        assert (await next_event(stream, "close")).body["code"] == 1012
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(anext(stream), DEADLINE_S)
        await draining


async def test_a_silent_stream_is_kept_awake_by_comments() -> None:
    async with edge_world(heartbeat_ms=100) as world, world.http() as client, client.stream("GET", "/v1/sse") as response:
        lines = response.aiter_lines()
        beats = 0
        while beats < 3:  # the first is at the beginning
            beats += await asyncio.wait_for(anext(lines), DEADLINE_S) == ":"


async def test_an_expired_token_ends_the_stream() -> None:
    async with edge_world() as world, world.http(ttl_s=4) as client, client.stream("GET", "/v1/sse") as response:
        assert (await next_event(events(response), "close")).body["code"] == 4401


async def test_the_end_of_a_stream_is_told_to_the_shard(world: EdgeWorld) -> None:
    async with world.http() as client, client.stream("GET", "/v1/sse") as response:
        await next_event(events(response), "welcome")
    await until(lambda: len(world.shard.of(wire.Detach)) == 1)
    await until(lambda: not world.server.server_state.tasks)
    assert not world.gateway.connections


async def test_a_stream_that_is_not_read_is_ended_and_its_transport_with_it() -> None:
    async with edge_world(send_stall_ms=300, socket_send_buffer_bytes=16384) as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port, limit=1024)
        writer.write(f"GET /v1/sse HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {world.token()}\r\n\r\n".encode())
        await until(lambda: world.shard.attached)
        body = b'"id":"big","data":"%b"' % (b"x" * 60_000)
        world.shard.deliver("default:u1", *[(seq, 1, body) for seq in range(1, 60)])
        await until(lambda: [detach.code for detach in world.shard.of(wire.Detach)] == [4413])
        await until(lambda: not world.server.server_state.connections)
        writer.transport.abort()
        del reader


async def test_a_slow_reader_of_one_large_write_keeps_its_stream() -> None:
    async with edge_world(socket_send_buffer_bytes=16384) as world:
        client = await world.raw_unasked()
        await client.send(f"GET /v1/sse HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {world.token()}\r\n\r\n".encode())
        await until(lambda: world.shard.attached)
        (stream,) = world.gateway.connections.values()
        (protocol,) = world.server.server_state.connections
        unsent = cast("Any", protocol).transport.get_write_buffer_size
        world.shard.deliver("default:u1", *[(seq, 1, b'"data":"%b"' % (b"x" * 60_000)) for seq in range(1, 60)])
        await until(lambda: unsent() > 2_000_000)
        stream.check_backlog(world.gateway.clock())
        await client.read(1_000_000)
        stream.check_backlog(world.gateway.clock() + 60_000)
        assert not stream.ended
        stream.check_backlog(world.gateway.clock() + 120_000)
        assert stream.ended
        client.close()


async def test_a_link_reset_tells_the_shard_what_a_plain_stream_has_written() -> None:
    async with edge_world() as world, world.http() as client, client.stream("GET", "/v1/sse") as response:
        stream = events(response)
        await next_event(stream, "welcome")
        await world.publish(count=2)
        assert (await next_event(stream)).body["seq"] == 1
        assert (await next_event(stream)).body["seq"] == 2
        await until(lambda: world.shard.of(wire.Written))
        world.shard.received.clear()
        world.shard.reset()
        assert [type(record) for record in world.shard.received] == [wire.Attach, wire.Written]
        assert world.shard.received[1].seq == 2


async def test_switching_transports_loses_and_repeats_nothing(world: EdgeWorld) -> None:
    await world.publish(count=1)
    async with world.connect() as socket:
        assert [message["seq"] for message in (await frame_of(socket))["messages"]] == [1]
    await world.publish(count=1)
    async with world.http() as client, client.stream("GET", "/v1/sse", headers={"Last-Event-ID": f"{EPOCH}-1"}) as response:
        assert (await next_event(events(response))).body["seq"] == 2
    await world.publish(count=1)
    answer = (await world.once().get("/v1/poll", params={"last_event_id": f"{EPOCH}-2", "wait": 0})).json()
    assert [message["seq"] for message in answer["messages"]] == [3]
