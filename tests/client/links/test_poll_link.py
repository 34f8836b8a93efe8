"""A link over long polling, against a server that writes bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engine.client.credentials import Credentials, parse_url
from engine.client.frames import Reconnect
from engine.client.links import poll_link
from engine.client.links.poll_link import POLL_WAIT_S, PollLink
from engine.client.links.transport_link import LinkEnded, LinkOptions
from tests.support.raw_http_server import RawRequest, RawServer, answer, raw_server

NOTHING = {"messages": [], "last_event_id": "7-2", "resumed": "ok"}


def having(*seqs: int, **more: Any) -> dict[str, Any]:
    return {"messages": [{"seq": seq} for seq in seqs], "last_event_id": f"7-{seqs[-1]}", "resumed": "ok", **more}


class Cursor:
    now: str | None = None


@asynccontextmanager
async def polling(*answers: dict[str, Any] | bytes) -> AsyncIterator[tuple[RawServer, PollLink, Cursor]]:
    """A server with these answers to polls, the last one for ever, and a link to it."""
    left = list(answers)
    cursor = Cursor()

    async def respond(request: RawRequest, writer: asyncio.StreamWriter) -> None:
        found: Any = b"{}"
        if request.path == "/v1/poll":
            found = left.pop(0) if len(left) > 1 else left[0]
        writer.write(found if isinstance(found, bytes) and found != b"{}" else answer(200, found))

    async with raw_server(respond) as server, asyncio.timeout(60):
        link = PollLink(LinkOptions(parse_url(server.url), Credentials("tok"), lambda: cursor.now, timeout_s=5))
        try:
            yield server, link, cursor
        finally:
            link.abort()


def frames_of(frames: Any) -> list[Any]:
    return [json.loads(frame) for frame in frames]


async def test_the_first_answer_makes_the_welcome_and_gaps_come_in_their_places() -> None:
    gaps = [{"from": 1, "to": 3}, {"from": 6, "to": 8}, {"from": 10, "to": 12}]
    async with polling(having(4, 5, 9, resumed="new", gaps=gaps)) as (server, link, _):
        await link.open(5)
        assert frames_of(await link.receive()) == [
            {"type": "welcome", "epoch": "7", "seq": 9, "resumed": "new", "from": 4},
            {"type": "gap", "from": 1, "to": 3},
            {"type": "messages", "messages": [{"seq": 4}, {"seq": 5}]},
            {"type": "gap", "from": 6, "to": 8},
            {"type": "messages", "messages": [{"seq": 9}]},
            {"type": "gap", "from": 10, "to": 12},
        ]
        (request,) = server.requests
        assert request.query == {"wait": "0"}
        assert request.headers["authorization"] == "Bearer tok"


async def test_without_messages_the_welcome_says_that_what_follows_the_cursor_is_next() -> None:
    async with polling(NOTHING) as (_, link, _):
        await link.open(5)
        assert frames_of(await link.receive()) == [{"type": "welcome", "epoch": "7", "seq": 2, "resumed": "ok", "from": 3}]
        assert await link.receive() == []


async def test_the_next_request_waits_until_the_last_answer_is_settled_and_presents_the_cursor() -> None:
    async with polling(having(1, 2), having(3)) as (server, link, cursor):
        await link.open(5)
        await link.receive()
        next_one = asyncio.create_task(link.receive())
        await link.send([b'{"type":"ack","ids":["m2"]}'])
        assert len(server.of("/v1/poll")) == 1, "nothing is settled up to a cursor yet"
        cursor.now = "7-1"
        await link.send([b'{"type":"ack","seq":1}'])
        assert len(server.of("/v1/poll")) == 1
        cursor.now = "7-2"
        await link.send([b'{"type":"ack","seq":2}'])
        assert frames_of(await next_one) == [{"type": "messages", "messages": [{"seq": 3}]}]
        assert server.of("/v1/poll")[1].query == {"last_event_id": "7-2", "wait": str(POLL_WAIT_S)}
        assert [one.body for one in server.of("/v1/ack")] == [b'{"ids":["m2"]}', b'{"seq":1}', b'{"seq":2}']


async def test_what_stays_unsettled_holds_others_back_only_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll_link, "_PAUSES", Reconnect(delays_ms=(10,), jitter=0))
    async with polling(having(1), having(1, 2)) as (_, link, _):
        await link.open(5)
        await link.receive()
        assert frames_of(await link.receive()) == [{"type": "messages", "messages": [{"seq": 1}, {"seq": 2}]}]


@pytest.mark.parametrize("resumed", ["gap", "new"])  # with a cursor, and without one
async def test_another_epoch_is_a_new_welcome(resumed: str) -> None:
    lost = {"messages": [], "last_event_id": "8-0", "resumed": resumed}
    async with polling(NOTHING, lost) as (_, link, _):
        await link.open(5)
        await link.receive()
        assert frames_of(await link.receive()) == [{"type": "welcome", "epoch": "8", "seq": 0, "resumed": resumed, "from": 1}]


@pytest.mark.parametrize(
    ("bad", "reason", "status"),
    [
        (answer(503, {"detail": "not ready"}, Retry_After="1"), "not ready", 503),
        (answer(200, b"<html>"), "not an engine's", 0),
        (answer(200, {"messages": [{}], "last_event_id": "7-1"}), "not an engine's", 0),
        (answer(200, {"messages": [], "last_event_id": "none"}), "not an engine's", 0),
        (b"garbage\r\n\r\n", "not HTTP", 0),
    ],
)
async def test_an_answer_that_is_none_ends_the_link(bad: bytes, reason: str, status: int) -> None:
    async with polling(bad) as (_, link, _):
        with pytest.raises(LinkEnded, match=reason) as ended:
            await link.open(5)
        assert ended.value.status == status
        assert ended.value.reached


async def test_a_later_answer_that_is_a_refusal_ends_it_with_the_status() -> None:
    async with polling(NOTHING, answer(401, {"detail": "expired"})) as (_, link, _):
        await link.open(5)
        await link.receive()
        with pytest.raises(LinkEnded, match="expired") as ended:
            await link.receive()
        assert ended.value.status == 401
