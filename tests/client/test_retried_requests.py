"""When a request is repeated, and for how long."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Publisher
from engine.client.credentials import Credentials, parse_url
from engine.client.http_connection import HttpConnection
from engine.client.retried_requests import RETRIED, RETRY_CAP_S, RetriedRequests, retry_after_s, retry_delay_s
from engine.errors import Refused, Unreachable
from tests.support.publish_server import never_answers, refuses, running
from tests.support.raw_http_server import RawRequest, answer, raw_server
from tests.support.waiting import until


async def test_a_hanging_engine_is_given_up_and_asked_again() -> None:
    async with running(never_answers) as engine, Publisher(engine.url, "tok", timeout_s=0.1) as publisher:
        assert (await publisher.publish(user="u", type="t")).status == "accepted"
        assert engine.connections == 2


async def test_retry_after_is_respected() -> None:
    async with running(refuses(429, Retry_After="0.3")) as engine, Publisher(engine.url, "tok") as publisher:
        begun = time.monotonic()
        await publisher.publish(user="u", type="t")
        assert time.monotonic() - begun >= 0.3


@given(attempt=st.integers(0, 100), random=st.floats(0, 1, exclude_max=True), asked=st.none() | st.floats(0, 1000))
def test_the_wait_between_tries_is_bounded_and_never_shorter_than_asked(attempt: int, random: float, asked: float | None) -> None:
    wait = retry_delay_s(attempt, asked, random)
    assert 0.069 <= wait <= max(RETRY_CAP_S, asked or 0) * 1.3
    assert asked is None or wait >= asked


async def test_an_engine_that_is_not_there_is_said_after_the_time_allowed() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        async with Publisher(url, "tok", retry_for_s=0.3) as publisher:
            with pytest.raises(Unreachable, match=r"did not take 1 items within 0.3 s"):
                await publisher.publish(user="u", type="t")


async def test_the_wait_for_its_turn_takes_nothing_of_the_time_for_repeats() -> None:
    async with (
        running(never_answers, refuses(503)) as engine,
        Publisher(engine.url, "tok", timeout_s=0.6, retry_for_s=0.5, connections_max=1) as publisher,
    ):
        first = asyncio.ensure_future(publisher.publish(user="u1", type="t"))
        await until(lambda: len(engine.requests) == 1)
        assert (await publisher.publish(user="u2", type="t")).status == "accepted"
        with pytest.raises(Unreachable, match=r"within 0.5 s"):
            await first


async def test_a_rejected_token_is_renewed_once() -> None:
    tokens = iter(["old", "new"])
    async with running(refuses(401)) as engine, Publisher(engine.url, lambda: next(tokens)) as publisher:
        await publisher.publish(user="u", type="t")
        assert engine.tokens == ["old", "new"]


# -- buffered ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("5", 5), ("0.5", 0.5), ("-1", 0), ("inf", 86_400), ("nan", 0), (None, None), ("", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None)],
)
def test_retry_after_is_read_in_seconds(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header) == seconds


@pytest.mark.parametrize("status", sorted(RETRIED))
async def test_each_of_these_statuses_is_retried_and_shown_to_the_caller(status: int) -> None:
    seen: list[int] = []
    async with running(refuses(status)) as engine:
        requests = RetriedRequests(lambda: HttpConnection(parse_url(engine.url)), Credentials("tok"), timeout_s=5, retry_for_s=5)
        answer = await requests.send("POST", "/v1/notifications", b"[]", on_retry=lambda answer: seen.append(answer.status))
        assert (answer.status, seen, len(engine.requests)) == (202, [status], 2)
        await requests.close()


@pytest.mark.parametrize("status", [200, 204, 400, 404, 409, 422, 501])
async def test_any_other_status_is_the_answer(status: int) -> None:
    async with running(refuses(status)) as engine:
        requests = RetriedRequests(lambda: HttpConnection(parse_url(engine.url)), Credentials("tok"), timeout_s=5, retry_for_s=5)
        assert (await requests.send("POST", "/v1/notifications", b"[]")).status == status
        assert len(engine.requests) == 1
        await requests.close()


async def test_after_its_time_the_last_reason_is_raised() -> None:
    async with running(*[refuses(503)] * 50) as engine:
        requests = RetriedRequests(lambda: HttpConnection(parse_url(engine.url)), Credentials("tok"), timeout_s=5, retry_for_s=0.3)
        with pytest.raises(Unreachable, match=r"did not answer within 0\.3 s: 503 because 503"):
            await requests.send("POST", "/v1/notifications", b"[]")
        await requests.close()


async def test_a_page_of_a_proxy_is_refused() -> None:
    async def respond(_request: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(200, b"<html>"))

    async with raw_server(respond) as server, Publisher(server.url, "tok") as publisher:
        for asked in (publisher.profile("u"), publisher.scheduled("s"), publisher.timeline("u", "m"), publisher.question("q", user="u")):
            with pytest.raises(Refused, match="not an engine's"):
                await asked
