"""Links one after another and beside each other: falling back, going back, and what holds across both."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.utils import accept_key

from engine import Client
from engine.client import Connected, Disconnected, Gap
from engine.errors import TooManyConnections, Unauthorized, Unreachable
from tests.support.lossy_wire import wire_to
from tests.support.raw_http_server import STREAM_HEAD, RawRequest, answer, chunk, raw_server
from tests.support.running_engine import RunningEngine
from tests.support.scripted_engine import ScriptedEngine, serving, token
from tests.support.waiting import until

BLOCKED = {"sse": {"websocket": 404}, "poll": {"websocket": 404, "sse": 404}}


def transports_of(events: list[Any]) -> list[str]:
    """Those of the connections, `-` for each end of one."""
    return [event.transport if isinstance(event, Connected) else "-" for event in events if isinstance(event, Connected | Disconnected)]


async def take(client: Client, count: int) -> list[int]:
    async with asyncio.timeout(60):
        return [(await anext(client)).seq for _ in range(count)]


@pytest.mark.parametrize("transport", ["sse", "poll"])
async def test_a_better_transport_takes_over_from_a_working_one_without_a_break(transport: str) -> None:
    events: list[Any] = []
    async with serving(ScriptedEngine()) as server:
        server.refuse = BLOCKED[transport]
        async with Client(server.url, token(), on_event=events.append, upgrade_after_s=0.05) as client:
            assert client.transport == transport
            server.publish()
            assert await take(client, 1) == [1]
            server.refuse = {}
            await until(lambda: client.transport == "websocket")
            server.publish()
            assert await take(client, 1) == [2]
            await until(lambda: not server.queues[1:])  # the former link is gone
    changes = transports_of(events)
    assert changes.index(transport) == len(BLOCKED[transport])
    assert "-" not in changes[changes.index(transport) :]
    assert not server.pending


async def test_leaving_acknowledges_what_was_handled_over_a_transport_that_only_receives() -> None:
    async with serving(ScriptedEngine()) as server:
        server.refuse = BLOCKED["sse"]
        async with Client(server.url, token()) as client:
            server.publish()
            async for _ in client:
                break
        assert [ack for ack in server.acks if ack.get("post")][-1]["seq"] == 1
        await until(lambda: not server.queues)


@pytest.mark.parametrize("carries", ["sse", "poll"])
async def test_a_proxy_that_swallows_a_transport_does_not_keep_the_client_out(carries: str) -> None:
    welcome = b'event: welcome\ndata: {"type":"welcome","epoch":"7","seq":0,"resumed":"new","from":1}\n\n'

    async def respond(request: RawRequest, writer: asyncio.StreamWriter) -> None:
        if request.path == "/v1/sse" and carries == "sse":
            writer.write(STREAM_HEAD + chunk(welcome))
        elif request.path == "/v1/sse":
            writer.write(STREAM_HEAD)  # and holds the body back
        elif request.path == "/v1/poll" and request.query["wait"] == "0":
            writer.write(answer(200, {"messages": [], "last_event_id": "7-0", "resumed": "new"}))

    async with raw_server(respond) as server:
        async with Client(server.url, "tok", open_timeout_s=3) as client:
            assert client.transport == carries
        with pytest.raises(Unreachable, match=r"within 0.1 s: no answer"):
            async with Client(server.url, "tok", open_timeout_s=0.1, transports=("websocket",)):
                pass


async def test_a_proxy_that_takes_the_handshake_and_swallows_the_frames_does_not_keep_the_client_out() -> None:
    welcome = b'event: welcome\ndata: {"type":"welcome","epoch":"7","seq":0,"resumed":"new","from":1}\n\n'

    async def respond(request: RawRequest, writer: asyncio.StreamWriter) -> None:
        if request.path == "/v1/ws":
            accept = accept_key(request.headers["sec-websocket-key"])
            writer.write(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Protocol: notify.v1.json\r\nSec-WebSocket-Accept: %b\r\n\r\n" % accept.encode()
            )
        else:
            writer.write(STREAM_HEAD + chunk(welcome))

    async with raw_server(respond) as server, Client(server.url, "tok", open_timeout_s=3) as client:
        assert client.transport == "sse"
        assert len(server.of("/v1/ws")) == 1


async def test_a_gap_alone_is_polled_for_once() -> None:
    events: list[Any] = []

    async def respond(request: RawRequest, writer: asyncio.StreamWriter) -> None:
        nothing = {"messages": [], "last_event_id": "7-3", "resumed": "ok"}
        if request.query.get("last_event_id") != "7-3":
            writer.write(answer(200, {**nothing, "gaps": [{"from": 1, "to": 3}]}))
        elif request.query["wait"] == "0":
            writer.write(answer(200, nothing))  # else it waits

    async with raw_server(respond) as server, Client(server.url, "tok", transports=("poll",), on_event=events.append):
        await until(lambda: len(server.of("/v1/poll")) > 1)
        assert server.of("/v1/poll")[1].query["last_event_id"] == "7-3"
    assert events.count(Gap(1, 3)) == 1


async def test_a_better_link_takes_over_though_the_engine_made_room_for_it_by_closing_the_one_that_served() -> None:
    events: list[Any] = []
    async with serving(ScriptedEngine()) as server:
        server.full, server.refuse = True, BLOCKED["sse"]
        async with Client(server.url, token(), on_event=events.append, upgrade_after_s=0.05) as client:
            server.refuse = {}
            await until(lambda: client.transport == "websocket")
            server.publish()
            assert await take(client, 1) == [1]
    assert transports_of(events)[1:] == ["sse", "websocket"]
    assert not server.pending


async def test_a_client_that_is_one_too_many_is_told_so_when_its_better_link_fails() -> None:
    async with serving(ScriptedEngine()) as server:
        server.full, server.refuse = True, BLOCKED["sse"]
        async with Client(server.url, token(), upgrade_after_s=0.05) as client:
            with pytest.raises(TooManyConnections, match="too many"):
                await take(client, 1)


async def test_an_expired_token_is_replaced_on_a_stream_and_between_polls() -> None:
    made: list[str] = []

    def fresh() -> str:
        made.append(token(number=len(made)))
        return made[-1]

    async with serving(ScriptedEngine()) as server:
        server.refuse = BLOCKED["sse"]
        async with Client(server.url, fresh) as client:
            server.token = token(number=1)
            server.cut(4401)
            server.publish()
            assert await take(client, 1) == [1]
            server.refuse = BLOCKED["poll"]
            server.token = token(number=2)
            server.cut()
            await until(lambda: client.transport == "poll")
            server.token = token(number=3)
            server.cut()
            server.publish()
            assert await take(client, 1) == [2]
    assert len(made) == 4


async def test_a_fixed_token_that_expired_ends_a_polling_client() -> None:
    async with serving(ScriptedEngine()) as server, Client(server.url, token(), transports=("poll",)) as client:
        server.token = "another"
        server.cut()
        with pytest.raises(Unauthorized):
            await take(client, 1)


async def test_a_proxy_that_forbids_websockets_does_not_keep_the_client_out() -> None:
    async with serving(ScriptedEngine()) as server:
        server.refuse = {"websocket": 403}
        async with Client(server.url, token()) as client:
            assert client.transport == "sse"


async def test_an_acknowledgement_that_fails_is_made_up_for_by_the_next_cursor() -> None:
    welcome = {"type": "welcome", "epoch": "7", "seq": 1, "resumed": "new", "from": 1, "reconnect": {"delays_ms": [5], "jitter": 0}}
    message = {"seq": 1, "id": "m1", "event_id": "7-1", "type": "t"}

    async def respond(request: RawRequest, writer: asyncio.StreamWriter) -> None:
        if request.path == "/v1/ack":
            writer.write(answer(500))
            return
        events = [("welcome", welcome)] + ([] if "last_event_id" in request.query else [("message", message)])
        writer.write(STREAM_HEAD + chunk(b"".join(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode() for name, data in events)))

    async with raw_server(respond) as server, Client(server.url, "tok", transports=("sse",), auto_ack=False) as client:
        (await anext(client)).ack()
        await until(lambda: len(server.of("/v1/sse")) == 2)
        assert server.of("/v1/sse")[1].query["last_event_id"] == "7-1"


async def test_a_better_transport_is_tried_though_the_links_end_before_they_are_old_enough() -> None:
    async with serving(ScriptedEngine()) as server:
        server.refuse = BLOCKED["sse"]
        async with Client(server.url, token(), upgrade_after_s=0.5) as client:
            server.refuse = {}
            async with asyncio.timeout(60):
                while client.transport != "websocket":
                    with contextlib.suppress(AssertionError):
                        await until(lambda: client.transport == "websocket", within_s=0.2)
                        break
                    server.cut()


async def test_an_issuer_of_tokens_that_is_down_is_asked_at_the_pace_of_connecting() -> None:
    asked = 0

    def fresh() -> str:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise OSError("the issuer is down")
        return token()

    events: list[Any] = []
    async with serving(ScriptedEngine()) as server, Client(server.url, fresh, on_event=events.append) as client:
        server.token = "another"
        server.cut(4401)
        await until(lambda: len(events) >= 6)
        assert asked < 20
        assert client.transport is None


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_closing_twice_still_acknowledges_what_was_handled_and_leaves_nothing_open(transport: str) -> None:
    before = len(asyncio.all_tasks())
    async with serving(ScriptedEngine()) as server:
        server.refuse = {"websocket": 404} if transport == "sse" else {}
        client = Client(server.url, token(), auto_ack=False)
        await client.__aenter__()
        server.publish()
        message = await anext(client)
        message.ack()
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)  # the first call has cancelled the runner, which has not closed its link
        await asyncio.sleep(0)
        await client.close()
        await closing
        await until(lambda: not server.pending and not server.queues)
    await until(lambda: len(asyncio.all_tasks()) <= before)


async def test_closing_while_a_better_transport_is_being_tried_leaves_nothing_open() -> None:
    async def respond(request: RawRequest, writer: asyncio.StreamWriter) -> None:
        if request.path == "/v1/sse":
            writer.write(STREAM_HEAD + chunk(b'event: welcome\ndata: {"type":"welcome","epoch":"7","seq":0,"resumed":"new"}\n\n'))
        elif len(server.of("/v1/ws")) == 1:
            writer.write(answer(404))

    before = len(asyncio.all_tasks())
    async with raw_server(respond) as server:
        async with Client(server.url, "tok", upgrade_after_s=0.01):
            await until(lambda: len(server.of("/v1/ws")) == 2)
        await until(lambda: len(asyncio.all_tasks()) <= before + 3)  # the server's own connections


async def test_an_engine_delivers_once_and_in_order_over_whatever_gets_through(engine: RunningEngine, tmp_path: Path) -> None:
    user, step = "changes-transports", 300  # more than a window
    paths = {"websocket": "/v1/ws", "sse": "/v1/sse", "poll": "/v1/poll"}
    kept = tmp_path / "cursor"
    used: set[str] = set()

    def note(event: object) -> None:
        if isinstance(event, Connected):
            used.add(event.transport)

    async with wire_to(engine) as (wire, url):
        async with Client(url, engine.token(user), on_event=note, on_cursor=kept.write_text, upgrade_after_s=0.2) as client:
            for turn, passes in enumerate(("sse", "poll", "websocket")):
                await engine.publish(*({"user": user, "type": "t"} for _ in range(step)))
                assert await take(client, 100) == list(range(turn * step + 1, turn * step + 101))
                wire.refuses = tuple(path for transport, path in paths.items() if transport != passes)
                if passes != "websocket":  # that one takes over by itself
                    wire.cut()
                await until(lambda: client.transport == passes)  # noqa: B023
                assert await take(client, step - 100) == list(range(turn * step + 101, turn * step + step + 1))
        assert used == set(paths)
        assert kept.read_text().endswith(f"-{3 * step}")
        wire.refuses = ()
        async with Client(url, engine.token(user)) as client:  # everything was acknowledged
            await engine.publish({"user": user, "type": "t"})
            assert await take(client, 1) == [3 * step + 1]
