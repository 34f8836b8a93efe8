"""Events that are only counted, as the Python clients send them."""

from __future__ import annotations

import asyncio
import json

import pytest

from engine import Publisher, SyncPublisher
from engine.client.signal_requests import CountedSignals
from engine.errors import Refused, Unreachable
from tests.support.background_loop import in_background
from tests.support.edge_world import edge_world
from tests.support.raw_http_server import RawRequest, answer, raw_server

COUNTED = answer(202, {"counted": 1, "dropped": 0})


async def test_signals_are_counted_and_their_sums_read() -> None:
    async with edge_world(signals_flush_ms=10) as world, Publisher(world.url(), world.token("app", "publish")) as publisher:
        assert await publisher.count_signals({"post/9:views": 3, "heat ä&=": 1}) == CountedSignals(2, 0)
        assert await publisher.count_signals({"post/9:views": 2}) == CountedSignals(1, 0)
        await until_counted(publisher, {"post/9:views": 5, "heat ä&=": 1, "never": 0})
        with pytest.raises(Refused, match="amount"):
            await publisher.count_signals({"post/9:views": 0})


async def until_counted(publisher: Publisher, sums: dict[str, int]) -> None:
    async with asyncio.timeout(60):
        while await publisher.signal_sums(*sums) != sums:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("broken", [b"", answer(502), answer(500)])
async def test_signals_that_may_have_been_counted_are_not_sent_again(broken: bytes) -> None:
    async def respond(_: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(broken)
        if not broken:
            writer.close()

    async with raw_server(respond) as server, Publisher(server.url, "tok") as publisher:
        with pytest.raises(Unreachable, match="did not count the signals, or did without an answer"):
            await publisher.count_signals({"views": 1})
        assert len(server.requests) == 1


@pytest.mark.parametrize("status", [429, 503])
async def test_signals_that_were_not_counted_are(status: int) -> None:
    answers = [answer(status, {"detail": "later"}, Retry_After="0"), COUNTED]

    async def respond(_: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(answers.pop(0))

    async with raw_server(respond) as server, Publisher(server.url, "tok") as publisher:
        assert await publisher.count_signals({"views": 2}) == CountedSignals(1, 0)
        assert [json.loads(one.body) for one in server.requests] == [[{"name": "views", "amount": 2}]] * 2


def test_the_blocking_publisher_has_the_same() -> None:
    with in_background(edge_world()) as world, SyncPublisher(world.url(), world.token("app", "publish")) as publisher:
        assert publisher.count_signals({"views": 1, "likes": 2}) == CountedSignals(2, 0)
        assert publisher.signal_sums("views", "never").keys() == {"views", "never"}
