"""Server-sent events as others define and read them.

The cases of the Web Platform Tests (https://github.com/web-platform-tests/wpt, folder `eventsource`) state which events a
stream has. They are given to the parser of the Python client. The client `eventsource` of npm reads an edge's streams.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from engine.client.links.event_stream_parser import EventStreamParser
from tests.support.edge_world import DEADLINE_S, EdgeWorld, edge_world
from tests.support.missing_programs import PREFIX
from tests.support.waiting import until

CLIENT = Path(__file__).with_name("event_source_client.mjs")
NODE_MODULES = Path(__file__).parents[2] / "clients" / "js" / "node_modules"
BOM = "\ufeff"
LONG = "x" * 2048


class Case(NamedTuple):
    name: str
    stream: str
    events: list[tuple[str, str]]


def messages(*texts: str) -> list[tuple[str, str]]:
    return [("message", text) for text in texts]


CASES = [
    Case(
        "event-data",
        "data:msg\ndata: msg\n\n:\nfalsefield:msg\n\nfalsefield:msg\nData:data\n\ndata\n\ndata:end\n\n",
        messages("msg\nmsg", "", "end"),
    ),
    Case("format-bom", f"{BOM}data:1\n\n{BOM}data:2\n\ndata:3\n\n", messages("1", "3")),
    Case("format-bom-2", f"{BOM}{BOM}data:1\n\ndata:2\n\ndata:3\n\n", messages("2", "3")),
    Case(
        "format-comments",
        f"data:1\r:\0\n:\r\ndata:2\n:{LONG}\rdata:3\n:data:fail\r:{LONG}\ndata:4\n\n",
        messages("1\n2\n3\n4"),
    ),
    Case("format-data-before-final-empty-line", "retry:1000\ndata:test1\n\nid:test\ndata:test2\n", messages("test1")),
    Case("format-field-data", "data:\n\ndata\ndata\n\ndata:test\n\n", messages("", "\n", "test")),
    Case("format-field-event", "event:test\ndata:x\n\ndata:x\n\n", [("test", "x"), ("message", "x")]),
    Case("format-field-event-empty", "event: \ndata:data\n\n", messages("data")),
    Case(
        "format-field-parsing",
        "data:\0\ndata:  2\rData:1\ndata\0:2\ndata:1\r\0data:4\nda-ta:3\rdata_5\ndata:3\rdata:\r\n data:32\ndata:4\n\n",
        messages("\0\n 2\n1\n3\n\n4"),
    ),
    Case("format-field-retry", "retry:3000\ndata:opened\n\n", messages("opened")),
    Case("format-field-retry-bogus", "retry:3000\nretry:1000x\ndata:opened\n\n", messages("opened")),
    Case("format-field-retry-empty", "retry\ndata:test\n\n", messages("test")),
    Case(
        "format-field-unknown",
        "data:test\n data\ndata\nfoobar:xxx\njustsometext\n:thisisacommentyay\ndata:test\n\n",
        messages("test\n\ntest"),
    ),
    Case("format-leading-space", "data:\ttest\rdata: \ndata:test\n\n", messages("\ttest\n\ntest")),
    Case("format-newlines", "data:test\r\ndata\ndata:test\r\n\r\n", messages("test\n\ntest")),
    Case("format-null-character", "data:\0\n\n\n\n", messages("\0")),
    Case("format-utf-8", "data:ok…\n\n", messages("ok…")),
]


@pytest.mark.parametrize("bytes_at_once", [1, 7, 1 << 20])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_client_reads_the_events_of_web_platform_tests(case: Case, bytes_at_once: int) -> None:
    parser, stream = EventStreamParser(), case.stream.encode()
    pieces = [stream[start : start + bytes_at_once] for start in range(0, len(stream), bytes_at_once)]
    assert [(event.name, event.data.decode()) for piece in pieces for event in parser.feed(piece)] == case.events


# -- The client `eventsource` of npm. ----------------------------------------------------------------------------------
class NpmClient:
    """What it tells of one stream."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [told for told in self.told if told["kind"] == kind]

    async def tells(self, condition: Callable[[], bool]) -> None:
        await until(condition, DEADLINE_S)


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[NpmClient]:
    if shutil.which("node") is None or not (NODE_MODULES / "eventsource").exists():
        pytest.skip(PREFIX + "no Node.js, or no npm package `eventsource` (`make typescript`): its client was not tried")
    process = await asyncio.create_subprocess_exec(
        "node", str(CLIENT), str(NODE_MODULES), url, stdout=asyncio.subprocess.PIPE, limit=1 << 24
    )
    client = NpmClient()

    async def read() -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            client.told.append(json.loads(line))

    reading = asyncio.ensure_future(read())
    try:
        yield client
    finally:
        process.kill()
        await process.wait()
        await reading


def stream_of(world: EdgeWorld, **claims: Any) -> str:
    return world.url(f"/v1/sse?token={world.token('ann', **claims)}")


async def test_the_npm_client_gets_messages_with_their_cursors() -> None:
    texts = ["plain", "two\r\nlines\n\nand: more", "…\u2028\u0085 🌎 \0", "x" * 50_000]
    async with edge_world() as world, listening(stream_of(world)) as client:
        await client.tells(lambda: bool(client.of("welcome")))
        numbers = [seq for text in texts for seq in await world.publish("ann", data=text)]
        await client.tells(lambda: len(client.of("message")) == len(texts))
    assert [json.loads(message["data"])["data"] for message in client.of("message")] == texts
    assert [message["id"] for message in client.of("message")] == [f"e7-{seq}" for seq in numbers]
    assert not client.of("error")


async def test_the_npm_client_resumes_after_the_last_message_it_got() -> None:
    async with edge_world() as world, listening(stream_of(world)) as client:
        await client.tells(lambda: bool(client.of("welcome")))
        await world.publish("ann")
        await client.tells(lambda: len(client.of("message")) == 1)
        for connection in list(world.gateway.connections.values()):
            connection.close(1012, "restarted")
        await client.tells(lambda: len(client.of("welcome")) == 2)
        await world.publish("ann")
        await client.tells(lambda: len(client.of("message")) == 2)
    assert [json.loads(welcome["data"])["resumed"] for welcome in client.of("welcome")] == ["new", "ok"]
    assert [message["id"] for message in client.of("message")] == ["e7-1", "e7-2"]


async def test_the_npm_client_gives_up_where_its_token_is_refused() -> None:
    async with edge_world() as world, listening(stream_of(world, scopes="publish")) as client:
        await client.tells(lambda: bool(client.of("error")))
    assert [(error["code"], error["state"]) for error in client.of("error")] == [(403, 2)]
