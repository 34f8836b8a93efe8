"""A link over SSE, against a server that writes bytes."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engine.client.credentials import Credentials, parse_url
from engine.client.links import event_stream_link
from engine.client.links.event_stream_link import EventStreamLink
from engine.client.links.transport_link import LinkEnded, LinkOptions
from tests.support.raw_http_server import STREAM_HEAD, RawRequest, RawServer, answer, chunk, raw_server


def link_to(url: str, **more: Any) -> EventStreamLink:
    return EventStreamLink(LinkOptions(parse_url(url), Credentials("tok"), lambda: "7-41", device="tv", timeout_s=5, **more))


@asynccontextmanager
async def streaming(*pieces: bytes, ack: bytes = answer(200, b"{}")) -> AsyncIterator[RawServer]:
    """A server that answers a stream with these, and an acknowledgement with that."""

    async def respond(request: RawRequest, writer: asyncio.StreamWriter) -> None:
        for piece in pieces if request.path == "/v1/sse" else (ack,):
            writer.write(piece)

    async with raw_server(respond) as server, asyncio.timeout(60):
        yield server


async def test_events_become_the_frames_of_a_websocket_and_a_comment_a_sign_of_life() -> None:
    welcome = b'event: welcome\ndata: {"type":"welcome"}\n\n'
    message = b'id: 7-42\nevent: message\ndata: {"seq":42}\n\n'
    async with streaming(STREAM_HEAD, chunk(b":\n"), chunk(welcome + message)) as server:
        link = link_to(server.url, counts=True, digest=True)
        await link.open(5)
        frames: list[bytes] = []
        while len(frames) < 2:
            frames += await link.receive()
        link.abort()
        assert frames == [b'{"type":"welcome"}', b'{"type":"messages","messages":[{"seq":42}]}']
        (request,) = server.requests
        assert request.query == {"last_event_id": "7-41", "device": "tv", "ack": "explicit", "digest": "1", "counts": "true"}
        assert request.headers["authorization"] == "Bearer tok"
        assert not link.duplex


async def test_what_came_before_the_close_event_is_received_and_then_its_code() -> None:
    last = b'event: message\ndata: {"seq":1}\n\nevent: close\ndata: {"type":"close","code":4401,"reason":"expired"}\n\n'
    async with streaming(STREAM_HEAD, chunk(last), b"0\r\n\r\n") as server:
        link = link_to(server.url)
        await link.open(5)
        assert await link.receive() == [b'{"type":"messages","messages":[{"seq":1}]}']
        with pytest.raises(LinkEnded, match="expired") as ended:
            await link.receive()
        assert ended.value.code == 4401
        link.abort()


async def test_the_end_of_the_stream_ends_the_link() -> None:
    async with streaming(STREAM_HEAD, chunk(b":\n"), b"0\r\n\r\n") as server:
        link = link_to(server.url)
        await link.open(5)
        assert await link.receive() == []
        with pytest.raises(LinkEnded, match="the stream ended"):
            await link.receive()
        link.abort()


async def test_a_refusal_is_told_with_its_detail_status_and_delay() -> None:
    problem = answer(429, {"detail": "too many"}, Retry_After="7", Content_Type="application/problem+json")
    async with streaming(problem) as server:
        with pytest.raises(LinkEnded, match="too many") as ended:
            await link_to(server.url).open(5)
        assert (ended.value.status, ended.value.retry_after_s, ended.value.reached) == (429, 7.0, True)


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ((STREAM_HEAD,), "nothing of the stream"),
        ((b"HTTP/1.1 200 OK\r\n",), "nothing of the stream"),
        ((answer(200, b"<html>", Content_Type="text/html"),), "no event stream"),
        ((b"garbage\r\n\r\n",), "not HTTP"),
    ],
)
async def test_a_path_that_carries_no_stream_is_found_out_in_time(pieces: tuple[bytes, ...], reason: str) -> None:
    async with streaming(*pieces) as server:
        with pytest.raises(LinkEnded, match=reason) as ended:
            await link_to(server.url).open(0.2)
        assert ended.value.reached


async def test_a_server_that_is_not_there_was_not_reached() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(LinkEnded) as ended:
            await link_to(f"http://127.0.0.1:{unused.getsockname()[1]}").open(5)
    assert not ended.value.reached


async def test_an_event_without_end_is_not_gathered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream_link, "FRAME_BYTES_MAX", 1000)
    async with streaming(STREAM_HEAD, chunk(b"data: " + b"x" * 600), chunk(b"x" * 600)) as server:
        link = link_to(server.url)
        await link.open(5)

        async def receive_all() -> None:
            while True:
                await link.receive()

        with pytest.raises(LinkEnded, match="longer than 1000 bytes"):
            await receive_all()
        link.abort()


async def test_a_refusal_is_a_request_and_its_answer_the_confirmation() -> None:
    async with streaming(STREAM_HEAD, chunk(b":\n")) as server:
        link = link_to(server.url)
        await link.open(5)
        answers = await link.send([b'{"type":"nack","ids":["m2","m3"],"reason":"no"}'])
        assert [json.loads(one) for one in answers] == [{"type": "nacked", "ids": ["m2", "m3"]}]
        assert [json.loads(one.body) for one in server.of("/v1/nack")] == [{"ids": ["m2", "m3"], "reason": "no"}]
        link.abort()


async def test_a_refusal_that_is_not_taken_ends_the_link_without_a_status() -> None:
    async with streaming(STREAM_HEAD, chunk(b":\n"), ack=answer(503, {"detail": "no answer in time"}, Retry_After="3")) as server:
        link = link_to(server.url)
        await link.open(5)
        with pytest.raises(LinkEnded, match="refusal failed: no answer in time") as ended:
            await link.send([b'{"type":"nack","ids":["m2"],"reason":"no"}'])
        assert (ended.value.status, ended.value.retry_after_s) == (0, 3.0)
        link.abort()


@pytest.mark.parametrize("frame", [b'{"type":"nack","ids":["m2"],"reason":"no"}', b'{"type":"ack","seq":1}'])
async def test_a_page_of_a_proxy_confirms_nothing(frame: bytes) -> None:
    async with streaming(STREAM_HEAD, chunk(b":\n"), ack=answer(200, b"<html>")) as server:
        link = link_to(server.url)
        await link.open(5)
        with pytest.raises(LinkEnded, match="not an engine's"):
            await link.send([frame])
        link.abort()


async def test_acknowledgements_are_requests_and_one_that_fails_ends_the_link_without_a_status() -> None:
    async with streaming(STREAM_HEAD, chunk(b":\n")) as server:
        link = link_to(server.url)
        await link.open(5)
        await link.send([b'{"type":"ack","ids":["m2"]}', b'{"type":"ack","seq":1}'])
        assert [json.loads(one.body) for one in server.of("/v1/ack")] == [{"ids": ["m2"]}, {"seq": 1}]
        assert server.of("/v1/ack")[0].headers["authorization"] == "Bearer tok"
        link.abort()
    async with streaming(STREAM_HEAD, chunk(b":\n"), ack=answer(409, {"detail": "not yours"}, Retry_After="3")) as server:
        link = link_to(server.url)
        await link.open(5)
        with pytest.raises(LinkEnded, match="acknowledgement failed: not yours") as ended:
            await link.send([b'{"type":"ack","seq":1}'])
        assert (ended.value.status, ended.value.retry_after_s) == (0, 3.0)
        link.abort()
